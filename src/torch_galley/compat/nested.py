"""Tensors inside of batches, checkpoints and other structures, moved from device to device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import MutableMapping
from typing import Any

import torch


def moved(data: Any, device: torch.device | str) -> Any:
    """Return `data` with every tensor in it on `device`; what holds them is copied, never changed.

    Looks into lists, tuples, mappings, dataclasses and modules, and uses an object's own `.to`.

    Example:
        >>> moved({"x": [torch.ones(2)], "n": 3}, "cpu")
        {'x': [tensor([1., 1.])], 'n': 3}
    """
    if isinstance(data, torch.nn.Module):
        return copy.deepcopy(data).to(device)
    if callable(getattr(data, "to", None)):  # tensors, packed sequences, tokenizers' batches
        return data.to(device)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(moved(item, device) for item in data))
    if isinstance(data, list | tuple):
        return type(data)([moved(item, device) for item in data])
    if isinstance(data, MutableMapping):
        twin = copy.copy(data)
        for key, item in data.items():
            twin[key] = moved(item, device)
        return twin
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = [field.name for field in dataclasses.fields(data) if field.init]
        return dataclasses.replace(data, **{f: moved(getattr(data, f), device) for f in fields})
    return data
