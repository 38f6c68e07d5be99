"""Makes `import torch_xla` find ours, in this process and those that it spawns."""

from __future__ import annotations

import dis
import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from torch_galley.core.errors import CaptureError, ConfigError

_OURS = str(Path(__file__).resolve().parent)
_PATH = str(Path(__file__).resolve().parent / "path")
"""The folder in which our package torch_xla lies."""

INSTEAD = {
    "spmd": "there is one device: leave the sharding out, and use the tensors as they are",
    "fsdp": "there is one device: use the model itself",
    "xla_backend": "there is one process: leave torch.distributed out",
    "set_mat_mul_precision": "products are computed in full float32: leave it out",
    "stablehlo": "torch_galley.stages(fn, *args) has the StableHLO of every cluster",
    "get_stablehlo": "torch_galley.stages(fn, *args) has the StableHLO of every cluster",
    "_get_xla_tensors_hlo": "XLA_FLAGS=--xla_dump_hlo_as_text --xla_dump_to=DIR writes the HLO",
    "_get_xla_tensors_text": "XLA_DEBUG=1 logs what is recorded, torch_galley.stages shows it",
    "save_as_stablehlo": "torch_galley.stages(fn, *args) has the StableHLO of every cluster",
    "use_spmd": "there is one device: leave the call out",
    "custom_kernel": "write it in torch; an operator without a lowering runs natively",
    "flash_attention": "torch.nn.functional.scaled_dot_product_attention does the same",
    "fori_loop": "write a Python loop: it is recorded turn by turn",
    "scan_layers": "call the layers one after another: they are one program",
    "trace": "xp.start_trace(folder) and xp.stop_trace() around what is to be seen",
}
"""A part of a missing name -> what to do instead."""
_ELSE = "leave it out, or use its counterpart in torch or torch_galley"


class NameNotProvided(CaptureError, AttributeError):
    """A torch_xla name that torch-galley doesn't have; hasattr() says so too."""


class ImportNotProvided(CaptureError, ImportError):
    """A torch_xla name that torch-galley doesn't have, asked for by `from ... import`."""


class ModuleNotProvided(CaptureError, ModuleNotFoundError):
    """A torch_xla module that torch-galley doesn't have."""


def install() -> None:
    """Make `import torch_xla` find torch-galley's, and torch know the xla device. Idempotent.

    Example: `torch_galley.compat.install()`, before torch_xla is imported for the first time. Then
    `torch.ones(2, device="xla")` works, too.

    Raises:
        ConfigError: the real torch_xla is imported already.
    """
    found = sys.modules.get("torch_xla")
    if found is not None and not getattr(found, "__galley__", False):
        raise ConfigError(
            "torch_xla is imported already, and it isn't torch-galley's",
            hint="call torch_galley.compat.install() first, or run the script with python",
        )
    if _PATH not in sys.path:
        # In front of an installed torch_xla, after the script's own folder. On sys.path, since
        # that is what processes started by multiprocessing inherit.
        sys.path.insert(1, _PATH)
    if not any(isinstance(finder, _Missing) for finder in sys.meta_path):
        sys.meta_path.append(_Missing())
    import torch_galley  # here: with it comes torch, which `galley --help` has no need of

    torch_galley.device()


def missing(module: str, name: str) -> NoReturn:
    """Raise the error for a name that a compat module hasn't got; its __getattr__ calls it."""
    if name.startswith("__"):
        raise AttributeError(name)
    kind = ImportNotProvided if _asked_by_import() else NameNotProvided
    raise kind(f"{module}.{name} isn't provided by torch-galley", hint=_hint(f"{module}.{name}"))


def _hint(path: str) -> str:
    return next((INSTEAD[part] for part in reversed(path.split(".")) if part in INSTEAD), _ELSE)


def submodule(package: str, name: str) -> ModuleType:
    """Return a package's submodule, as if it had been imported; as missing() if there is none."""
    if not name.startswith("__"):
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotProvided as error:
            if error.name != f"{package}.{name}":
                raise
    missing(package, name)


def _asked_by_import() -> bool:
    """Whether a name is asked for by `from module import name`.

    Python would replace an AttributeError there, hint and all, by an ImportError of its own.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


class _Missing(importlib.abc.MetaPathFinder):
    """The last to be asked: says clearly which torch_xla module is not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if not fullname.startswith("torch_xla."):
            return
        error = ModuleNotProvided(
            f"the module {fullname} isn't provided by torch-galley", hint=_hint(fullname)
        )
        error.name = fullname  # `from torch_xla import x` goes on to ask the module for x
        raise error
