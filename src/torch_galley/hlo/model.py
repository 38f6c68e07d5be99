"""What HLO text says, as values: a module of computations of instructions.

Everything is frozen; `dataclasses.replace` makes another. What an attribute says is kept as it
was written, and read on demand (attribute.py), so that whatever a newer XLA writes survives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch_galley.hlo import attribute
from torch_galley.hlo.attribute import Metadata
from torch_galley.hlo.printer import instruction_text, module_text
from torch_galley.hlo.shape import Shape
from torch_galley.hlo.source import Sources


@dataclass(frozen=True)
class Instruction:
    """One value of a computation, and how it is computed.

    Example: `%add.1 = f32[4]{0} add(%a, %b), metadata={op_name="add"}`
    """

    name: str
    """Without the percent sign."""
    shape: Shape
    opcode: str
    """As XLA writes it: "dot", "get-tuple-element", "custom-call"."""
    operands: tuple[str, ...] = ()
    """Names of instructions of the same computation."""
    literal: str = ""
    """What stands in the parentheses of a constant or a parameter: "0", "{1, 2}", "{...}"."""
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What follows the operands, by name, each as it was written."""
    root: bool = False
    """Whether it is its computation's result."""
    operand_shapes: tuple[Shape, ...] = ()
    """Of each operand, where the text has them."""
    span: tuple[int, int] = (0, 0)
    """Where in the text it was read; (0, 0) of one that was made."""

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls, as they are written."""
        return attribute.called(self.attributes)

    @cached_property
    def metadata(self) -> Metadata:
        """What it says of its origin; empty if nothing."""
        return attribute.metadata(self.attributes.get("metadata", ""))

    @property
    def trip_count(self) -> int | None:
        """Of a `while`, how often its body runs, if XLA found out."""
        return attribute.trip_count(self.attributes.get("backend_config", ""))

    def __str__(self) -> str:
        return instruction_text(self)


@dataclass(frozen=True)
class Computation:
    """Instructions, of which one is the result.

    In a scheduled module they stand in the order in which they run.
    """

    name: str
    instructions: tuple[Instruction, ...]
    entry: bool = False
    signature: bool = True
    """Whether the head names parameters and result, as XLA's long form does."""
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What follows the closing brace, such as `execution_thread`."""
    span: tuple[int, int] = (0, 0)

    @cached_property
    def root(self) -> Instruction:
        """The instruction that is its result: the one marked, else the last."""
        return next((one for one in self.instructions if one.root), self.instructions[-1])

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, in the order of their numbers."""
        found = [one for one in self.instructions if one.opcode == "parameter"]
        return tuple(sorted(found, key=lambda one: int(one.literal)))

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Its instructions by their names."""
        return {one.name: one for one in self.instructions}

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __getitem__(self, name: str) -> Instruction:
        return self.by_name[name]


@dataclass(frozen=True)
class Module:
    """A program of XLA's, before or after optimisation.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse("ENTRY e { p = f32[4]{0} parameter(0) ROOT t = f32[4]{0} tanh(p) }")
        >>> module.entry.root.opcode, module.entry.root.shape.nbytes
        ('tanh', 16)
    """

    name: str
    computations: tuple[Computation, ...]
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What follows its name: `is_scheduled`, `entry_computation_layout`, aliases, ..."""
    sources: Sources = field(default_factory=Sources)
    """The places in people's code that metadata points at."""
    percent: bool = True
    """Whether names are printed with a percent sign, as XLA's long form does."""
    text: str = field(default="", repr=False, compare=False)
    """What it was read from, which spans are places in; "" of one that was made."""

    @cached_property
    def entry(self) -> Computation:
        """The computation that a run starts with: the one marked, else the last."""
        return next((one for one in self.computations if one.entry), self.computations[-1])

    @cached_property
    def by_name(self) -> Mapping[str, Computation]:
        """Its computations by their names."""
        return {one.name: one for one in self.computations}

    @property
    def scheduled(self) -> bool:
        """Whether the order of instructions is the order in which they run."""
        return self.attributes.get("is_scheduled") == "true"

    def instructions(self) -> Iterator[Instruction]:
        """Yield the instructions of all computations."""
        for one in self.computations:
            yield from one.instructions

    def __getitem__(self, name: str) -> Computation:
        return self.by_name[name]

    def __str__(self) -> str:
        return module_text(self)
