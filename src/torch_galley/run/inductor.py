"""A whole graph by torch's own compiler, as a contender of the measured decision."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx
from torch._dynamo import convert_frame

from torch_galley.core.events import Warned, emit

Execute = Callable[[list[Any]], Sequence[Any]]


def by_inductor(graph: fx.GraphModule, inputs: Sequence[Any], otherwise: Execute) -> Execute | None:
    """Compile a captured graph for inputs like these; None, with a warning, if inductor can't.

    It is compiled for exactly these shapes and strides; for others, `otherwise` runs.
    """
    plain = copy.deepcopy(graph)
    for node in plain.graph.nodes:
        node.meta = {}  # what our capture recorded; inductor records its own
    try:
        # In a thread of its own: ours is in the middle of a call of AOTAutograd's, with dispatch
        # keys off that a capture needs. With Dynamo's lock, because FX can't trace in two threads
        # at a time; held here, where it may be held already.
        with convert_frame.compile_lock, ThreadPoolExecutor(1) as thread:
            compiled = thread.submit(_compile, plain, list(inputs)).result()
    except Exception as error:  # whatever a compiler that is not ours may raise
        message = f"inductor can't compile a graph, so it is not tried: {_first_line(error)}"
        emit(Warned(message))
        warnings.warn(message, stacklevel=2)
        return None
    wanted = _alike(inputs)

    def run(given: list[Any]) -> Sequence[Any]:
        if _alike(given) != wanted:
            return otherwise(given)
        values = list(given)
        given.clear()
        with torch.no_grad():
            return list(compiled(*values))

    return run


def _compile(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    import torch._inductor  # here: it loads a compiler that few ask for

    with torch.no_grad():
        # Its own random numbers would be others than eager's.
        options = {"fallback_random": True}
        compiled: Any = torch._inductor.compile(graph, inputs, options=options)
        compiled(*inputs)
    return compiled


def _alike(inputs: Sequence[Any]) -> list[Any]:
    """Return what a compiled graph relies on, of each input."""
    return [
        (value.shape, value.stride(), value.dtype, value.data_ptr() % 16 == 0)
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
