"""Which operators torch rewrites into simpler ones before we lower them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    suggest_memory_format,
)

from torch_galley.ops.draw import ours
from torch_galley.ops.refused import refused
from torch_galley.ops.registry import lookup

aten = torch.ops.aten


def _native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Leave only the drawing native, with eager's very operator: the same seed then drops the
    same elements. (torch's own rewriting draws other numbers.)
    """
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    order, _ = compute_elementwise_output_logical_to_physical_perm(input)  # of memory
    shape = [input.shape[dim] for dim in order]
    # An empty of its own, so that the draw need not wait for the input's value.
    empty = torch.empty(shape, dtype=torch.bool, device=input.device)
    drawn = aten.bernoulli.p(empty, 1 - p)
    mask = drawn.permute([order.index(dim) for dim in range(input.dim())])
    return input * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def _ldexp(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Round the power to its own dtype first: that of a float16 exponent may become infinite."""
    dtype = torch.result_type(self, other)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return (self * torch.pow(2.0, other)).to(dtype)


def _roll(self: torch.Tensor, shifts: list[int], dims: tuple[int, ...] = ()) -> torch.Tensor:
    """Join parts, as eager does, so that the result lies in memory as there."""
    if not dims:
        return _roll(self.flatten(), shifts, (0,)).view(self.shape)
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.shape[dim]
        if size > 0:
            start = (size - shift) % size
            parts = [result.narrow(dim, start, size - start), result.narrow(dim, 0, start)]
            result = torch.cat(parts, dim)
    return result.clone() if result is self else result


def _in_its_format(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a rewriting whose result lies in memory as its argument does."""

    def rewritten(self: torch.Tensor, *args: Any) -> torch.Tensor:
        return rule(self, *args).contiguous(memory_format=suggest_memory_format(self))

    return rewritten


def _in_floats(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the rewriting of linspace for floats alone. In integers eager multiplies and adds
    with one rounding before it cuts off, which XLA may or may not do.
    """

    def linspace(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
        return NotImplemented if whole else rule(*args, dtype=dtype, **kwargs)

    return linspace


def _or_whole(op: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rewriting that leaves the operator whole, for eager to run or to refuse, where
    eager refuses it by its dtypes, or torch's rewriting refuses what eager takes (addcmul of
    integers with a value of 0.5).
    """

    @wraps(rule)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        if refused(op, args) is not None:
            return NotImplemented
        try:
            return rule(*args, **kwargs)
        except Exception:  # if eager refuses it, too, then the whole operator does
            return NotImplemented

    return rewritten


_OURS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.ldexp.Tensor: _ldexp,
    aten.roll.default: _roll,
}
"""Rewritings of our own."""

_IN_ITS_FORMAT = [
    aten.channel_shuffle.default,
    aten.native_channel_shuffle.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
]
"""Operators that keep their argument's memory format in eager, and not in torch's rewriting."""


@cache
def _candidates() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    table.update({op: _in_its_format(table[op]) for op in _IN_ITS_FORMAT})
    linspaces = get_decompositions([aten.linspace])
    table.update({op: _in_floats(rule) for op, rule in linspaces.items()})
    table.update(_OURS)
    return {op: _or_whole(op, rule) for op, rule in table.items()}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's core ATen decompositions, less those of operators we lower whole.

    An operator with a lowering of its own is never rewritten, so adding a lowering is enough. Nor
    is one that we draw: torch's bernoulli forgets to check its probabilities.
    """
    return {
        op: rule
        for op, rule in _candidates().items()
        if lookup(op) is None and lookup(ours(op)) is None
    }
