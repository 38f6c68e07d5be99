"""as_strided, moved from a view to the tensor whose memory the view shows."""

from __future__ import annotations

import torch
from torch import fx

from torch_galley.capture.fx import is_view

aten = torch.ops.aten


def rebase_as_strided(graph: fx.Graph) -> None:
    """Make each as_strided of a view one of the view's base, its offset explicit.

    It addresses the memory behind its input: for `y[2:5].as_strided(...)` all of y. Once y[2:5]
    is a cluster's result, it has memory of its own, and what lies around it is lost.
    """
    for node in graph.nodes:
        if node.target is not aten.as_strided.default:
            continue
        view = node.args[0]
        base = _base(view)
        if base is view:
            continue
        size, stride, *rest = node.args[1:]
        offset = node.kwargs.get("storage_offset", rest[0] if rest else None)
        if offset is None:
            offset = view.meta["val"].storage_offset()
        if not isinstance(offset, int | fx.Node):
            continue  # a symbolic offset that no node of the graph computes
        node.args = (base, size, stride, offset)
        node.kwargs = {}


def _base(node: fx.Node) -> fx.Node:
    """Step back through views of one dtype: offsets count elements."""
    dtype = node.meta["val"].dtype
    while True:
        maker = node.args[0] if _picks(node) else node
        source = maker.args[0] if isinstance(maker, fx.Node) and is_view(maker.target) else None
        if not isinstance(source, fx.Node) or source.meta["val"].dtype != dtype:
            return node
        node = source


def _picks(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"
