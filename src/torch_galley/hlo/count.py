"""Counts of an HLO module's text: instructions, fusions, moves of data, constants, bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+)(?: \(.*)? \{$|^(ENTRY )?%?([\w.-]+) \{$")
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?([\w.-]+) = (.+?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"[a-z]+(\d+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.-]+)")
_NAME = re.compile(r"%?([A-Za-z_][\w.-]*)")

_FREE = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant"}
"""What no code runs for."""
_COMBINERS = {"reduce", "reduce-window", "scatter", "sort", "map", "select-and-scatter"}
"""Instructions whose computation is a few scalar operations, part of their own."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, as far as counting goes."""

    name: str
    opcode: str
    nbytes: int
    """Of its result, a tuple's arrays summed."""
    operands: tuple[str, ...]
    called: tuple[str, ...]


@dataclass(frozen=True)
class Counts:
    """Counts of one HLO module."""

    instructions: int
    """Those that run; parameters, tuples, bitcasts, constants and what is in fusions left out."""
    fused: int
    """Those inside fusions."""
    fusions: int
    written_bytes: int
    """Results of what runs."""
    moves: int
    """Copies and transposes that run by themselves."""
    moved_bytes: int
    bitcasts: int
    """Reshapes and bitcasts, in fusions too: changes of shape that move nothing."""
    constants: int
    constant_bytes: int
    on_constants: int
    """Instructions all of whose operands are constants: what folding can take away."""


def count(text: str) -> Counts:
    """Return the counts of a module in XLA's notation, before or after optimisation.

    The bodies of loops and conditionals count once.

    Example:
        >>> found = count('''ENTRY main {
        ...   p = f32[4]{0} parameter(0)
        ...   ROOT t = f32[4]{0} tanh(p)
        ... }''')
        >>> found.instructions, found.written_bytes
        (1, 16)
    """
    computations = dict(_computations(text))
    fused, combining = set[str](), set[str]()
    for instructions in computations.values():
        for one in instructions:
            if one.opcode == "fusion":
                fused |= set(one.called)
            elif one.opcode in _COMBINERS or one.opcode.startswith("all-reduce"):
                combining |= set(one.called)
    outside = [
        i for name, many in computations.items() if name not in fused | combining for i in many
    ]
    inside = [i for name in fused for i in computations.get(name, ())]
    runs = [i for i in outside if i.opcode not in _FREE]
    moves = [i for i in runs if i.opcode in ("copy", "transpose")]
    everything = outside + inside
    constants = [i for i in everything if i.opcode == "constant"]
    # Names are unique in a module.
    fixed = {i.name for i in constants}
    on_constants = [
        i
        for i in everything
        if i.opcode not in _FREE and i.operands and fixed.issuperset(i.operands)
    ]
    return Counts(
        len(runs),
        sum(i.opcode not in _FREE for i in inside),
        sum(i.opcode == "fusion" for i in outside),
        sum(i.nbytes for i in runs),
        len(moves),
        sum(i.nbytes for i in moves),
        sum(i.opcode in ("bitcast", "reshape") for i in everything),
        len(constants),
        sum(i.nbytes for i in constants),
        len(on_constants),
    )


def intermediate_bytes(text: str) -> int:
    """Return the bytes of all values of the entry computation that are no results of it.

    That is what they would take if each had memory of its own; XLA lets them share.
    """
    entry = re.search(r"^ENTRY .*?\{$\n(.*?)^\}", text, re.M | re.S)
    if entry is None:
        return 0
    instructions = list(_instructions(entry[1].splitlines()))
    root = instructions[-1] if instructions else None
    results = {root.name, *(root.operands if root.opcode == "tuple" else ())} if root else set()
    return sum(i.nbytes for i in instructions if i.opcode not in _FREE and i.name not in results)


def _computations(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    name, lines = "", []
    for line in text.splitlines():
        if name:
            if line == "}":
                yield name, list(_instructions(lines))
                name, lines = "", []
            else:
                lines.append(line)
        elif line.endswith("{") and (match := _HEAD.match(line)):
            name = match[2] or match[4]


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    for line in lines:
        if match := _INSTRUCTION.match(line):
            name, kind, opcode, rest = match.groups()
            operands = ()
            if opcode not in ("constant", "parameter"):
                operands = tuple(_NAME.findall(re.sub(r"/\*.*?\*/", "", rest.split(")")[0])))
            yield Instruction(name, opcode, _nbytes(kind), operands, tuple(_CALLED.findall(rest)))


def _nbytes(kind: str) -> int:
    """Return the bytes of a type: bits are in its name, pred takes a byte."""
    total = 0
    for element, dims in _ARRAY.findall(kind):
        bits = _BITS.match(element)
        shape = math.prod(int(size) for size in dims.split(",") if size)
        total += shape * int(bits[1] if bits else 8) // 8
    return total
