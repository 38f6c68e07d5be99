"""torch.compile's graphs on xla tensors: recorded, so that they join what is around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_galley.capture.fx import Captured
from torch_galley.capture.lazy.stream import graph_seed
from torch_galley.ops.draw import SEED


def on_device(captured: Captured) -> bool:
    """Whether a graph computes on the xla device."""
    vals = (node.meta.get("val") for node in captured.graph.graph.nodes)
    return any(isinstance(val, torch.Tensor) and val.device.type == "xla" for val in vals)


def recorder(captured: Captured) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function of a list of inputs that records the graph's operations.

    They become one program with what was recorded before and after: forward, backward and
    optimizer are compiled together, at the next sync or read.
    """
    for node in captured.graph.graph.nodes:
        if node.target is SEED:  # one for each run, of a jitted step's replays too
            node.target = graph_seed
    captured.graph.recompile()
    run = captured.graph.forward

    def record(inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        return run(*given)

    return record
