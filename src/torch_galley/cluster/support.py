"""Can XLA take this node? None, or the Reason why not. Checks go from cheap to dear."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_galley.capture.body import bodies, body_of
from torch_galley.capture.fx import is_symbolic_number, is_tensor, reads_data
from torch_galley.capture.outputs import SHARES_MEMORY
from torch_galley.core import reasons
from torch_galley.core.reasons import Reason
from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.draw import SEED
from torch_galley.ops.refused import refused
from torch_galley.ops.registry import lookup, lookup_number
from torch_galley.ops.schema import is_torchs, written_by

HasDevice = Callable[[torch.device], bool]
"""Whether jax has the counterpart of a torch device."""


def support(node: fx.Node, has_device: HasDevice, inside: bool = False) -> Reason | None:
    """Return None if the node can go into a cluster, else the Reason why it stays native.

    `operator.getitem` follows its producer and is not asked about.

    Args:
        node: a call.
        has_device: whether jax has the counterpart of a torch device.
        inside: whether the node is in a branch or a loop's body, where a view may lie wherever
            a number says.
    """
    target = node.target
    name = name_of(target)
    if isinstance(target, HigherOrderOperator):
        return _control_support(node, has_device)
    if not isinstance(target, OpOverload):
        return reasons.NoLowering(f"function {name}")
    if written_by(target):
        return reasons.SideEffect(name)
    if target is SEED:
        return reasons.Seed(name)
    if draws(target):
        return reasons.Random(name)
    if is_symbolic_number(node) or _shape_is_data(node, inside):
        return reasons.DataDependentShape(name)  # a number, or a shape that has to be looked at
    if node.meta.get(SHARES_MEMORY):
        return reasons.SharedMemory(name)
    lowering = lookup(target)
    if lowering is None:
        dynamic = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        if dynamic & set(target.tags):
            return reasons.DataDependentShape(name)
        kind = reasons.NoLowering if is_torchs(target.namespace) else reasons.OwnOperator
        return kind(name)
    if reason := _tensors_support(node, has_device):
        return reason
    dtype = refused(target, [n.meta.get("val") if isinstance(n, fx.Node) else n for n in node.args])
    if dtype is not None:
        return reasons.Refused(name, str(dtype).removeprefix("torch."))
    if lowering.when is not None:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
        return lowering.when(*args, **kwargs)
    return None


def _functionalised(node: fx.Node) -> OpOverload | None:
    """Return the writing operator of a user's that torch has wrapped to make a function of it."""
    wraps = name_of(node.target) in ("auto_functionalized", "auto_functionalized_v2")
    inner = node.args[0] if wraps and node.args else None
    return inner if isinstance(inner, OpOverload) else None


def _control_support(
    node: fx.Node, has_device: HasDevice, numbers_inside: bool = False
) -> Reason | None:
    """Return why an operator that takes graphs stays native: what is in them, mostly.

    Args:
        node: the node.
        has_device: as for `support`.
        numbers_inside: whether a Python number among its inputs is known only while a loop runs.
    """
    name = name_of(node.target)
    inner = bodies(node)
    if (written := _functionalised(node)) is not None:
        return reasons.WritesArguments(name_of(written))
    if node.kwargs:
        return reasons.SideEffect(name)  # what its graphs write
    val = node.meta.get("val")
    results = val if isinstance(val, tuple | list) else [val]
    if node.meta.get("unbacked_bindings") or any(map(_is_number, results)):
        return reasons.DataDependentShape(name)
    if lookup(node.target) is None:
        return reasons.NoLowering(f"higher-order operator {name}")
    if reason := _tensors_support(node, has_device, inner):
        return reason
    for arg, graph in inner.items():
        if reason := _body_support(graph.graph, has_device, numbers_inside):
            return reasons.InsideBody(name, str(arg.target), str(reason))
    return None


def _body_support(graph: fx.Graph, has_device: HasDevice, numbers_inside: bool) -> Reason | None:
    """Return why the first operation of a body that XLA can't take is one, None for none."""
    running: set[fx.Node] = set()  # numbers that are known only while it runs
    for node in graph.nodes:
        given = [arg for arg in node.all_input_nodes if arg in running]
        if node.op == "placeholder":
            if numbers_inside and is_symbolic_number(node):
                running.add(node)
        elif node.op == "output":
            if reason := _output_support(node):
                return reason
        elif node.op == "get_attr":
            constant = body_of(node) is None
            if constant and (reason := _tensor_support(node.meta.get("val"), has_device)):
                return reason
        elif is_getitem(node):
            continue
        elif isinstance(node.target, HigherOrderOperator):
            if reason := _control_support(node, has_device, bool(given)):
                return reason
        elif reads_data(node) or (given and is_symbolic_number(node)):
            if reason := _number_support(node):
                return reason
            running.add(node)
        elif is_symbolic_number(node):
            continue  # follows from sizes
        elif reason := _reads_numbers(node, given) or support(node, has_device, inside=True):
            return reason
    return None


