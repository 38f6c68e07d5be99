"""Shapes of HLO: arrays with an element type, sizes and a layout, tuples of shapes, tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from torch_galley.hlo.lexer import Cursor

_ELEMENT = re.compile(r"[a-z][a-z0-9]*(?=\s*\[)")
_KNOWN = re.compile(
    r"pred|token|opaque|[su](?:1|2|4|8|16|32|64)|f(?:16|32|64)|bf16|c(?:64|128)"
    r"|f8e\d\w*|f4e2m1fn"
)
_SIZE = re.compile(r"(<=)?(\d{1,19})(?!\d)|\?")
_LAYOUT = re.compile(r"\{([^{}\"\n]*)\}")
_DIGITS = re.compile(r"[a-z]+(\d+)")
_PACKED = re.compile(r"E\((\d{1,3})\)")
"""The bits of an element in memory, where a layout says them: `s4[8]{0:E(4)}`."""
_DEEPEST = 64
"""How deep a tuple may be nested; XLA's own are three deep."""
DYNAMIC = -1
"""A size that nobody knows, printed `?`."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array, or a token or an opaque value, which have no sizes.

    Example:
        >>> print(shape("f32[8,<=16]{1,0}"))
        f32[8,<=16]{1,0}
    """

    element: str
    """As XLA names it: f32, bf16, pred, s4, f8e4m3fn, c64, token, ..."""
    sizes: tuple[int, ...] = ()
    """DYNAMIC where it is unknown."""
    layout: str = ""
    """What is between the braces behind the sizes, "1,0" or "1,0:T(8,128)S(1)"; "" for none."""
    bounded: tuple[int, ...] = ()
    """Dimensions whose size is only a bound, printed `<=`."""

    @property
    def elements(self) -> int:
        """How many elements there are; none if a size is unknown, of bounded ones the most."""
        return math.prod(max(size, 0) for size in self.sizes)

    @property
    def bits(self) -> int:
        """The bits of one element: 8 of a pred, none of a token."""
        if self.element == "pred":
            return 8
        digits = _DIGITS.match(self.element)
        return int(digits[1]) if digits else 0

    @property
    def nbytes(self) -> int:
        """The bytes of all elements; small ones take a byte each if the layout packs none."""
        packed = _PACKED.search(self.layout) if "E" in self.layout else None
        bits = int(packed[1]) if packed else (self.bits + 7) // 8 * 8
        return (self.elements * bits + 7) // 8

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """The dimensions in the order of memory, the fastest first; row-major if it is open."""
        order = self.layout.split(":", 1)[0].strip()
        if not order:
            return tuple(range(len(self.sizes)))[::-1]
        return tuple(int(one) for one in order.split(","))

    def without_layout(self) -> Array:
        """Return the same array, its layout left open."""
        return Array(self.element, self.sizes, "", self.bounded) if self.layout else self

    def arrays(self) -> Iterator[Array]:
        """Yield itself."""
        yield self

    def __str__(self) -> str:
        sizes = ",".join(
            "?" if size == DYNAMIC else f"<={size}" if dim in self.bounded else str(size)
            for dim, size in enumerate(self.sizes)
        )
        return f"{self.element}[{sizes}]" + (f"{{{self.layout}}}" if self.layout else "")


@dataclass(frozen=True, slots=True)
class Tuple:
    """A tuple of shapes.

    Example:
        >>> shape("(f32[2]{0}, (s32[], token[]))").nbytes
        12
    """

    parts: tuple[Shape, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays in it."""
        return sum(one.nbytes for one in self.parts)

    @property
    def elements(self) -> int:
        """The elements of all arrays in it."""
        return sum(one.elements for one in self.parts)

    def without_layout(self) -> Tuple:
        """Return the same tuple, all layouts left open."""
        return Tuple(tuple(one.without_layout() for one in self.parts))

    def arrays(self) -> Iterator[Array]:
        """Yield the arrays in it, from left to right."""
        for one in self.parts:
            yield from one.arrays()

    def __str__(self) -> str:
        return f"({numbered([str(one) for one in self.parts])})"


Shape: TypeAlias = Array | Tuple


def numbered(parts: Sequence[str]) -> str:
    """Join the parts of a list as XLA does: a comment gives the number of every fifth.

    Example:
        >>> numbered(list("abcdef"))
        'a, b, c, d, e, /*index=5*/f'
    """
    if len(parts) <= 5:
        return ", ".join(parts)
    return ", ".join(f"/*index={i}*/{x}" if i and i % 5 == 0 else x for i, x in enumerate(parts))


@lru_cache(maxsize=4096)
def shape(text: str) -> Shape:
    """Read one shape.

    Example:
        >>> shape("bf16[8,16]{1,0}").nbytes
        256

    Raises:
        HloSyntaxError: it is none, or something follows it.
    """
    cursor = Cursor(text)
    found = read(cursor)
    cursor.gap()
    if cursor.place < len(text):
        cursor.fail("the shape ends here, but text follows")
    return found


def read(cursor: Cursor, depth: int = 0) -> Shape:
    """Read a shape at a cursor, which moves behind it.

    Raises:
        HloSyntaxError: there is none.
    """
    if not cursor.taken("("):
        return _array(cursor)
    if depth >= _DEEPEST:
        cursor.fail(f"tuples are nested more than {_DEEPEST} deep")
    parts: list[Shape] = []
    while not cursor.taken(")"):
        if parts:
            cursor.expect(",", "a comma or the end of this tuple")
        parts.append(read(cursor, depth + 1))
    return Tuple(tuple(parts))


def _array(cursor: Cursor) -> Array:
    element = cursor.match(_ELEMENT, "a shape, such as f32[4,16]")
    if not _KNOWN.fullmatch(element[0]):
        cursor.fail(f"{element[0]} is no element type", element.start(), len(element[0]))
    cursor.expect("[", "the sizes of an array, in brackets")
    sizes: list[int] = []
    bounded: list[int] = []
    while not cursor.taken("]"):
        if sizes:
            cursor.expect(",", "a comma or the end of the sizes")
        size = cursor.match(_SIZE, "a size, as 4, <=4 or ?")
        if size[1]:
            bounded.append(len(sizes))
        sizes.append(int(size[2]) if size[2] else DYNAMIC)
    layout = ""
    if braces := cursor.maybe(_LAYOUT):
        layout = braces[1].strip()
        _check_layout(cursor, braces, len(sizes))
    return Array(element[0], tuple(sizes), layout, tuple(bounded))


def _check_layout(cursor: Cursor, braces: re.Match[str], rank: int) -> None:
    order = braces[1].split(":", 1)[0].strip()
    if not order:
        return  # left open, or only tiles
    named = [one.strip() for one in order.split(",")]
    if sorted(named) != sorted(str(dim) for dim in range(rank)):
        dims = f"each of 0 to {rank - 1} once" if rank else "nothing, for there are no dimensions"
        cursor.fail(f"this layout should name {dims}", braces.start(), len(braces[0]))
