"""Which operators torch rewrites into simpler ones before we lower them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm

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
    """Round the power before it is used, as eager does: in float16 it may become infinite."""
    return self * torch.pow(2.0, other)


_OURS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.ldexp.Tensor: _ldexp,
}
"""Rewritings of our own."""

_BEYOND_CORE = [aten.grid_sampler_2d]
"""Rewritings that torch has but does not count as core, and that help us."""

_KEEP = [
    # torch's own rewriting would materialise what the whole operator need not.
]
"""Operators that core ATen would rewrite and that must reach us (or run natively) as they are."""


@cache
def _candidates() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    table.pop(aten.bernoulli.p, None)
    table.update(get_decompositions(_BEYOND_CORE))
    table.update(_OURS)
    return table


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's core ATen decompositions, less those of operators we lower whole.

    An operator with a lowering of its own is never rewritten, so adding a lowering is enough.
    """
    return {
        op: rule for op, rule in _candidates().items() if lookup(op) is None and op not in _KEEP
    }
