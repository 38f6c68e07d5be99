"""torch.compile's graphs, functionalised and split into forward and backward by AOTAutograd."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from torch_galley.capture.fx import PARAMETER, Captured
from torch_galley.capture.random import draw_from_seed
from torch_galley.core.config import Config
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import Warned, emit
from torch_galley.core.site import site_of
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

    A graph that gives an input other memory is returned as it is, with a warning: eager runs it.

    Raises:
        CaptureError: the setting `require_full` is on, and eager would have to run the graph; or
            a cond is to be decided by several elements.
    """
    moved = _moved_input(graph)
    if moved is not None:
        _run_natively(moved, config)
        return graph.forward
    # Here, so that `import torch_galley` does not pay for Dynamo.
    from torch._dynamo.backends.common import aot_autograd

    from torch_galley.capture import split  # it imports torch's partitioner

    def compiler(role: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_part(part: fx.GraphModule, _inputs: Sequence[Any]) -> Any:
            if role == "inference" and config.rng == "xla":
                draw_from_seed(part)
            _mark_parameters(part, example_inputs)
            _check_predicates(part)
            run = execute(Captured(part, role, config, _visible(role)))
            run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd hands over a list
            return run

        return compile_part

    def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if config.rng == "xla":  # before it is known what a backward computes again
            draw_from_seed(joint)
        return split.split(joint, *args, **kwargs)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=partition,
    )
    return backend(graph, list(example_inputs))


def _moved_input(graph: fx.GraphModule) -> fx.Node | None:
    """Return what gives an input of the graph other memory, as `x.data = y` does, if anything.

    AOTAutograd refuses that, but for graphs that may write their inputs.
    """
    for part in graph.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.nodes:
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
            given = node.args[0] if name == "set_" and node.args else None
            if isinstance(given, fx.Node) and given.op == "placeholder":
                return node
    return None


def _run_natively(moved: fx.Node, config: Config) -> None:
    """Warn that eager runs a graph, and why.

    Raises:
        CaptureError: the setting `require_full` is on.
    """
    site = site_of(moved.meta)
    message = "`.data =` or set_ gives an input of the graph other memory"
    hint = "write the values, with copy_, or do it outside of the compiled function"
    if config.require_full:
        raise CaptureError(f"{message}, and eager has to run it", site=site, hint=hint)
    message += (f" at {site}" if site else "") + f", and so it runs natively: {hint}"
    emit(Warned(message))
    warnings.warn(message, stacklevel=2)


def _check_predicates(part: fx.GraphModule) -> None:
    """Refuse a cond whose predicate has not one element, as eager does: Dynamo lets it pass.

    Raises:
        CaptureError: there is one.
    """
    for node in part.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
        predicate = node.args[0]
        val = predicate.meta.get("val") if isinstance(predicate, fx.Node) else None
        count = val.numel() if isinstance(val, torch.Tensor) else 1
        if isinstance(count, int) and count != 1:
            raise CaptureError(
                f"torch.cond expects one element to decide by, and its predicate has {count}",
                site=site_of(node.meta),
                hint="make one of them, with .all() or .any(), or choose each with torch.where",
            )


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
