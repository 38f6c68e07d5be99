"""torch's type promotion for pointwise operators, in one place, so that no lowering has its own.

Every tensor argument is cast to one *compute* dtype and the result to the dtype that capture
recorded. As torch's CPU kernels do, half-precision types compute in float32 and are rounded once.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from torch import fx
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes, get_computation_dtype

from torch_galley.capture.fx import is_tensor
from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten.cast import number
from torch_galley.ops.half import rounded

aten = torch.ops.aten

_SELECTORS = {"condition", "mask"}
"""Arguments that choose and take no part in the arithmetic."""

_OPERANDS = {"self", "other", "exponent", "input", "x", "n"}
_OPERANDS |= {"element", "elements", "test_element", "test_elements"}
"""Scalar arguments that take part in promotion, as a tensor would."""

_WIDE_NUMBERS = {
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.div.Tensor_mode,
    aten.div.Scalar_mode,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
}
"""With a half-precision tensor, eager takes a number on the right, or a tensor without dimensions,
in float32 here. Elsewhere it rounds numbers, and tensors of other dtypes, to the half type."""

_SUMS = {
    aten.add.Tensor,
    aten.add.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.rsub.Tensor,
    aten.rsub.Scalar,
}
"""Eager rounds alpha to the half type here. Factors elsewhere are float32's."""

HALF = (torch.float16, torch.bfloat16)


def compute_dtype(node: fx.Node, result: torch.dtype) -> torch.dtype | None:
    """Return the dtype to compute a pointwise node in, None to leave the arguments alone."""
    target = node.target
    assert isinstance(target, OpOverload)
    tensors, operands = [], []
    for argument, value in zip(target._schema.arguments, node.args, strict=False):
        if argument.name in _SELECTORS:
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            val = item.meta.get("val") if isinstance(item, fx.Node) else item
            if isinstance(val, torch.Tensor):
                tensors.append(val)
                operands.append(val)
            elif argument.name in _OPERANDS and isinstance(val, int | float | complex):
                operands.append(val)
    if not tensors:
        return None
    if any(t.dtype.is_complex for t in tensors) and not result.is_complex:
        return None if result is not torch.bool else _common(operands)
    if result is torch.bool:
        return _common(operands)
    complex_in = any(t.dtype.is_complex for t in tensors) or any(
        isinstance(operand, complex) for operand in operands
    )
    if result.is_complex and not complex_in:
        return None  # polar, complex: real parts in, complex out
    return get_computation_dtype(result)


def _common(operands: list[Any]) -> torch.dtype:
    compute, _ = elementwise_dtypes(*operands, type_promotion_kind=KIND.DEFAULT)
    return compute


def _narrow(node: fx.Node) -> torch.dtype:
    """Return the dtype to which torch promotes a node's tensors."""
    tensors = [n.meta["val"] for n in node.all_input_nodes if is_tensor(n)]
    _, result = elementwise_dtypes(*tensors, type_promotion_kind=KIND.DEFAULT)
    return result


def promote(
    node: fx.Node, args: list[Any], kwargs: dict[str, Any], compute: torch.dtype
) -> tuple[list[Any], dict[str, Any]]:
    """Return a node's arguments with every array but the selectors cast to `compute`.

    A Python number that stands for a tensor becomes an array too, but for an exponent, since
    small ones have formulas of their own.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    result = node.meta["val"].dtype
    if result is torch.bool:  # a comparison: what matters is what is compared
        result = _narrow(node)
    dtype = XLA_DTYPE[compute]

    def cast(argument: Any, value: Any) -> Any:
        if argument.name in _SELECTORS:
            return value
        if isinstance(value, list):
            return [cast(argument, item) for item in value]
        if argument.name == "alpha" and target in _SUMS and result in HALF:
            return _as_half(value, result)
        operand, to = argument.name in _OPERANDS and str(argument.type) != "int", dtype
        if result in HALF and (operand or isinstance(value, jax.Array)):
            several = isinstance(value, jax.Array) and value.ndim > 0
            if argument.name == "other" and target in _WIDE_NUMBERS and not several:
                to = "float32"
            else:
                value = _as_half(value, result)
        if isinstance(value, jax.Array):
            return value.astype(to)
        if isinstance(value, int | float | complex) and (operand or str(argument.type) == "Tensor"):
            return value if target is aten.pow.Tensor_Scalar else number(value, to)
        return value

    arguments = target._schema.arguments
    named = {argument.name: argument for argument in arguments}
    return (
        [cast(argument, value) for argument, value in zip(arguments, args, strict=False)],
        {name: cast(named[name], value) for name, value in kwargs.items()},
    )


def _as_half(value: Any, dtype: torch.dtype) -> Any:
    """Return an operand, rounded to a half type where it is of another type."""
    if isinstance(value, jax.Array):
        to = XLA_DTYPE[dtype]
        return value if value.dtype.name == to else rounded(value, to)
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=dtype).item()
    return value
