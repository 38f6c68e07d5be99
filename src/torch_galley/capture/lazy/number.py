"""Python numbers as inputs of a program, so that a learning rate that changes compiles nothing.

A step keeps its numbers apart from its recipe. Whether one becomes an input or a constant of the
program is decided when that is built: numbers of operators that write in place are inputs from
the start (optimizers change theirs), others once they have been seen to change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from torch_galley.capture.lazy.trace import Recipe
from torch_galley.ops.draw import of_torch, seed_of

FOREACH = "_foreach_"
EACH = torch._C.DispatchKey.CompositeExplicitAutograd
_HALF = (torch.float16, torch.bfloat16)
_SCALAR_TYPES = ("number", "Optional[number]", "List[number]")


def _scaled(x: Any, alpha: Any) -> Any:
    return x if isinstance(alpha, int | float) and alpha == 1 else x * alpha


_RULES: dict[str, Callable[..., Any]] = {
    "add": lambda x, other, alpha=1: x + _scaled(other, alpha),
    "sub": lambda x, other, alpha=1: x - _scaled(other, alpha),
    "rsub": lambda x, other, alpha=1: other - _scaled(x, alpha),
    "mul": lambda x, other: x * other,
    "div": lambda x, other: x / other,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "lerp": torch.lerp,
    "pow": torch.pow,
    "clamp_min": torch.maximum,
    "clamp_max": torch.minimum,
    "masked_fill": lambda x, mask, value: torch.where(mask, value, x),
    "full": lambda size, value, **_: value.expand(size).clone(),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}
"""By name: the operator's meaning with its numbers as 0-dim tensors of the dtype it computes in."""

_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
_OWN_PRECISION = {"sub", "rsub", "pow", *_COMPARISONS}
"""Those for which eager rounds the number to half precision first."""
_WHOLE_NUMBERS = {"add", "sub", "rsub", "mul", "full", *_COMPARISONS}
"""Those whose meaning on int64 does not hang on the number: nothing is divided by it."""


def base_name(op: OpOverload) -> str:
    """Return the name of the functional operator on one tensor."""
    return op.overloadpacket.__name__.removeprefix(FOREACH).rstrip("_")


def places(op: OpOverload) -> dict[int | str, bool]:
    """Return which arguments may be kept as numbers, by position and by name.

    Example: of `aten.addcdiv.default` the argument "value".
    """
    if of_torch(op) is not None:
        return {1: True}  # which draw it is
    if base_name(op) not in _RULES or op._overloadname.endswith("_mode"):
        return {}
    found: dict[int | str, bool] = {}
    for i, argument in enumerate(op._schema.arguments):
        if str(argument.type) in (*_SCALAR_TYPES, "Tensor") and argument.name != "self":
            found[argument.name if argument.kwarg_only else i] = True
            found[argument.name] = True
    return found


def may_vary(op: OpOverload, number: Any, dtype: torch.dtype | None) -> bool:
    """Whether a number may be an input, given the dtype of what it meets.

    Half precision is computed in single where eager does that. An integer must
    fit in the dtype that eager gives it, so only those of int64 may vary.
    """
    if of_torch(op) is not None:
        return True
    if dtype is None:
        return False
    name = base_name(op)
    if dtype.is_floating_point:
        fits = abs(number) < 3e38 or number != number or abs(number) == float("inf")
        return fits and (dtype.itemsize > 2 or (dtype in _HALF and name not in _OWN_PRECISION))
    return dtype is torch.int64 and type(number) is int and name in _WHOLE_NUMBERS


@dataclass(frozen=True)
class Input:
    """A number that is an input of the program: a 0-dim tensor, float64 or int64."""

    tensor: torch.Tensor


def call(recipe: Recipe, operands: Sequence[torch.Tensor], numbers: Sequence[Any]) -> list[Any]:
    """Call a recipe's operator, its numbers Python's or Inputs, and return its results."""
    args, kwargs = recipe.filled(operands, numbers)
    foreach = recipe.op.overloadpacket.__name__.startswith(FOREACH)
    if not any(isinstance(number, Input) for number in numbers):
        # The kernel for all devices takes a _foreach_ operator apart.
        op = functools.partial(recipe.op._op_dk, EACH) if foreach else recipe.op
        return tree_leaves(op(*args, **kwargs))
    if of_torch(recipe.op) is not None:
        seed, number, *rest = args
        return tree_leaves(recipe.op(seed_of(seed, number.tensor), 0, *rest, **kwargs))
    if not foreach:
        return [_one(recipe, 0, args, kwargs)]
    columns = [arg if isinstance(arg, list) else [arg] * len(args[0]) for arg in args]
    rows = zip(*columns, strict=True)
    return [_one(recipe, i, row, kwargs) for i, row in enumerate(rows)]


def _one(recipe: Recipe, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = base_name(recipe.op)
    kind = recipe.kinds[index]
    assert kind is not None
    wide = args[0].dtype if isinstance(args[0], torch.Tensor) else kind[1]
    if kind[1].is_floating_point:
        wide = torch.promote_types(wide, kind[1])
    wide = torch.float32 if wide in _HALF else wide

    def ready(arg: Any) -> Any:
        if isinstance(arg, Input):
            return arg.tensor.to(wide)
        return arg.float() if isinstance(arg, torch.Tensor) and arg.dtype in _HALF else arg

    return _RULES[name](*map(ready, args), **{k: ready(v) for k, v in kwargs.items()})
