"""The graphs inside a graph: the branches of a cond, the bodies of a loop.

A node that calls a higher-order operator has them among its arguments, as nodes that fetch a
GraphModule from the one around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes


def body_of(arg: Any) -> fx.GraphModule | None:
    """Return the graph that an argument of a node stands for, None if it is no graph.

    Example: of `cond(pred, true_graph_0, false_graph_0, (x,))` the second and the third.
    """
    if not (isinstance(arg, fx.Node) and arg.op == "get_attr"):
        return None
    module = arg.graph.owning_module
    found = None if module is None else attribute(module, str(arg.target))
    return found if isinstance(found, fx.GraphModule) else None


def bodies(node: fx.Node) -> dict[fx.Node, fx.GraphModule]:
    """Return the graphs among a node's arguments, by the nodes that fetch them."""
    found = {arg: body_of(arg) for arg in node.all_input_nodes if arg.op == "get_attr"}
    return {arg: graph for arg, graph in found.items() if graph is not None}


def graphs_of(module: fx.GraphModule) -> Iterator[fx.Graph]:
    """Yield a module's graph, and the graphs inside it, however deep."""
    yield module.graph
    for node in module.graph.nodes:
        body = body_of(node)
        if body is not None:
            yield from graphs_of(body)


def named_inside(node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    """Yield a node and the calls in its bodies, under the names that lowering gives them.

    Example: "cond", "cond.true_graph_0.sin", ...
    """
    yield node.name, node
    for arg, graph in bodies(node).items():
        for call in graph.graph.nodes:
            if call.op == "call_function":
                for name, inner in named_inside(call):
                    yield f"{node.name}.{arg.target}.{name}", inner


def attribute(module: torch.nn.Module, path: str) -> Any:
    """Return what a dotted path leads to."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def elements(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a constant's elements, dense; while torch captures, too."""
    with _disable_current_modes():
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
