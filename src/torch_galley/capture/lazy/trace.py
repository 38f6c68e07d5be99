"""What was recorded: immutable values, the steps that compute them, and a program of steps.

Steps are kept alive by the values that need them alone, so a result that nobody can read any
more is never computed: there is no list of pending operations.

A step is its recipe (all that is alike in steps of one kind) and its operands. Recipes are made
once and compared by identity, so that a program's key is a flat list of recipes and places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from torch_galley.capture.lazy.place import Place, here, stack_trace
from torch_galley.core.errors import CaptureError

Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a result."""

_made = 0


@dataclass(frozen=True)
class Operand:
    """Stands in a recipe's arguments for the tensor that each step has of its own."""

    index: int


@dataclass(frozen=True)
class Number:
    """Stands in a recipe's arguments for a Python number that each step has of its own."""

    index: int


class Recipe:
    """An operator, its arguments less what steps have of their own, and its results' kinds."""

    __slots__ = ("args", "kinds", "kwargs", "op", "volatile")

    def __init__(
        self,
        op: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kinds: tuple[Kind | None, ...],
        *,
        volatile: bool = False,
    ):
        self.op, self.args, self.kwargs, self.kinds = op, args, kwargs, kinds
        self.volatile = volatile
        """Whether its numbers are expected to be others at the next step of training."""

    def filled(self, operands: Any, numbers: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return args and kwargs with what stands for operands and numbers replaced."""

        def fill(arg: Any) -> Any:
            if isinstance(arg, Operand):
                return operands[arg.index]
            return numbers[arg.index] if isinstance(arg, Number) else arg

        return tree_map(fill, (self.args, self.kwargs))


class Step:
    """One recorded operation."""

    __slots__ = ("number", "numbers", "operands", "place", "position", "recipe")

    def __init__(self, recipe: Recipe, operands: tuple[Value, ...], numbers: tuple[Any, ...] = ()):
        global _made
        _made += 1
        self.number = _made
        self.recipe, self.operands, self.numbers = recipe, operands, numbers
        self.place: Place = here()
        self.position = -1
        """Where it stands in the program that is being made."""

    def stack_trace(self) -> str:
        """Return the user's frames as torch.fx keeps them, outermost first."""
        return stack_trace(self.place)


def made() -> int:
    """Return how many steps were ever recorded."""
    return _made


class Value:
    """An immutable tensor value: computed already, or a result of a recorded step."""

    __slots__ = ("dtype", "error", "index", "redraw", "shape", "step", "tensor")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        tensor: torch.Tensor | None = None,
        step: Step | None = None,
        index: int = 0,
    ):
        self.shape, self.dtype = shape, dtype
        self.tensor = tensor
        """A CPU tensor that nobody writes; None while pending."""
        self.step, self.index = step, index
        self.error: BaseException | None = None
        """What went wrong when it was to be computed."""
        self.redraw: Any = None
        """For random numbers: a function that draws a new tensor like it."""

    @staticmethod
    def ready(tensor: torch.Tensor) -> Value:
        """Wrap a CPU tensor that nobody else will write."""
        return Value(tuple(tensor.shape), tensor.dtype, tensor)

    @property
    def pending(self) -> bool:
        """Whether it waits for a flush."""
        return self.tensor is None and self.error is None

    def check(self) -> None:
        """Raise if it was to be computed and could not be."""
        if self.error is not None:
            told = f"{type(self.error).__name__}: {self.error}".removesuffix(": ")
            raise CaptureError(f"a value was lost when computing it failed: {told}") from self.error


def record(
    op: OpOverload, operands: tuple[Value, ...], *rest: Any, kind: Kind, **kwargs: Any
) -> Value:
    """Record an operation of one result whose shape and dtype are known; return the result.

    Example: `record(aten.permute.default, (value,), (1, 0), kind=((3, 2), torch.float32))`

    Args:
        op: takes the operands first, then the rest and the keyword arguments.
        operands: the values it reads.
        rest: other arguments, hashable: tuples for lists.
        kind: shape and dtype of the result.
        kwargs: likewise.
    """
    recipe = _plain_recipe(op, len(operands), rest, tuple(map(type, rest)), kind, *kwargs.items())
    return Value(*kind, None, Step(recipe, operands))


@lru_cache(maxsize=8192)
def _plain_recipe(
    op: OpOverload, operands: int, rest: Any, _types: Any, kind: Kind, *kwargs: Any
) -> Recipe:
    # The types are part of the cache's key: 1, 1.0 and True are equal to Python.
    arguments = [list(arg) if isinstance(arg, tuple) else arg for arg in rest]
    return Recipe(op, (*map(Operand, range(operands)), *arguments), dict(kwargs), (kind,))


@dataclass(frozen=True)
class Program:
    """Recorded steps in order, what they start from, and what is wanted of them."""

    steps: tuple[Step, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    key: tuple[Any, ...]
    """Equal for programs that differ in the values of inputs and numbers alone: the structure
    itself, not a hash of it."""

    @staticmethod
    def reaching(wanted: Iterable[Value]) -> Program:
        """Return the program that computes `wanted`, pending values, and nothing else."""
        outputs = {id(value): value for value in wanted}
        steps: dict[int, Step] = {}
        stack = [value.step for value in outputs.values()]
        while stack:
            step = stack.pop()
            assert step is not None
            if step.number in steps:
                continue
            steps[step.number] = step
            for value in step.operands:
                if value.tensor is None:
                    value.check()
                    stack.append(value.step)
        ordered = tuple(steps[number] for number in sorted(steps))
        key: list[Any] = []
        inputs: dict[int, int] = {}
        values: list[Value] = []
        for position, step in enumerate(ordered):
            step.position = position
            key.append(step.recipe)
            for value in step.operands:
                if value.tensor is None:
                    key += (value.step.position, value.index)  # type: ignore[union-attr]
                    continue
                place = inputs.get(id(value))
                if place is None:
                    place = inputs[id(value)] = len(values)
                    values.append(value)
                key += (-1, place)
        by_place = sorted(outputs.values(), key=lambda v: (v.step.position, v.index))  # type: ignore[union-attr]
        key.append(tuple((v.step.position, v.index) for v in by_place))  # type: ignore[union-attr]
        key.append(tuple(v.tensor.stride() for v in values))  # type: ignore[union-attr]
        return Program(ordered, tuple(values), tuple(by_place), tuple(key))

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The Python numbers of all its steps, in order."""
        return tuple(number for step in self.steps for number in step.numbers)
