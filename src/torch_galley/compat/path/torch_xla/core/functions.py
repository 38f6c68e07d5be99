"""`torch_xla.core.functions`: collectives that gradients pass through; with one process, all do."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compat.finder import missing


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Any = None
) -> torch.Tensor:
    """Return the tensor times `scale`."""
    return value * scale


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return the tensor."""
    return value.clone()


def __getattr__(name: str) -> Any:
    missing(__name__, name)
