"""`torch_xla.core.xla_model`, usually imported as `xm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import torch_galley
from torch_galley.compat.install import missing


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the xla device."""
    return torch_galley.device(n or 0)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what was recorded."""
    torch_galley.sync()


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
) -> Any:
    """Step the optimizer; with `barrier`, run what was recorded."""
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        torch_galley.sync()
    return loss


def __getattr__(name: str) -> Any:
    missing("torch_xla.core.xla_model", name)
