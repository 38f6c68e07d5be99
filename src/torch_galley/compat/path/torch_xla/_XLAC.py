"""`torch_xla._XLAC`: the few functions of its C++ part that programs call."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compat.finder import missing


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """Return a number that tensors share if they share memory."""
    return tensor.untyped_storage()._cdata


def _xla_get_default_device() -> str:
    """Return the device's name."""
    return "xla:0"


def __getattr__(name: str) -> Any:
    missing(__name__, name)
