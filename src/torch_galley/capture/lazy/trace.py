"""What was recorded: immutable values, the steps that compute them, and a program of steps.

Steps are kept alive by the values that need them alone, so a result that nobody can read any
more is never computed: there is no list of pending operations.
"""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from torch_galley.core.errors import CaptureError

Frame = tuple[str, int, str]
"""File, line and function of a place in the user's code."""
Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a result."""

_OURS = tuple(
    str(path) for path in (Path(torch.__file__).parent, Path(__file__).resolve().parents[2])
)
_SKIPPED = (*_OURS, "<frozen ")
_MAX_FRAMES = 8
_numbers = itertools.count()


class Step:
    """One recorded operation: a functional ATen overload with Values where tensors were."""

    __slots__ = ("args", "frames", "kinds", "kwargs", "number", "op")

    def __init__(
        self,
        op: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kinds: tuple[Kind | None, ...],
    ):
        self.number = next(_numbers)
        self.op, self.args, self.kwargs, self.kinds = op, args, kwargs, kinds
        self.frames = user_frames()

    def sources(self) -> Iterable[Value]:
        """Yield the values this step reads."""
        for leaf in tree_leaves((self.args, self.kwargs)):
            if isinstance(leaf, Value):
                yield leaf

    def stack_trace(self) -> str:
        """Return the user's frames as torch.fx keeps them, outermost first."""
        lines = []
        for file, line, function in reversed(self.frames):
            lines.append(f'  File "{file}", line {line}, in {function}')
            if code := linecache.getline(file, line).strip():
                lines.append(f"    {code}")
        return "\n".join(lines)


class Value:
    """An immutable tensor value: computed already, or a result of a recorded step."""

    __slots__ = ("dtype", "error", "index", "shape", "step", "tensor")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        tensor: torch.Tensor | None = None,
        step: Step | None = None,
        index: int = 0,
    ):
        self.shape, self.dtype = shape, dtype
        self.tensor = tensor
        """A CPU tensor that nobody writes; None while pending."""
        self.step, self.index = step, index
        self.error: Exception | None = None
        """What went wrong when it was to be computed."""

    @staticmethod
    def ready(tensor: torch.Tensor) -> Value:
        """Wrap a CPU tensor that nobody else will write."""
        return Value(tuple(tensor.shape), tensor.dtype, tensor=tensor)

    @property
    def pending(self) -> bool:
        """Whether it waits for a flush."""
        return self.tensor is None and self.error is None

    def check(self) -> None:
        """Raise if it was to be computed and could not be."""
        if self.error is not None:
            raise CaptureError(
                f"a value was lost when computing it failed: {self.error}"
            ) from self.error


def record(op: OpOverload, *args: Any, kind: Kind, **kwargs: Any) -> Value:
    """Record an operation of one result whose shape and dtype are known; return the result.

    Example: `record(aten.permute.default, value, [1, 0], kind=((3, 2), torch.float32))`
    """
    return Value(*kind, step=Step(op, args, kwargs, (kind,)))


def user_frames() -> tuple[Frame, ...]:
    """Return the frames of the user's own code on the stack, innermost first."""
    frame = sys._getframe(1)
    found: list[Frame] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_SKIPPED):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


@dataclass(frozen=True)
class Program:
    """Recorded steps in order, what they start from, and what is wanted of them."""

    steps: tuple[Step, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @staticmethod
    def reaching(wanted: Iterable[Value]) -> Program:
        """Return the program that computes `wanted`, pending values, and nothing else."""
        outputs = {id(value): value for value in wanted}
        steps: dict[int, Step] = {}
        inputs: dict[int, Value] = {}
        stack = [value.step for value in outputs.values()]
        while stack:
            step = stack.pop()
            assert step is not None
            if step.number in steps:
                continue
            steps[step.number] = step
            for value in step.sources():
                value.check()
                if value.pending:
                    stack.append(value.step)
        ordered = [steps[number] for number in sorted(steps)]
        for step in ordered:
            for value in step.sources():
                if not value.pending:
                    inputs.setdefault(id(value), value)
        by_place = sorted(outputs.values(), key=lambda v: (v.step.number, v.index))  # type: ignore[union-attr]
        return Program(tuple(ordered), tuple(inputs.values()), tuple(by_place))

    def key(self) -> tuple[Any, ...]:
        """Return a hashable description: equal for programs that one plan can serve.

        It is the structure itself, so that two programs of one hash stay two.
        """
        place = {step.number: i for i, step in enumerate(self.steps)}
        known = {id(value): i for i, value in enumerate(self.inputs)}

        def spell(arg: Any) -> Any:
            if isinstance(arg, Value):
                if not arg.pending:
                    return ("input", known[id(arg)])
                assert arg.step is not None
                return ("result", place[arg.step.number], arg.index)
            if isinstance(arg, list | tuple):
                return (type(arg).__name__, *map(spell, arg))
            if isinstance(arg, dict):
                return tuple((name, spell(item)) for name, item in sorted(arg.items()))
            # 1, 1.0 and True are equal to Python; 0.0 and -0.0 too, and nan not even to itself.
            return (type(arg).__name__, repr(arg) if isinstance(arg, float | complex) else arg)

        return (
            tuple((s.op, spell(s.args), spell(s.kwargs), s.kinds) for s in self.steps),
            tuple((v.shape, v.tensor.stride(), v.dtype) for v in self.inputs),  # type: ignore[union-attr]
            tuple(spell(value) for value in self.outputs),
        )
