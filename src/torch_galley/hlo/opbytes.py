"""Bytes that one instruction reads and writes, by the rules of XLA's own analysis.

Note [What XLA counts as moved]: all operands and all results, but for these. A tuple as an operand
is its table of pointers, as a result the arrays in it. Slices and gathers read what they give;
updates and scatters read and write the updates alone, for the rest stays where it is. Of a
triangular matrix half is read. A constant in memory costs nothing before something reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_galley.hlo import attribute
from torch_galley.hlo.op import Op, at, leaves, nbytes

_FREE = ["add-dependency", "after-all", "bitcast", "constant", "domain", "parameter"]


def moved(op: Op) -> tuple[int, int]:
    """Return the bytes that an instruction reads and writes.

    Example: `f32[8] add(f32[8], f32[8])` gives `(64, 32)`
    """
    return _RULES.get(op.instruction.opcode, _all)(op)


def _all(op: Op) -> tuple[int, int]:
    return sum(nbytes(one) for one in op.operands), leaves(op.shape)


def _nothing(op: Op) -> tuple[int, int]:
    return 0, 0


def _part(op: Op) -> tuple[int, int]:
    """Of many scalars that say where, as of an array of places, one operand counts."""
    given = nbytes(op.shape)
    return given + nbytes(op.operand(1)), given


def _update(op: Op) -> tuple[int, int]:
    update = nbytes(op.operand(1))
    return update + nbytes(op.operand(2)), update


def _scattered(op: Op) -> tuple[int, int]:
    middle = len(op.operands) // 2
    updates = sum(nbytes(one) for one in op.operands[middle + 1 :])
    return 2 * updates + nbytes(op.operand(middle)), updates


def _transpose(op: Op) -> tuple[int, int]:
    before, after = op.operand(0), op.result
    dims = attribute.ints(op.said("dimensions"))
    moved = tuple(at(dims, dim) for dim in after.minor_to_major)
    return (0, 0) if moved == before.minor_to_major else _all(op)


def _half_read(op: Op) -> tuple[int, int]:
    return nbytes(op.operand(0)) // 2 + nbytes(op.operand(1)), nbytes(op.shape)


def _half_both(op: Op) -> tuple[int, int]:
    size = nbytes(op.operand(0))
    return size - size // 2, size // 2


_RULES: dict[str, Callable[[Op], tuple[int, int]]] = {
    **dict.fromkeys(_FREE, _nothing),
    "get-tuple-element": _nothing,
    "tuple": lambda op: (0, nbytes(op.shape)),
    "slice": lambda op: (leaves(op.shape), leaves(op.shape)),
    "dynamic-slice": _part,
    "gather": _part,
    "dynamic-update-slice": _update,
    "scatter": _scattered,
    "transpose": _transpose,
    "triangular-solve": _half_read,
    "cholesky": _half_both,
    "infeed": lambda op: (0, leaves(op.shape)),
    "outfeed": lambda op: (sum(leaves(one) for one in op.operands), 0),
}
"""Bytes read and written, where they are not all operands and all results."""
