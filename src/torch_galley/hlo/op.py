"""An instruction with all that its cost depends on, and costs as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_galley.hlo import attribute
from torch_galley.hlo.model import Instruction
from torch_galley.hlo.shape import DYNAMIC, Array, Shape, Tuple

_POINTER = 8
_SIZE = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs, per run.

    Example: `Cost(flops=64, bytes=48, written=16).read` is `32`
    """

    flops: int = 0
    transcendentals: int = 0
    """Exponentials, logarithms, roots, powers, sines, random numbers; they are no FLOPs."""
    bytes: int = 0
    """Read and written."""
    written: int = 0
    known: bool = True
    """False if nobody knows what some of it costs, such as a custom call: then it is at least
    this."""

    @property
    def read(self) -> int:
        """The bytes read."""
        return self.bytes - self.written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
            self.written + other.written,
            self.known and other.known,
        )

    def times(self, count: int) -> Cost:
        """Return what so many runs cost."""
        return Cost(
            self.flops * count,
            self.transcendentals * count,
            self.bytes * count,
            self.written * count,
            self.known,
        )


MISSING = Cost(known=False)
"""Of a computation that isn't there."""
_TOKEN = Array("token")


@dataclass(frozen=True, slots=True)
class Op:
    """An instruction and what its cost depends on."""

    instruction: Instruction
    operands: tuple[Shape, ...]
    totals: Mapping[str, Cost]
    """Of the computations that it calls, by name."""

    @property
    def shape(self) -> Shape:
        """What it gives."""
        return self.instruction.shape

    @property
    def result(self) -> Array:
        """What it gives, of a tuple the first array."""
        return next(self.shape.arrays(), _TOKEN)

    def operand(self, index: int) -> Array:
        """One operand, of a tuple the first array; a token if there is none."""
        if index >= len(self.operands):
            return _TOKEN
        return next(self.operands[index].arrays(), _TOKEN)

    def said(self, name: str) -> str:
        """What an attribute says."""
        return self.instruction.attributes.get(name, "")

    def called(self, *keys: str) -> list[Cost]:
        """What the computations cost that these attributes name; one at least."""
        found = [name for key in keys for name in attribute.names(self.said(key))]
        return [self.totals.get(name, MISSING) for name in found] or [MISSING]


def nbytes(shape: Shape) -> int:
    """Return the bytes of a shape as XLA:CPU keeps it.

    Of a tuple that is the table of pointers to its parts, and an array of unknown size has its
    sizes behind it.

    Example:
        >>> from torch_galley import hlo
        >>> nbytes(hlo.shape("(f32[100], s32[])")), nbytes(hlo.shape("f32[<=10]"))
        (16, 44)
    """
    if isinstance(shape, Tuple):
        return _POINTER * len(shape.parts)
    dynamic = shape.bounded or DYNAMIC in shape.sizes
    return shape.nbytes + (_SIZE * len(shape.sizes) if dynamic else 0)


def leaves(shape: Shape) -> int:
    """Return the bytes of all arrays of a shape.

    Example:
        >>> from torch_galley import hlo
        >>> leaves(hlo.shape("(f32[100], s32[])"))
        404
    """
    return sum(nbytes(one) for one in shape.arrays())


def at(values: tuple[int, ...], index: int) -> int:
    """Return one of some sizes, 1 if there is none such.

    Example:
        >>> at((4, 8), -1), at((4, 8), 2)
        (8, 1)
    """
    return values[index] if -len(values) <= index < len(values) else 1
