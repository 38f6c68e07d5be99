"""A cluster's results: on the device for the next cluster, and as tensors for torch."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compile.engine import Engine
from torch_galley.lower.driver import Argument


class OnDevice:
    """A cluster's result that torch may never ask for: a dense array and what it stands for."""

    __slots__ = ("_tensor", "argument", "array", "engine")

    def __init__(self, array: Any, argument: Argument, engine: Engine):
        self.array = array
        self.argument = argument
        self.engine = engine
        self._tensor: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """Return it as a tensor, waiting for it. The same one each time."""
        if self._tensor is None:
            self._tensor = as_tensor(self.array, self.argument, self.engine)
        return self._tensor


def as_tensor(array: Any, argument: Argument, engine: Engine) -> torch.Tensor:
    """Return a cluster's result as a tensor of eager's strides, waiting for it.

    One without elements gets memory of torch's: XLA's can't be resized, which `out=` does to it.
    """
    tensor = engine.take(array)
    if tensor.numel() == 0:
        tensor = torch.empty_like(tensor)
    if argument.layout is None:
        return tensor
    return argument.layout.unpack(tensor, argument.spec.shape)


def as_torch(value: Any) -> Any:
    """Return a value as torch code wants it."""
    return value.tensor() if type(value) is OnDevice else value
