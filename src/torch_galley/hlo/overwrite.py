"""Finds instructions that may write over an operand which they still read: a fault of XLA:CPU.

A fusion may put its result where an operand lay that nobody needs afterwards, if it reads that
operand only at the very element it writes. XLA (jaxlib 0.10.2, buffer assignment) looks at one
operand at a time. Where two operands are the same memory, one being a bitcast of the other, the
second may be read anywhere, after it was written over: the numbers are wrong, without a sign.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(ENTRY )?%?\S+ \(.*\{$\n((?:^ .*\n)*)", re.M)
_INSTRUCTION = re.compile(r"^ +(ROOT )?%?(\S+) = (.+?) ([\w-]+)\((.*)", re.M)
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.-]+)")
_IN_PLACE = {"fusion", "add", "subtract", "multiply", "divide", "maximum", "minimum", "select"}


def overwritten(text: str) -> list[str]:
    """Return the instructions of a scheduled module that may write over what they still read.

    Example: `overwritten(compiled.hlo())` is `[]`, or else `["add_select_fusion"]`

    Args:
        text: an HLO module after optimisation, in XLA's own notation.
    """
    if " bitcast(" not in text:
        return []
    return [name for part in _COMPUTATION.finditer(text) for name in _in(part[2], bool(part[1]))]


def _in(body: str, entry: bool) -> Iterator[str]:
    """Yield the instructions of one computation."""
    memory: dict[str, str] = {}
    """Name of an instruction to that of the instruction whose memory it shows."""
    types: dict[str, str] = {}
    kept: set[str] = set()
    """What has memory that is never written over: the arguments of the program, and results."""
    last: dict[str, str] = {}
    suspects: list[tuple[str, str]] = []
    for match in _INSTRUCTION.finditer(body):
        root, name, kind, opcode, rest = match.groups(default="")
        operands: list[str] = _NAME.findall(rest.split("), ")[0])
        read = [memory.get(operand, operand) for operand in dict.fromkeys(operands)]
        memory[name] = read[0] if opcode == "bitcast" else name
        types[name] = kind
        if opcode == "constant" or (opcode == "parameter" and entry):
            kept.add(name)
        if root:
            kept |= {memory[name], *(read if opcode == "tuple" else ())}
        last |= dict.fromkeys(read, name)
        if opcode in _IN_PLACE:
            suspects += [(name, m) for m in dict.fromkeys(read) if read.count(m) > 1]
    for name, shared in suspects:
        if shared in kept or last[shared] != name:
            continue
        if _bits(types.get(shared, "")) & _bits(types[name]):  # else it would not fit there
            yield name


def _bits(kind: str) -> set[int]:
    """Return the sizes of the arrays of a type, in bits."""
    return {
        int(bits or 8) * math.prod(int(size) for size in dims.split(",") if size)
        for _, bits, dims in _ARRAY.findall(kind)
    }
