"""A recorded Program -> Captured: replayed on fake tensors, decomposed, with the user's places."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from torch_galley.capture.fx import Captured, memory_owner
from torch_galley.capture.lazy import number
from torch_galley.capture.lazy.trace import Program, Step, Value
from torch_galley.core.config import Config
from torch_galley.ops.decompose import decompositions
from torch_galley.ops.schema import written_by


def replay(program: Program, config: Config, varying: Set[int] = frozenset()) -> Captured:
    """Turn a program into a functional ATen graph of its inputs, whose outputs are in order.

    Args:
        program: what was recorded.
        config: settings for the later stages.
        varying: which of the program's numbers are inputs too: if any, there are two inputs more,
            the float64 and the int64 ones, each in order.
    """
    numbers, extra = _numbers(program, varying)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        own = len(program.inputs)
        return _run(program, tensors[:own], numbers, tensors[own:])

    # Each a tensor of its own: make_fx takes one that comes twice for one input.
    given = [value.tensor.detach() for value in program.inputs if value.tensor is not None]
    tensors = [*given, *extra]
    graph = _trace(run, tensors)
    if any(map(_writes, graph.graph.nodes)):
        # A decomposition that writes its own temporaries.
        graph = _trace(torch.func.functionalize(run, remove="mutations"), tensors)
    _give_memory(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Captured(graph, "lazy", config)


def _give_memory(graph: fx.Graph) -> None:
    """Copy each output that is an input's memory or another output's: a functional form leaves out
    the copy that its operator made (aten.repeat), and each value has memory of its own.
    """
    (output,) = graph.find_nodes(op="output")
    taken: set[fx.Node] = set(graph.find_nodes(op="placeholder"))
    results = list(output.args[0])
    for i, node in enumerate(results):
        owner = memory_owner(node)
        if owner in taken:
            with graph.inserting_before(output):
                results[i] = graph.call_function(torch.ops.aten.clone.default, (node,))
            with node.meta["val"].fake_mode:
                results[i].meta = dict(node.meta, val=node.meta["val"].clone())
        taken.add(owner)
    output.args = (results,)


def _numbers(program: Program, varying: Set[int]) -> tuple[list[Any], list[torch.Tensor]]:
    """Return each number, or where it is among the packed ones, and these packed."""
    if not varying:
        return list(program.numbers), []
    packed: tuple[list[Any], list[Any]] = ([], [])
    found: list[Any] = []
    for i, value in enumerate(program.numbers):
        if i not in varying:
            found.append(value)
            continue
        which = int(type(value) is int)
        found.append((which, len(packed[which])))
        packed[which].append(value)
    dtypes = (torch.float64, torch.int64)
    return found, [
        torch.tensor(values, dtype=dtype, device="cpu")
        for values, dtype in zip(packed, dtypes, strict=True)
    ]


def _trace(run: Any, tensors: list[Any]) -> fx.GraphModule:
    return make_fx(run, decomposition_table=decompositions(), tracing_mode="fake")(*tensors)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(written_by(node.target))


def _run(program: Program, tensors: Any, numbers: list[Any], packed: Any) -> list[torch.Tensor]:
    inputs = {id(value): t for value, t in zip(program.inputs, tensors, strict=True)}
    results: list[list[Any]] = []
    given = iter(numbers)

    def tensor(value: Value) -> Any:
        if value.tensor is not None:
            return inputs[id(value)]
        assert value.step is not None
        return results[value.step.position][value.index]

    def number_of(spelled: Any) -> Any:
        if not isinstance(spelled, tuple):
            return spelled
        which, place = spelled
        return number.Input(packed[which][place])

    for step in program.steps:
        mark = _last_node()
        own = [number_of(next(given)) for _ in step.numbers]
        found = number.call(step.recipe, [tensor(value) for value in step.operands], own)
        results.append(
            [
                # A written tensor keeps its dtype, whatever the functional form computes in.
                r.to(kind[1]) if kind is not None and r.dtype != kind[1] else r
                for r, kind in zip(found, step.recipe.kinds, strict=True)
            ]
        )
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
    trace = ""
    for node in reversed(mode.tracer.graph.nodes):
        if node is mark:
            return
        trace = trace or step.stack_trace()
        node.meta["stack_trace"] = trace
