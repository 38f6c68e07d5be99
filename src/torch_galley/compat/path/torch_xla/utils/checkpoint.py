"""`torch_xla.utils.checkpoint`: torch's own."""

from __future__ import annotations

from typing import Any

from torch.utils.checkpoint import checkpoint

from torch_galley.compat.finder import missing

__all__ = ["checkpoint"]


def __getattr__(name: str) -> Any:
    missing(__name__, name)
