"""What counts as an operation, for coverage and for the size of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from torch_galley.capture.body import bodies
from torch_galley.capture.fx import is_symbolic_number, is_view
from torch_galley.cluster.support import is_getitem


def is_operation(node: fx.Node) -> bool:
    """Whether a node counts as an operation: a call that computes tensors, and no getitem."""
    return node.op == "call_function" and not is_getitem(node) and not is_symbolic_number(node)


def effective(node: fx.Node) -> bool:
    """Whether a node counts for a cluster's size: it computes, rather than views or fills."""
    return is_operation(node) and not is_view(node.target) and bool(node.all_input_nodes)


def size(nodes: Iterable[fx.Node]) -> int:
    """Return how many operations of a cluster count; of control flow, those in its graphs."""
    return sum(_size(node) for node in nodes)


def _size(node: fx.Node) -> int:
    inner = bodies(node).values()
    return sum(size(graph.graph.nodes) for graph in inner) if inner else int(effective(node))


def nbytes(node: fx.Node) -> int:
    """Return the bytes of a node's tensor, symbolic sizes as first seen; 0 if it is none."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return 0
    count = val.dtype.itemsize
    for size in val.shape:
        count *= size if isinstance(size, int) else (size.node.hint or 1)
    return count
