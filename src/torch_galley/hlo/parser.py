"""HLO text, as XLA prints it in any of its forms or as people write it by hand, to a Module.

Names may have percent signs or not, operands may have shapes or not, layouts may be left out, and
the line `HloModule ...` may be missing. Whether names are known and shapes fit, check.py says.
"""

from __future__ import annotations

import re

from torch_galley.hlo.attribute import unquoted
from torch_galley.hlo.lexer import Cursor
from torch_galley.hlo.model import Computation, Instruction, Module
from torch_galley.hlo.shape import Shape, read
from torch_galley.hlo.source import Place, Sources

_NAME = re.compile(r"[\w.\-]+")
_ENTRY = re.compile(r"ENTRY\b")
_HEAD = re.compile(r"(ROOT\s+)?(%?)([\w.\-]+)\s*=\s*")
_SIMPLE = re.compile(r"[a-z]\w*\[[\d,]*\](?:\{[\d,]*\})?(?= )")
"""A shape as almost all are, to be looked up instead of read."""
_OPCODE = re.compile(r"([a-z][\w\-]*)\s*\(")
_OPERANDS = re.compile(r"((?:%?[\w.\-]+(?:, (?:/\*index=\d+\*/)?%?[\w.\-]+)*)?)\)")
"""Operands without shapes, as XLA prints them, up to the closing parenthesis."""
_OPERAND = re.compile(r"%?([\w.\-]+)")
_INDEX = re.compile(r"/\*.*?\*/", re.S)
_SHAPED = re.compile(r"\(|\w+\s*\[")
_ATTRIBUTE = re.compile(r"\s*,\s*([A-Za-z_][\w.\-]*)\s*=[ \t]*")
_QUICK = re.compile(r'(?:\{[^{}"/]*\}|[\w.%><\-]+)(?=[,\s])')
"""A value as most are: a list without lists in it, or a word."""
_MORE = re.compile(r"[ \t]+(?=\{)")
"""Between the two words of `replica_groups=mesh['x'=4] {'x'}`."""
_NUMBER = re.compile(r"\d{1,9}")
_ROW = re.compile(r"[ \t]*(\d{1,9})[ \t]+([^\n]*)(?:\n|$)")
_FIELD = re.compile(r"(\w+)=(\d{1,18})")
_TITLE = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)\b")
_ENDS = ",)}] \t\r\n"


def parse(text: str) -> Module:
    """Read a module.

    Example:
        >>> module = parse("ENTRY %main { ROOT %p = f32[4,16] parameter(0) }")
        >>> module.entry.root.shape.sizes
        (4, 16)

    Args:
        text: HLO before or after optimisation.

    Raises:
        HloSyntaxError: it is none; the message shows the place, `facts` has `line`, `column` and
            `span`.
    """
    return _Reader(text).module()


