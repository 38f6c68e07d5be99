"""`torch_xla`: its top level."""

from __future__ import annotations

from typing import Any

import torch

import torch_galley
from torch_galley.compat.install import missing

__galley__ = True
__version__ = f"2.9.0+galley{torch_galley.__version__}"


def device(index: int | None = None) -> torch.device:
    """Return the xla device."""
    return torch_galley.device(index or 0)


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run what was recorded."""
    torch_galley.sync()


def __getattr__(name: str) -> Any:
    missing("torch_xla", name)
