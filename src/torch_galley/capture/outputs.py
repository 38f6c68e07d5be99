"""Results of a graph that are views: replayed natively, at the end, where a copy would show.

A cluster gives each of its results memory of its own, densely packed. So `y = x * 2; return y,
y.view(-1)` would return two tensors that no longer see each other's writes, and `return y[:, :3]`
one of other strides than eager's. Where two results go back to one computed tensor, or a result's
memory has gaps, the views between the computed tensor and the result are copied to the end of the
graph and marked to stay native; the computed tensor becomes the cluster's result. So are the views
between an input and a result: AOTAutograd replays most of them itself, but not, for example,
`x.unbind(0)[1]` where x requires a gradient; and no view of an input is worth a copy of it.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import fx

from torch_galley.capture.fx import Captured, is_view_node, memory_owner

SHARES_MEMORY = "galley_shares_memory"
"""Marks, in a node's meta, what must be run natively for its result's memory."""


def replay_views(captured: Captured) -> None:
    """Replay the views behind a graph's visible results, where a copy would show. Idempotent.

    Example: in a graph for `y = x * 2; return y, y.view(-1)` the view becomes a native node.
    """
    graph = captured.graph.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    visible = [n for n in output.args[0][: captured.visible] if isinstance(n, fx.Node)]
    visible = list(dict.fromkeys(visible))
    count = Counter(map(memory_owner, visible))
    replayed: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(output):
        for result in visible:
            base = memory_owner(result)
            shows = count[base] > 1 or base.op == "placeholder" or _has_gaps(result)
            if base is result:  # such as aten.copy to a view: no kernel of ours leaves gaps
                result.meta[SHARES_MEMORY] = _has_gaps(result, unknown=False)
            elif shows and not result.meta.get(SHARES_MEMORY):
                replayed[result] = _replay(graph, result, replayed)
    output.args = (fx.map_arg(output.args[0], lambda node: replayed.get(node, node)),)
    for node in reversed(list(graph.nodes)):  # the views that were replayed, unless still needed
        if is_view_node(node) and not node.users:
            graph.erase_node(node)


def _has_gaps(node: fx.Node, unknown: bool = True) -> bool:
    """Whether a tensor's elements, in whatever order, leave memory between them unused.

    Sizes that vary are taken as they were at first; `unknown` is the answer where nothing is known.
    """
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return False
    sizes, strides = list(map(_at_first, val.shape)), list(map(_at_first, val.stride()))
    if 0 in sizes:
        return False
    reach = count = 1
    for size, stride in zip(sizes, strides, strict=True):
        if size is None or stride is None:
            return unknown
        reach += (size - 1) * stride
        count *= size
    return reach != count


def _at_first(number: int | torch.SymInt) -> int | None:
    return number if isinstance(number, int) else number.node.hint


def _replay(graph: fx.Graph, node: fx.Node, done: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copy the chain of views that ends in `node`, up to what it is a view of."""
    if not is_view_node(node):
        return node
    if node not in done:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        base = _replay(graph, source, done)
        copy = graph.node_copy(node, lambda arg: base if arg is source else arg)
        copy.meta[SHARES_MEMORY] = True
        done[node] = copy
    return done[node]