class _Reader:
    def __init__(self, text: str) -> None:
        self.cursor = Cursor(text)
        self.shapes: dict[str, Shape] = {}
        self.percent: bool | None = None
        """Whether the first instruction's name has a percent sign."""

    def module(self) -> Module:
        cursor = self.cursor
        name, attributes = "", dict[str, str]()
        if cursor.taken("HloModule"):
            name = cursor.match(_NAME, "the module's name")[0]
            attributes = self.attributes()
        sources = self.sources()
        computations: list[Computation] = []
        cursor.gap()
        while cursor.place < len(cursor.text):
            computations.append(self.computation())
            cursor.gap()
        if not computations:
            cursor.fail("expected a computation, such as ENTRY main { ... }")
        percent = self.percent is not False
        return Module(name, tuple(computations), attributes, sources, percent, cursor.text)

    def computation(self) -> Computation:
        cursor = self.cursor
        start = cursor.place
        entry = cursor.maybe(_ENTRY) is not None
        cursor.taken("%")
        name = cursor.match(_NAME, "a computation, such as ENTRY main { ... }")
        signature = cursor.taken("(")
        if signature:  # the parameters say the same
            cursor.value(")")
            cursor.expect(")", "the end of the parameters")
            cursor.expect("->", "-> and the shape of the result")
            read(cursor)
        cursor.expect("{", "{ and instructions")
        instructions: list[Instruction] = []
        while not cursor.taken("}"):
            if cursor.place >= len(cursor.text):
                cursor.fail(f"{name[0]} has no closing brace", name.start(), len(name[0]))
            instructions.append(self.instruction())
        if not instructions:
            cursor.fail(f"{name[0]} has no instructions", name.start(), len(name[0]))
        attributes = self.attributes()
        span = (start, cursor.place)
        return Computation(name[0], tuple(instructions), entry, signature, attributes, span)

    def instruction(self) -> Instruction:
        cursor = self.cursor
        head = cursor.match(_HEAD, "an instruction, such as c = f32[4] add(a, b)")
        if self.percent is None:
            self.percent = bool(head[2])
        kind = self.shape()
        opcode = cursor.match(_OPCODE, "an operation, and its operands in parentheses")[1]
        literal, operands, shapes = "", (), ()
        if opcode in ("constant", "parameter"):
            literal = self.literal(opcode)
        else:
            operands, shapes = self.operands()
        attributes = self.attributes()
        span = (head.start(), cursor.place)
        return Instruction(
            head[3], kind, opcode, operands, literal, attributes, bool(head[1]), shapes, span
        )

    def shape(self) -> Shape:
        cursor = self.cursor
        simple = _SIMPLE.match(cursor.text, cursor.place)
        if simple is None:
            return read(cursor)
        found = self.shapes.get(simple[0])
        if found is None:
            found = self.shapes[simple[0]] = read(cursor)
        cursor.place = simple.end()
        return found

    def literal(self, opcode: str) -> str:
        cursor = self.cursor
        start = cursor.place
        literal = cursor.value(")").strip()
        if opcode == "parameter" and not _NUMBER.fullmatch(literal):
            cursor.fail("expected the parameter's number", start)
        cursor.expect(")", ") behind the value")
        return literal

    def operands(self) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
        """Read operands, behind the opening parenthesis."""
        cursor = self.cursor
        if quick := _OPERANDS.match(cursor.text, cursor.place):
            cursor.place = quick.end()
            plain = _INDEX.sub("", quick[1]) if "/" in quick[1] else quick[1]
            return tuple(_OPERAND.findall(plain)), ()
        operands: list[str] = []
        shapes: list[Shape] = []
        while not cursor.taken(")"):
            if operands:
                cursor.expect(",", "a comma, or the end of the operands")
                cursor.gap()
            if _SHAPED.match(cursor.text, cursor.place):
                shapes.append(self.shape())
            operands.append(cursor.match(_OPERAND, "an operand")[1])
            if shapes and len(shapes) != len(operands):
                cursor.fail("either all operands have shapes before them, or none")
        return tuple(operands), tuple(shapes)

    def attributes(self) -> dict[str, str]:
        """Read `, name=value` as often as it is there."""
        cursor = self.cursor
        found: dict[str, str] = {}
        while head := _ATTRIBUTE.match(cursor.text, cursor.place):
            cursor.place = head.end()
            if quick := _QUICK.match(cursor.text, cursor.place):
                cursor.place, value = quick.end(), quick[0]
            else:
                value = cursor.value(_ENDS)
                while more := _MORE.match(cursor.text, cursor.place):
                    cursor.place = more.end()
                    value += more[0] + cursor.value(_ENDS)
            if not value:
                cursor.fail(f"the attribute {head[1]} has no value")
            if head[1] in found:
                cursor.fail(f"a second attribute {head[1]}", head.start(1), len(head[1]))
            found[head[1]] = value
        if cursor.taken(","):
            cursor.fail("expected an attribute, such as dimensions={0}")
        return found

    def sources(self) -> Sources:
        """Read the tables of files, functions, places and frames, where there are any."""
        cursor = self.cursor
        tables: dict[str, dict[int, str]] = {}
        while title := cursor.maybe(_TITLE):
            rows = tables.setdefault(title[1], {})
            cursor.gap()
            while row := _ROW.match(cursor.text, cursor.place):
                rows[int(row[1])] = row[2].strip()
                cursor.place = row.end()
                cursor.gap()
        frames = {i: _fields(row) for i, row in tables.get("StackFrames", {}).items()}
        return Sources(
            {i: unquoted(row) for i, row in tables.get("FileNames", {}).items()},
            {i: unquoted(row) for i, row in tables.get("FunctionNames", {}).items()},
            {i: _place(_fields(row)) for i, row in tables.get("FileLocations", {}).items()},
            {
                i: (row.get("file_location_id", 0), row.get("parent_frame_id", 0))
                for i, row in frames.items()
            },
        )


def _fields(row: str) -> dict[str, int]:
    return {key: int(value) for key, value in _FIELD.findall(row)}


def _place(said: dict[str, int]) -> Place:
    return Place(
        said.get("file_name_id", 0),
        said.get("function_name_id", 0),
        said.get("line", 0),
        said.get("end_line", 0),
        said.get("column", 0),
        said.get("end_column", 0),
    )
