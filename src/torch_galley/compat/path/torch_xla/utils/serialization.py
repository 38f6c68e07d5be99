"""`torch_xla.utils.serialization`, usually imported as `xser`: torch's own files."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compat.finder import missing
from torch_galley.compat.nested import moved


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Save data with its tensors on the CPU, in one file."""
    torch.save(moved(data, "cpu"), path)


def load(path: str) -> Any:
    """Load what `save` wrote, tensors on the CPU."""
    return torch.load(path, weights_only=False)


def __getattr__(name: str) -> Any:
    missing(__name__, name)
