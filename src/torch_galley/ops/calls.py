"""How XLA calls what is not its own: what a call is, and calls of a function of Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch._ops import OpOverload
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from torch_galley.core.errors import ConfigError, RunError
from torch_galley.core.spec import TORCH_DTYPE, XLA_DTYPE, TensorSpec
from torch_galley.ops import ffi
from torch_galley.ops.own import whole
from torch_galley.ops.running import running

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Arguments:
    """What an operator was called with, less the tensors. Equal are those that are spelled alike:
    1 is not 1.0, and nan is nan."""

    leaves: tuple[Any, ...]
    """None for a tensor."""
    places: tuple[int, ...]
    """Which are tensors."""
    spec: TreeSpec
    """How they are nested, as (positional, keyword-only) arguments."""

    @classmethod
    def of(
        cls, overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Arguments, list[Any]]:
        """Return the arguments of a call, defaults too, and its tensors (or arrays) in order."""
        leaves, spec = tree_flatten(whole(overload, args, kwargs))
        places = tuple(i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape"))
        tensors = [leaves[i] for i in places]
        plain = tuple(None if i in places else leaf for i, leaf in enumerate(leaves))
        return cls(plain, places, spec), tensors

    def call(self, function: Function, tensors: Iterable[Any]) -> Any:
        """Call a function with these arguments and other tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.spec)
        return function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arguments) and self._spelled == other._spelled

    def __hash__(self) -> int:
        return hash(self._spelled)

    @property
    def _spelled(self) -> tuple[str, str]:
        return repr(self.leaves), repr(self.spec)


@dataclass(frozen=True)
class Call:
    """A call while it is traced."""

    overload: OpOverload
    arguments: Arguments
    arrays: list[jax.Array]
    """The tensors among its arguments."""
    likes: list[jax.ShapeDtypeStruct]
    """What its results are like."""


Emit = Callable[[Call], Sequence[jax.Array]]
"""Returns a call's results as traced values."""


def results_of(
    overload: OpOverload, shape: Function, arguments: Arguments, arrays: Iterable[jax.Array]
) -> tuple[list[jax.ShapeDtypeStruct], TreeSpec]:
    """Return what a shape rule says of a call's results, and how they are nested."""
    fakes = [
        torch.empty(array.shape, dtype=TORCH_DTYPE[array.dtype.name], device="meta")
        for array in arrays
    ]
    results, spec = tree_flatten(arguments.call(shape, fakes))
    check_dtypes(overload, results)
    likes = [jax.ShapeDtypeStruct(tuple(t.shape), XLA_DTYPE[t.dtype]) for t in results]
    return likes, spec


def check_dtypes(overload: OpOverload, tensors: Iterable[torch.Tensor]) -> None:
    """Raise ConfigError if a handler would get, or give, a dtype that no program of ours has."""
    for tensor in tensors:
        if tensor.dtype not in XLA_DTYPE:
            name = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(
                f"{overload} is called by XLA, and tensors of {name} can't be passed to XLA",
                hint=f"pass it another dtype, .view() of {name} has its bits; "
                f"there are {', '.join(XLA_DTYPE.values())}",
            )


def to_python(name: str, function: Function) -> Emit:
    """Return what makes a call of a Python function."""

    def emit(call: Call) -> Sequence[jax.Array]:
        def run(given: list[torch.Tensor], results: list[torch.Tensor]) -> None:
            with torch.no_grad(), running(call.overload, by_xla=True):
                made = tree_leaves(_called(call.overload, call.arguments, function, given))
            _check(call.overload, given, made, results)
            for result, tensor in zip(results, made, strict=True):
                result.copy_(tensor)

        number = ffi.number_of((id(function), call.arguments), run)
        return ffi.call(number, name, call.arrays, call.likes)

    return emit


def run_python(
    overload: OpOverload, arguments: Arguments, function: Function, tensors: Sequence[torch.Tensor]
) -> Any:
    """Run an operator of a Python function natively: what eager calls."""
    with running(overload):
        return _called(overload, arguments, function, tensors)


def _called(
    overload: OpOverload, arguments: Arguments, function: Function, tensors: Sequence[torch.Tensor]
) -> Any:
    """Return what a function gave, if it is what the operator's schema says."""
    made = arguments.call(function, tensors)
    returns = [str(result.type) for result in overload._schema.returns]
    values = [made] if len(returns) == 1 else made
    several = isinstance(values, list | tuple)
    if not several or len(values) != len(returns) or not all(map(_is_of, returns, values)):
        raise RunError(
            f"{overload} gave {_kind(made)}, its schema says {' and '.join(returns)}",
            hint="return what the schema says, dense tensors with data",
        )
    return made


def _is_of(kind: str, value: Any) -> bool:
    """Whether a result is a tensor, or a list of such, that has data in dense memory."""
    if kind == "List[Tensor]":
        return isinstance(value, list | tuple) and all(_is_of("Tensor", one) for one in value)
    dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return dense and not value.is_meta


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_kind, value))
        return f"a {type(value).__name__} of ({inner})"
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}"
    return f"a tensor of device {value.device}"


def _check(
    overload: OpOverload,
    given: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> None:
    """Raise unless a function gave what its shape rule says, and wrote nothing."""
    if any(tensor._version for tensor in given):
        raise RunError(
            f"{overload} writes its arguments",
            hint="work on a clone: XLA, and torch's autograd, take it for a function",
        )
    if _spelled(made) != _spelled(results):
        raise RunError(
            f"{overload} gave {_spelled(made)}, its shape rule says {_spelled(results)}",
            hint="mend shape=, or the function",
        )


def _spelled(values: Sequence[torch.Tensor]) -> str:
    return " and ".join(str(TensorSpec(tuple(v.shape), v.dtype)) for v in values)
