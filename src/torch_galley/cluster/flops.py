"""Floating-point operations of graph nodes, by the formulas of torch.utils.flop_counter.

torch has formulas for matrix products, convolutions and attention. All else counts nothing here,
as is usual: it is bound by memory, and a count of its own would hide what this one shows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from torch_galley.cluster.repeat import repeats


def flops(node: fx.Node) -> int:
    """Return a node's floating-point operations; symbolic sizes count as first seen.

    Example: an `aten.mm` of (2, 3) and (3, 4) has 2 * 2 * 3 * 4 = 48.
    """
    if not isinstance(node.target, OpOverload):
        return round(sum(times * total(inner.nodes) for inner, times in repeats(node)))
    formula = flop_registry.get(node.target.overloadpacket)
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
    count = formula(*args, **kwargs, out_val=node.meta.get("val"))
    if isinstance(count, torch.SymInt):
        count = count.node.hint
    return int(count or 0)


def total(nodes: Iterable[fx.Node]) -> int:
    """Return the floating-point operations of several nodes."""
    return sum(map(flops, nodes))
