"""torch.compile's graphs, functionalised and split into forward and backward by AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from torch_galley.capture.fx import PARAMETER, Captured
from torch_galley.core.config import Config
from torch_galley.ops.decompose import decompositions

Executor = Callable[[Captured], Callable[[list[Any]], Sequence[Any]]]
"""What turns a captured graph into a function of a list of inputs, which it may empty."""


def capture(
    graph: fx.GraphModule, example_inputs: Sequence[Any], config: Config, execute: Executor
) -> Callable[..., Any]:
    """Return a function like `graph` whose parts are run by what `execute` makes of them.

    AOTAutograd removes mutation and views (replaying them around our function), decomposes what
    we have no lowering for, and traces the backward graph if a gradient may be asked for.
    Source: torch._functorch.aot_autograd.
    """
    # Here, so that `import torch_galley` does not pay for Dynamo.
    from torch._dynamo.backends.common import aot_autograd

    from torch_galley.capture.split import split

    def compiler(role: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_part(part: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
            _mark_parameters(part, example_inputs)
            run = execute(Captured(part, role, config, _visible(role)))
            run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd hands over a list
            return run

        return compile_part

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=split,
    )
    return backend(graph, list(example_inputs))


def _mark_parameters(part: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Tell in their meta which inputs of a part are parameters of the model."""
    for node in part.graph.nodes:
        place = getattr(node.meta.get("desc"), "idx", None)  # which input of the whole this is
        if node.op == "placeholder" and place is not None:
            inputs = example_inputs[place : place + 1]
            node.meta[PARAMETER] = any(isinstance(one, torch.nn.Parameter) for one in inputs)


def _visible(role: str) -> int | None:
    """Return how many results of the part being compiled the user can see: see Captured.visible."""
    context = TracingContext.try_get()
    if role == "backward":
        return 0  # gradients: torch promises nothing of their memory
    if role == "forward" and context is not None and context.fw_metadata is not None:
        return context.fw_metadata.num_forward_returns
    return None
