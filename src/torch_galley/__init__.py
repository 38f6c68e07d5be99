"""PyTorch on XLA, with the lid off.

model = torch.compile(model, backend="galley")
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from torch_galley import hlo
from torch_galley.backend import claim_openxla as _claim_openxla
from torch_galley.backend import device, jit, sync
from torch_galley.core import errors
from torch_galley.core.config import config
from torch_galley.core.versions import check_versions as _check_versions
from torch_galley.observe.metrics import metrics, metrics_report, reset_metrics

if _TYPE_CHECKING:
    from torch_galley.ops.custom_call import custom_call
    from torch_galley.ops.own import lowers
    from torch_galley.tools.explain import explain, report
    from torch_galley.tools.stages import stages

__version__ = "0.1.0"

__all__ = [
    "config",
    "custom_call",
    "device",
    "errors",
    "explain",
    "hlo",
    "jit",
    "lowers",
    "metrics",
    "metrics_report",
    "report",
    "reset_metrics",
    "stages",
    "sync",
]

_LAZY = {
    "custom_call": "torch_galley.ops.custom_call",
    "lowers": "torch_galley.ops.own",
    "explain": "torch_galley.tools.explain",
    "report": "torch_galley.tools.explain",
    "stages": "torch_galley.tools.stages",
}
"""What is imported at first use: it needs torch, some of it jax."""


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_check_versions()
_claim_openxla()