def _output_support(node: fx.Node) -> Reason | None:
    found = node.args[0] if isinstance(node.args[0], tuple | list) else [node.args[0]]
    for item in found:
        if not (isinstance(item, fx.Node) and is_tensor(item)):
            return reasons.NotATensor(type(item).__name__)
    return None


def _number_support(node: fx.Node) -> Reason | None:
    """Return why a number that is known only while a body runs can't be computed there."""
    name = name_of(node.target)
    if not isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool):
        return reasons.DataDependentShape(name)
    return None if lookup_number(node.target) else reasons.NoLowering(f"function {name}")


_READ_NUMBERS = {
    torch.ops.aten.select.int: "index",
    torch.ops.aten.full.default: "fill_value",
    torch.ops.aten.full_like.default: "fill_value",
    torch.ops.aten.scalar_tensor.default: "s",
}
"""Operators, and which argument may be a number that is known only while a body runs."""


def _reads_numbers(node: fx.Node, numbers: Sequence[fx.Node]) -> Reason | None:
    """Return why an operation can't have such numbers among its arguments."""
    if not numbers:
        return None
    target, name = node.target, name_of(node.target)
    unknown = reasons.ArgumentForm(name, "a number is known only while the loop runs")
    if not isinstance(target, OpOverload) or (lowering := lookup(target)) is None:
        return unknown
    for argument, value in zip(target._schema.arguments, node.args, strict=False):
        if value not in numbers:
            continue
        operand = lowering.is_promoted and str(argument.type) in ("number", "Tensor")
        if not operand and argument.name != _READ_NUMBERS.get(target):
            return unknown
    nested = [arg for arg in numbers if arg not in node.args]  # in a list, or named
    return unknown if nested else None


def _shape_is_data(node: fx.Node, inside: bool) -> bool:
    """Whether a node's shape has to be looked at; inside a body, where a view lies need not be."""
    bound = node.meta.get("unbacked_bindings") or {}
    return any(
        not (inside and path and getattr(path[-1], "name", "") == "storage_offset")
        for path in bound.values()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def draws(target: Any) -> bool:
    """Whether an operator draws random numbers.

    A lowering of one that torch tags so says (attention has a dropout argument) that it draws
    none; its `when` answers for the argument.
    """
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return seeded and lookup(target) is None


def name_of(target: Any) -> str:
    """Return what an operator is called in reports."""
    return (
        str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", str(target))
    )


_UNRECORDED = object()
"""Stands for the value of a node for which capture recorded none (torch's saved RNG states)."""


def _values(node: fx.Node, without: Container[fx.Node] = ()) -> Iterator[Any]:
    """Yield the fake values of a node's inputs and outputs."""
    for source in [node, *(arg for arg in node.all_input_nodes if arg not in without)]:
        val = source.meta.get("val", _UNRECORDED)
        yield from val if isinstance(val, tuple | list) else [val]


def _devices(node: fx.Node) -> set[torch.device]:
    """Return the devices of a node's results and inputs; numbers as tensors may be anywhere."""
    inputs = [source.meta.get("val") for source in node.all_input_nodes]
    val = node.meta.get("val")
    results = val if isinstance(val, tuple | list) else [val]
    found = [t for t in results if isinstance(t, torch.Tensor)]
    found += [t for t in inputs if isinstance(t, torch.Tensor) and t.dim() > 0]
    return {tensor.device for tensor in found}


def _tensors_support(
    node: fx.Node, has_device: HasDevice, without: Container[fx.Node] = ()
) -> Reason | None:
    """Return why XLA can't have a node's inputs or outputs, None if it can."""
    for value in _values(node, without):
        if reason := _tensor_support(value, has_device):
            return reason
    if len(devices := _devices(node)) > 1:
        return reasons.MixedDevices(name_of(node.target), " and ".join(sorted(map(str, devices))))
    return None


def _tensor_support(value: Any, has_device: HasDevice) -> Reason | None:
    if value is None or _is_number(value):
        return None
    if value is _UNRECORDED:
        return reasons.NotATensor("value of unknown kind")
    if not isinstance(value, torch.Tensor):
        return reasons.NotATensor(type(value).__name__)
    if value.layout is not torch.strided or value.is_quantized:
        return reasons.NotATensor(f"{value.layout} tensor".removeprefix("torch."))
    if value.dtype not in XLA_DTYPE:
        return reasons.UnsupportedDtype(str(value.dtype).removeprefix("torch."))
    if not has_device(value.device):
        return reasons.NoDevice(value.device.type)
    return None


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one of its producer's outputs."""
    return node.target is operator.getitem
