"""Barriers where XLA's algebraic simplifier would change a result (as seen in jaxlib 0.10.2).

XLA folds log(exp(x)) to x, exp(log(x)) to x, and sqrt(x*x) to abs(x), although the middle may
overflow to inf or be NaN (openxla/xla#42732). It takes (x + a) - b to be x + (a - b), (x * a) * b
to be x * (a * b), and (x / y) / z to be x / (y * z): large numbers then lose no digits that they
lose in eager, or small ones become zero, infinite or NaN. An optimization barrier between the two
keeps eager's result. It is put only where such a pair meets, since a barrier also keeps XLA from
simplifications that are right. It also drops an added zero, see Note [Added zeros] in
ops.aten.elementwise. Integer squares and divisors have their own barriers, in the lowerings of
mul and div.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import fx

from torch_galley.capture.fx import is_view

aten = torch.ops.aten

_LOGS = {aten.log.default, aten.log2.default, aten.log10.default, aten.log1p.default}
_EXPS = {aten.exp.default, aten.exp2.default, aten.expm1.default}
_POWERS = {
    aten.mul.Tensor,
    aten.pow.Tensor_Scalar,
    aten.pow.Tensor_Tensor,
    aten.square.default,
}
_ROOTS = {aten.sqrt.default, aten.rsqrt.default}
_PAIRS = (
    (_LOGS, _EXPS | _POWERS | _ROOTS),
    (_EXPS, _LOGS),
    (_ROOTS, _POWERS),
    ({aten.pow.Tensor_Scalar}, _POWERS | _ROOTS | _EXPS),
)
"""Operators, and those whose result as a first argument they must not be simplified with."""
_SUMS = {aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar}
_PRODUCTS = {aten.mul.Tensor, aten.div.Tensor}
_QUOTIENTS = {aten.div.Tensor, aten.reciprocal.default}
_TRANSPARENT = {
    aten.clone.default,
    aten._to_copy.default,
    aten.neg.default,
    aten.abs.default,
    aten.relu.default,
}


def barred(node: fx.Node, constants: Container[fx.Node]) -> list[int]:
    """Return which arguments of `node` must be kept from being simplified together with it.

    Args:
        node: a node that is being lowered.
        constants: nodes whose value depends on no input of the cluster.
    """
    if node.target in _SUMS:
        return [i for i, arg in enumerate(node.args) if _bars_sum(arg, constants)]
    if node.target in _PRODUCTS:
        return [i for i, arg in enumerate(node.args) if _bars_product(arg, constants)]
    if not (node.args and isinstance(node.args[0], fx.Node)):
        return []
    pair = any(
        node.target in outer and _producer(node.args[0]).target in inner for outer, inner in _PAIRS
    )
    return [0] if pair else []


def _bars_sum(arg: Any, constants: Container[fx.Node]) -> bool:
    if not isinstance(arg, fx.Node):
        return arg == 0
    return arg in constants or _with_constant(_producer(arg), _SUMS, constants)


def _bars_product(arg: Any, constants: Container[fx.Node]) -> bool:
    if not isinstance(arg, fx.Node):
        return False
    producer = _producer(arg)
    powers = producer.target in _QUOTIENTS | _EXPS | _ROOTS
    return powers or _with_constant(producer, {aten.mul.Tensor}, constants)


def _with_constant(node: fx.Node, kind: Container[Any], constants: Container[fx.Node]) -> bool:
    """Whether an operator of some kind has an operand that XLA knows."""
    return node.target in kind and any(
        not isinstance(arg, fx.Node) or arg in constants for arg in node.args[:2]
    )


def constant(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return those of a cluster's nodes, in order, whose value depends on none of its inputs."""
    found: set[fx.Node] = set()
    for node in nodes:
        if node.target is aten.full_like.default or found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _producer(node: fx.Node) -> fx.Node:
    """Step back through nodes that XLA looks through: they move, copy, or change signs."""
    while node.target in _TRANSPARENT or is_view(node.target):
        source = node.args[0]
        if not isinstance(source, fx.Node):
            break
        node = source
    return node
