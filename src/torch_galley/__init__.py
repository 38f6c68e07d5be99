"""PyTorch on XLA, with the lid off.

model = torch.compile(model, backend="galley")
"""

from torch_galley import hlo
from torch_galley.backend import claim_openxla as _claim_openxla
from torch_galley.backend import device, sync
from torch_galley.core import errors
from torch_galley.core.config import config
from torch_galley.core.versions import check_versions as _check_versions
from torch_galley.observe.metrics import metrics, metrics_report, reset_metrics

__version__ = "0.1.0"

__all__ = [
    "config",
    "device",
    "errors",
    "hlo",
    "metrics",
    "metrics_report",
    "reset_metrics",
    "sync",
]

_check_versions()
_claim_openxla()
