"""What one instruction costs: its own work, or what it calls."""

from __future__ import annotations

from collections.abc import Callable

from torch_galley.hlo.op import Cost, Op
from torch_galley.hlo.opbytes import moved
from torch_galley.hlo.opflops import KNOWN, flops


def op_cost(op: Op) -> Cost:
    """Return what an instruction costs.

    A loop costs its condition and its body once, a conditional of each number the most that a
    branch has. A fusion's bytes are not here, see fusionbytes.py.

    Example:
        >>> from torch_galley import hlo
        >>> exp = hlo.parse("ENTRY e { ROOT x = bf16[3] exponential(p) }").entry.root
        >>> op_cost(Op(exp, (hlo.shape("bf16[3]"),), {})).bytes
        12
    """
    if whole := _WHOLE.get(op.instruction.opcode):
        return whole(op)
    read, written = moved(op)
    work = flops(op)
    return Cost(work.flops, work.transcendentals, read + written, written, work.known)


def _fusion(op: Op) -> Cost:
    inside = op.called("calls")[0]
    return Cost(inside.flops, inside.transcendentals, known=inside.known)


def _while(op: Op) -> Cost:
    return op.called("body")[0] + op.called("condition")[0]


def _conditional(op: Op) -> Cost:
    branches = op.called("branch_computations", "true_computation", "false_computation")
    return Cost(
        max(one.flops for one in branches),
        max(one.transcendentals for one in branches),
        max(one.bytes for one in branches),
        max(one.written for one in branches),
        all(one.known for one in branches),
    )


_WHOLE: dict[str, Callable[[Op], Cost]] = {
    "fusion": _fusion,
    "call": lambda op: op.called("to_apply")[0],
    "async-start": lambda op: op.called("calls")[0],
    "while": _while,
    "conditional": _conditional,
}
"""What costs what it calls."""

RECOGNISED = KNOWN | frozenset(_WHOLE)
"""Opcodes that there is a rule for."""
