"""A recorded Program -> Captured: replayed on fake tensors, decomposed, with the user's places."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._pytree import tree_flatten, tree_map

from torch_galley.capture.fx import Captured
from torch_galley.capture.lazy.trace import Program, Step, Value
from torch_galley.core.config import Config
from torch_galley.ops.decompose import decompositions


def replay(program: Program, config: Config) -> Captured:
    """Turn a program into a functional ATen graph of its inputs, whose outputs are in order."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return _run(program, tensors)

    tensors = [value.tensor for value in program.inputs]
    graph = _trace(run, tensors)
    if any(map(_writes, graph.graph.nodes)):
        # A decomposition that writes its own temporaries.
        graph = _trace(torch.func.functionalize(run, remove="mutations"), tensors)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Captured(graph, "lazy", config)


def _trace(run: Any, tensors: list[Any]) -> fx.GraphModule:
    return make_fx(run, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        a.alias_info is not None and a.alias_info.is_write for a in schema.arguments
    )


def _run(program: Program, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    inputs = {id(value): t for value, t in zip(program.inputs, tensors, strict=True)}
    results: dict[int, list[Any]] = {}

    def tensor(arg: Any) -> Any:
        if not isinstance(arg, Value):
            return arg
        if id(arg) in inputs:
            return inputs[id(arg)]
        assert arg.step is not None
        return results[arg.step.number][arg.index]

    for step in program.steps:
        mark = _last_node()
        args, kwargs = tree_map(tensor, (step.args, step.kwargs))
        found = tree_flatten(step.op(*args, **kwargs))[0]
        results[step.number] = [
            # A written tensor keeps its dtype, whatever the functional form computes in.
            r.to(kind[1]) if kind is not None and r.dtype != kind[1] else r
            for r, kind in zip(found, step.kinds, strict=True)
        ]
        _place(step, mark)
    return [tensor(value) for value in program.outputs]


def _last_node() -> fx.Node | None:
    mode = get_proxy_mode()
    return next(iter(reversed(mode.tracer.graph.nodes)), None) if mode is not None else None


def _place(step: Step, mark: fx.Node | None) -> None:
    """Give the nodes made after `mark` the step's place in the user's code."""
    mode = get_proxy_mode()
    if mode is None:
        return
    trace = step.stack_trace()
    for node in reversed(mode.tracer.graph.nodes):
        if node is mark:
            return
        node.meta["stack_trace"] = trace
