"""`torch_xla.amp.syncfree`: torch's own optimizers."""

from __future__ import annotations

from typing import Any

from torch.optim import SGD, Adam, AdamW

from torch_galley.compat.finder import missing

__all__ = ["SGD", "Adam", "AdamW"]


def __getattr__(name: str) -> Any:
    missing(__name__, name)
