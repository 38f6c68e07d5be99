"""Which operators torch rewrites into simpler ones before we lower them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from torch_galley.ops.registry import lookup

aten = torch.ops.aten

_BEYOND_CORE = [
    # Rewritten so that only the drawing of random numbers stays native, not what follows it.
    aten.native_dropout,
    aten.bernoulli.p,
]
"""Decompositions that torch has but does not count as core, and that help us."""

_KEEP = [
    # torch's own rewriting would materialise what the whole operator need not.
]
"""Operators that core ATen would rewrite and that must reach us (or run natively) as they are."""


@cache
def _candidates() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    table.update(get_decompositions(_BEYOND_CORE))
    return table


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's core ATen decompositions, less those of operators we lower whole.

    An operator with a lowering of its own is never rewritten, so adding a lowering is enough.
    """
    return {
        op: rule for op, rule in _candidates().items() if lookup(op) is None and op not in _KEEP
    }
