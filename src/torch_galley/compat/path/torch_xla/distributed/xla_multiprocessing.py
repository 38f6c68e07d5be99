"""`torch_xla.distributed.xla_multiprocessing`, usually imported as `xmp`: one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_galley.compat.finder import missing
from torch_galley.core.errors import ConfigError


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call `fn(0, *args)` in this process.

    Raises:
        ConfigError: more than one process is asked for.
    """
    if nprocs not in (None, 1):
        raise ConfigError(
            f"xmp.spawn(nprocs={nprocs}), but there is one xla device",
            hint="leave nprocs out, or give 1",
        )
    fn(0, *args)


class MpModelWrapper:
    """Holds a model until it is moved to the device."""

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        """Return the model on the device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one process after another: in this one."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """Return `fn()`."""
        return fn()


def __getattr__(name: str) -> Any:
    missing(__name__, name)
