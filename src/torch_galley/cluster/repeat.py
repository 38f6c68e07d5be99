"""How often the graphs of control flow run, as far as that can be told before they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from torch_galley.capture.body import bodies

_GUESS = 8.0
"""Turns of a loop that goes on until its data says stop."""

_MAPPED = {"scan": 2, "map_impl": 1, "associative_scan": 1}
"""Operators that run once for each slice of some tensors, and which argument these are."""


def repeats(node: fx.Node) -> Iterator[tuple[fx.Graph, float]]:
    """Yield the graphs of a node and how often each runs in one run of the node.

    Example: of a cond each branch half a time, of a scan over 10 rows its body 10 times.
    """
    inner = bodies(node)
    name = getattr(node.target, "__name__", "")
    times = 1.0
    if name == "cond":
        times = 1 / max(len(inner), 1)
    elif name == "while_loop":
        times = _GUESS
    elif name in _MAPPED:
        times = float(_rows(node.args[_MAPPED[name]]))
    for graph in inner.values():
        yield graph.graph, times


def _rows(mapped: Any) -> int:
    """Return the first size of what is mapped over, symbolic ones as first seen."""
    shape: Any = mapped[0].meta["val"].shape if mapped else (0,)
    return shape[0] if isinstance(shape[0], int) else (shape[0].node.hint or 1)
