"""A graph's random operators, made functions of one seed that the graph draws at its start."""

from __future__ import annotations

import torch
from torch import fx

from torch_galley.ops import draw
from torch_galley.ops.registry import lookup


def draw_from_seed(graph: fx.GraphModule) -> None:
    """Give random operators a seed and their number, in a graph that may go on to a backward.

    What draws is then pure: it may be cut, computed twice (in a checkpoint's recomputation) or not
    at all, and stays the same. Only the seed is drawn, once, and always handed on: no policy of
    checkpoints marks it. What a backward draws of its own has a seed of its own, since a backward
    may be run again.

    Left alone are operators that have a generator of their own, no lowering, or numbers that eager
    refuses: these run natively, and draw or raise as in eager. Idempotent.

    Example: `rand([2])` becomes `seed = galley.seed(); galley.rand(seed, 0, [2])`.
    """
    seeds: dict[bool, fx.Node] = {}
    draws = 0
    for node in list(graph.graph.nodes):
        own = draw.ours(node.target)
        if own is None or lookup(own) is None or not _accepted(node):
            continue
        back = node.meta.get("partitioner_tag") == "is_backward"
        if back not in seeds:
            seeds[back] = _seed(node if back else _first(graph.graph), node)
        _fix_dtype(node)
        names = [argument.name for argument in own._schema.arguments[2:]]
        node.target = own
        node.args = (seeds[back], draws, *node.args[: len(names)])
        node.kwargs = {name: arg for name, arg in node.kwargs.items() if name != "generator"}
        draws += 1
    graph.recompile()


def _first(graph: fx.Graph) -> fx.Node:
    """Return the first node that is no input."""
    return next(node for node in graph.nodes if node.op != "placeholder")


def _accepted(node: fx.Node) -> bool:
    """Whether eager takes the call's own numbers, and no generator is given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    places = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(places, node.args, strict=False)) | node.kwargs
    if given.get("generator") is not None:
        return False
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    try:
        draw.try_numbers(node.target, args, kwargs)
    except Exception:  # eager's own error, which the operator raises when it is run
        return False
    return True


def _seed(before: fx.Node, drawer: fx.Node) -> fx.Node:
    graph = before.graph
    with graph.inserting_before(before):
        seed = graph.call_function(draw.SEED)
    mode = drawer.meta["val"][0] if isinstance(drawer.meta["val"], tuple) else drawer.meta["val"]
    with mode.fake_mode:
        seed.meta["val"] = draw.SEED()
    tag = drawer.meta.get("partitioner_tag")
    if tag is not None:
        seed.meta["partitioner_tag"] = tag
    return seed


def _fix_dtype(node: fx.Node) -> None:
    """Say which dtype a factory makes: the default may be another when the graph is lowered."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    if any(argument.name == "dtype" for argument in arguments):
        node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
