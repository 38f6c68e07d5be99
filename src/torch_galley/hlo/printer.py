"""A module as text, in the form in which XLA prints it: what XLA wrote comes out as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_galley.hlo.shape import numbered
from torch_galley.hlo.source import Sources

if TYPE_CHECKING:
    from torch_galley.hlo.model import Computation, Instruction, Module

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def module_text(module: Module) -> str:
    """Return a module as text.

    Example:
        >>> from torch_galley import hlo
        >>> print(hlo.parse("ENTRY e { ROOT p = f32[4] parameter(0) }"), end="")
        HloModule module
        <BLANKLINE>
        ENTRY e {
          ROOT p = f32[4] parameter(0)
        }
        <BLANKLINE>
    """
    head = f"HloModule {module.name or 'module'}{_attributes(module.attributes)}\n\n"
    sources = _sources_text(module.sources) if module.sources else ""
    bodies = [computation_text(one, module.percent) + "\n\n" for one in module.computations]
    return head + sources + "".join(bodies)


def computation_text(computation: Computation, percent: bool = True) -> str:
    """Return a computation as text, from its head to its closing brace."""
    sign = "%" if percent else ""
    entry = "ENTRY " if computation.entry else ""
    signature = ""
    if computation.signature:
        given = [f"{one.name}: {one.shape.without_layout()}" for one in computation.parameters]
        result = computation.root.shape.without_layout()
        signature = f"({', '.join(given)}) -> {result} "
    lines = [f"{entry}{sign}{computation.name} {signature}{{"]
    lines += [f"  {instruction_text(one, percent)}" for one in computation.instructions]
    lines.append("}" + _attributes(computation.attributes))
    return "\n".join(lines)


def instruction_text(instruction: Instruction, percent: bool = True) -> str:
    """Return an instruction as text, on one line unless its constant has more."""
    sign = "%" if percent else ""
    root = "ROOT " if instruction.root else ""
    operands = [sign + name for name in instruction.operands]
    if instruction.operand_shapes:
        pairs = zip(instruction.operand_shapes, operands, strict=True)
        operands = [f"{kind} {name}" for kind, name in pairs]
    listed = numbered(operands) if percent else ", ".join(operands)  # as XLA's two forms have it
    given = instruction.literal or listed
    return (
        f"{root}{sign}{instruction.name} = {instruction.shape} {instruction.opcode}({given})"
        f"{_attributes(instruction.attributes)}"
    )


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f", {key}={value}" for key, value in attributes.items())


def _sources_text(sources: Sources) -> str:
    files = [f"{i} {quoted(name)}" for i, name in sources.files.items()]
    functions = [f"{i} {quoted(name)}" for i, name in sources.functions.items()]
    places = [
        f"{i} {{file_name_id={p.file} function_name_id={p.function} line={p.line} "
        f"end_line={p.end_line} column={p.column} end_column={p.end_column}}}"
        for i, p in sources.places.items()
    ]
    frames = [
        f"{i} {{file_location_id={place} parent_frame_id={parent}}}"
        for i, (place, parent) in sources.frames.items()
    ]
    tables = {
        "FileNames": files,
        "FunctionNames": functions,
        "FileLocations": places,
        "StackFrames": frames,
    }
    return "".join("\n".join((title, *rows)) + "\n\n" for title, rows in tables.items()) + "\n"


def quoted(text: str) -> str:
    """Return a string in quotes, as XLA escapes it.

    Example:
        >>> print(quoted('a "b"'))
        "a \\"b\\""
    """
    return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'
