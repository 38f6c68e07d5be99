"""Registers torch's spare backend under the name "xla", once, when somebody asks for it.

It is not done at import: once registered, xla outranks CUDA as torch's idea of *the*
accelerator, and a plain CPU program with `DataLoader(pin_memory=True)` would notice.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from torch_galley.capture.lazy import dispatch
from torch_galley.capture.lazy.flush import Executor, flush, use_executor
from torch_galley.core.errors import CaptureError, ConfigError

_kept: list[Any] = []
"""Libraries and hooks that torch refers to but doesn't own."""


class NotBuilt(CaptureError, AttributeError):
    """A feature of torch.<device> that the xla device hasn't got; hasattr() says so too."""


class _Module:
    """What torch looks for in `torch.xla`."""

    __name__ = "torch.xla"

    class device:
        """The context manager `torch.xla.device(index)`; there is one device."""

        def __init__(self, device: Any = 0):
            self.index = device

        def __enter__(self) -> None:
            pass

        def __exit__(self, *args: object) -> None:
            pass

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def synchronize(self, device: Any = None) -> None:
        flush("sync")

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        pass  # numbers are drawn from the CPU generator, which torch.manual_seed seeds

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def __getattr__(self, name: str) -> Any:
        raise NotBuilt(
            f"torch.xla.{name} isn't built yet", hint="see docs/errors.md for what the device has"
        )


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
    module, hook, guard = _Module(), _Hook(), _Guard()
    rename_privateuse1_backend("xla")
    torch._register_device_module("xla", module)
    torch._C._acc.register_python_privateuseone_hook(hook)  # type: ignore[attr-defined]
    torch._C._acc.register_python_privateuseone_device_guard(guard)  # type: ignore[attr-defined]
    # Without this, Module.to() makes new parameters and tied weights come apart.
    torch.__future__.set_swap_module_params_on_conversion(True)
    dispatch.enter_thread()
    os.register_at_fork(after_in_child=dispatch.after_fork)
    _kept.extend([module, hook, guard, *dispatch.install()])


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
