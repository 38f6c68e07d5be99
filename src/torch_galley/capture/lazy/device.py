"""Registers torch's spare backend under the name "xla", once, when somebody asks for it.

It is not done at import: once registered, xla outranks CUDA as torch's idea of *the*
accelerator, and a plain CPU program with `DataLoader(pin_memory=True)` would notice.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from torch_galley.capture.lazy import autocast, composite, dispatch, files, memory
from torch_galley.capture.lazy.flush import Executor, after_fork, use_executor
from torch_galley.capture.lazy.module import Module, patch_torch
from torch_galley.capture.lazy.parameters import patch_module
from torch_galley.core.errors import CaptureError, ConfigError

_kept: list[Any] = []
"""Libraries and hooks that torch refers to but doesn't own."""


class _Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined]
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined]
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]


def register(executor: Executor) -> None:
    """Make "xla" a device of this process whose programs `executor` runs. Idempotent.

    Raises:
        ConfigError: torch_xla, or another device of its own kind, is in this process already.
    """
    if _kept:
        return
    _check_free()
    use_executor(executor)
    module, hook, guard = Module(), _Hook(), _Guard()
    rename_privateuse1_backend("xla")
    torch._register_device_module("xla", module)
    patch_torch()
    patch_module()
    torch._C._acc.register_python_privateuseone_hook(hook)  # type: ignore[attr-defined]
    torch._C._acc.register_python_privateuseone_device_guard(guard)  # type: ignore[attr-defined]
    dispatch.enter_thread()
    os.register_at_fork(after_in_child=after_fork)
    # jax warns at each fork; what it warns of, XLA in the child, is an error of ours.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    _kept.extend([module, hook, guard])
    _kept.extend([*dispatch.install(), *autocast.install(), *composite.install(), *_refuse()])
    _kept.extend(memory.patch_torch())
    files.patch_torch()


def _refuse() -> list[torch.library.Library]:
    """Give what the device has no tensors for an error that says so."""

    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError(
            f"{op}: the xla device has dense tensors only, no sparse, quantized or nested ones",
            hint="keep such a tensor on the CPU, or make it dense with .to_dense()",
        )

    library = torch.library.Library("_", "IMPL")
    for kind in ("Sparse", "SparseCsr", "Quantized", "NestedTensor"):
        library.fallback(refuse, f"{kind}PrivateUse1")
    return [library]


def _check_free() -> None:
    theirs = sys.modules.get("torch_xla")
    if theirs is not None and not getattr(theirs, "__galley__", False):
        raise ConfigError(
            "torch_xla is imported already, and the xla device is its",
            hint="use one of the two in a process, or torch.compile(backend='galley')",
        )
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "xla"):
        raise ConfigError(f"torch's spare backend is taken by {name!r} in this process")
