"""Numbers that a loop carries, or a branch returns, as tensors without dimensions.

torch lets while_loop carry Python numbers and cond return them. A number is known while a program
is compiled, but these are not: so each becomes a tensor, which is read (`_local_scalar_dense`)
where the number is used. A loop whose numbers nobody uses afterwards then reads nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor

from torch_galley.capture.body import bodies

aten = torch.ops.aten

_DTYPES = {
    **dict.fromkeys((bool, torch.SymBool), torch.bool),
    **dict.fromkeys((int, torch.SymInt), torch.int64),
    **dict.fromkeys((float, torch.SymFloat), torch.float64),
}


def carry_tensors(graph: fx.Graph) -> bool:
    """Make the numbers that control flow carries and returns tensors, in bodies too. Idempotent.

    Example: `while_loop(cond, body, (0, x))` becomes `while_loop(cond, body, (scalar_tensor, x))`.

    Returns:
        Whether the graph was changed.
    """
    changed = False
    for node in list(graph.nodes):
        inner = list(bodies(node).values())
        for body in inner:
            carry_tensors(body.graph)
        if inner and isinstance(node.target, HigherOrderOperator):
            name = node.target.name()
            if name in ("while_loop", "cond"):
                changed = _retype(node, inner, carries=name == "while_loop") or changed
    if changed and graph.owning_module is not None:
        graph.owning_module.recompile()
    return changed


def _retype(node: fx.Node, inner: Sequence[fx.GraphModule], carries: bool) -> bool:
    results = node.meta.get("val")
    if not isinstance(results, tuple | list):
        return False
    device = next((v.device for v in _fakes(node)), torch.device("cpu"))
    dtypes = {i: _DTYPES[type(val)] for i, val in enumerate(results) if type(val) in _DTYPES}
    for body in inner:
        if carries:
            _take_tensors(body.graph, dtypes, device)
        if _return_tensors(body.graph, device) or dtypes:
            body.recompile()
    if not dtypes:
        return False
    if carries:
        condition, body, start, *rest = node.args
        carried: list[Any] = list(start)  # type: ignore[arg-type]
        with node.graph.inserting_before(node):
            for i, dtype in dtypes.items():
                carried[i] = _as_tensor(node.graph, carried[i], dtype, device)
        node.args = (condition, body, tuple(carried), *rest)
    made = [_fake(dtypes[i], device, node) if i in dtypes else v for i, v in enumerate(results)]
    node.meta["val"] = type(results)(made)
    bound = node.meta.pop("unbacked_bindings", None) or {}
    if sizes := {symbol: path for symbol, path in bound.items() if len(path) > 1}:
        node.meta["unbacked_bindings"] = sizes
    for pick in [user for user in node.users if user.target is operator.getitem]:
        place = pick.args[1]
        if place in dtypes:
            _read(pick, pick)
            pick.meta = dict(pick.meta, val=made[place])  # type: ignore[index]
    return True


def _read(node: fx.Node, after: fx.Node) -> None:
    """Replace a number, which is to become a tensor, by what reads that tensor."""
    if not node.users:
        return
    with node.graph.inserting_after(after):
        number = node.graph.call_function(aten._local_scalar_dense.default, (node,))
    number.meta = dict(node.meta)
    node.replace_all_uses_with(number, delete_user_cb=lambda user: user is not number)


def _take_tensors(graph: fx.Graph, dtypes: dict[int, torch.dtype], device: torch.device) -> None:
    """Make some inputs of a body tensors, and read them first of all."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for i, dtype in dtypes.items():
        if isinstance(inputs[i].meta["val"], torch.Tensor):
            continue  # a body of two loops
        _read(inputs[i], inputs[-1])
        inputs[i].meta = dict(inputs[i].meta, val=_fake(dtype, device, inputs[i]))


def _return_tensors(graph: fx.Graph, device: torch.device) -> bool:
    """Make the numbers among a body's results tensors; return whether there were any."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    several = isinstance(output.args[0], tuple | list)
    found: Any = list(output.args[0]) if several else [output.args[0]]  # type: ignore[arg-type]
    made = []
    with graph.inserting_before(output):
        for item in found:
            kind = type(item.meta.get("val")) if isinstance(item, fx.Node) else type(item)
            number = kind in _DTYPES
            made.append(_as_tensor(graph, item, _DTYPES[kind], device) if number else item)
    output.args = (tuple(made) if several else made[0],)
    return made != found


def _as_tensor(graph: fx.Graph, item: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    kwargs = {"dtype": dtype, "device": device}
    node = graph.call_function(aten.scalar_tensor.default, (item,), kwargs)
    node.meta["val"] = _fake(dtype, device, node)
    return node


def _fake(dtype: torch.dtype, device: torch.device, node: fx.Node) -> torch.Tensor:
    """Return a fake tensor without dimensions, of the mode that the node's graph is fake in."""
    for other in node.graph.nodes:
        for val in _fakes(other):
            with val.fake_mode:
                return torch.empty((), dtype=dtype, device=device)
    return torch.empty((), dtype=dtype, device="meta")


def _fakes(node: fx.Node) -> list[FakeTensor]:
    vals = node.meta.get("val")
    return [
        v for v in (vals if isinstance(vals, tuple | list) else [vals]) if isinstance(v, FakeTensor)
    ]
