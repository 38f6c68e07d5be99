"""Can XLA take this node? None, or the Reason why not. Checks go from cheap to dear."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_galley.capture.fx import is_symbolic_number
from torch_galley.capture.outputs import SHARES_MEMORY
from torch_galley.core import reasons
from torch_galley.core.reasons import Reason
from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.draw import SEED
from torch_galley.ops.refused import refused
from torch_galley.ops.registry import is_torchs, lookup, writes

HasDevice = Callable[[torch.device], bool]
"""Whether jax has the counterpart of a torch device."""


def support(node: fx.Node, has_device: HasDevice) -> Reason | None:
    """Return None if the node can go into a cluster, else the Reason why it stays native.

    `operator.getitem` follows its producer and is not asked about.
    """
    target = node.target
    name = name_of(target)
    if not isinstance(target, OpOverload):
        if (written := _functionalised(node)) is not None:
            return reasons.WritesArguments(name_of(written))
        kind = "higher-order operator" if isinstance(target, HigherOrderOperator) else "function"
        return reasons.NoLowering(f"{kind} {name}")
    if writes(target):
        return reasons.SideEffect(name)
    if target is SEED:
        return reasons.Seed(name)
    if draws(target):
        return reasons.Random(name)
    if is_symbolic_number(node) or node.meta.get("unbacked_bindings"):
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
    for value in _values(node):
        if reason := _tensor_support(value, has_device):
            return reason
    if len(devices := _devices(node)) > 1:
        return reasons.MixedDevices(name, " and ".join(sorted(map(str, devices))))
    dtype = refused(target, (n.meta.get("val") for n in node.args if isinstance(n, fx.Node)))
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


def _values(node: fx.Node) -> Iterator[Any]:
    """Yield the fake values of a node's inputs and outputs."""
    for source in [node, *node.all_input_nodes]:
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


def _tensor_support(value: Any, has_device: HasDevice) -> Reason | None:
    if value is None or isinstance(
        value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool
    ):
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
