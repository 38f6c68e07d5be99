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

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten.cast import number

_SELECTORS = {"condition", "mask"}
"""Arguments that choose and take no part in the arithmetic."""

_OPERANDS = {"self", "other", "exponent", "input", "test_element", "test_elements", "x", "n"}
"""Scalar arguments that take part in promotion, as a tensor would."""


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


def promote(node: fx.Node, args: list[Any], compute: torch.dtype) -> list[Any]:
    """Return `args` with every array but the selectors cast to `compute`.

    A Python number in a tensor's place becomes an array too, so that a lowering always gets what
    the schema says.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    dtype = XLA_DTYPE[compute]

    def cast(value: Any) -> Any:
        if isinstance(value, jax.Array):
            return value.astype(dtype)
        return [cast(item) for item in value] if isinstance(value, list) else value

    out = []
    for argument, value in zip(target._schema.arguments, args, strict=False):
        if isinstance(argument.type, torch.TensorType) and isinstance(value, int | float | complex):
            value = number(value, dtype)
        out.append(value if argument.name in _SELECTORS else cast(value))
    return out
