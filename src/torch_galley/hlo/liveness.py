"""Which values are alive when a module runs, and how many bytes they take: a forecast.

Each array of a value is one piece of memory from the instruction that writes it to the last that
reads it. What only shows memory shares it: bitcasts, tuples and their elements, what a loop
carries, arguments and results of calls, results that the header or an instruction aliases with an
argument, and an elementwise result that may take the place of an operand which nobody reads later.
Arguments and constants are alive throughout, but for arguments that are donated.

XLA's own buffer assignment is the truth: it also packs what is alive into memory, with gaps, pads
to alignments, keeps tables of pointers for tuples, and gives libraries' kernels scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from torch_galley.hlo.buffers import Buffers, Memory
from torch_galley.hlo.model import Instruction, Module


@dataclass(frozen=True, slots=True)
class Value:
    """One piece of memory and what is in it."""

    names: tuple[str, ...]
    """The instructions whose values are there, the one that writes first."""
    computation: str
    """Where that one is."""
    nbytes: int
    kind: str
    """"parameter", "donated" (one of which a result takes the place), "constant", "result" or
    "temporary"."""
    ranges: tuple[tuple[int, int], ...]
    """From which step to which it is needed; what a loop carries is not in all of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of the program, and what is alive when it runs."""

    instruction: Instruction
    computation: str
    nbytes: int
    """Of all that is alive: operands, result, and what later steps need."""


@dataclass(frozen=True)
class Liveness:
    """What is alive when, in a program that runs step by step."""

    steps: tuple[Step, ...]
    """In the order in which they run, a called computation's before its caller's own."""
    values: tuple[Value, ...]
    """Those that take memory, in the order of their start."""

    @cached_property
    def peak_step(self) -> int:
        """The number of the first step in which the most is alive."""
        return max(range(len(self.steps)), key=lambda i: (self.steps[i].nbytes, -i))

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return self.steps[self.peak_step].nbytes

    def at(self, step: int) -> tuple[Value, ...]:
        """Return the values that are alive in a step, the largest first."""
        found = (one for one in self.values if any(a <= step <= b for a, b in one.ranges))
        return tuple(sorted(found, key=lambda one: -one.nbytes))

    def peak_of(self, *kinds: str) -> int:
        """Return the most bytes of values of some kinds that are alive at once."""
        chosen = [one for one in self.values if one.kind in kinds]
        return max(_alive(chosen, len(self.steps)), default=0)

    def text(self, most: int = 20) -> str:
        """Return the peak and what holds it as lines of text.

        Args:
            most: how many values are listed.
        """
        step = self.steps[self.peak_step]
        one = step.instruction
        held = self.at(self.peak_step)
        lines = [
            f"forecast: at most {self.peak:,} bytes, in step {self.peak_step + 1:,} of "
            f"{len(self.steps):,}: {one.name} = {one.shape} {one.opcode} in {step.computation}"
        ]
        for value in held[:most]:
            first, *others = value.names
            shared = f" (+{len(others)} more)" if others else ""
            lines.append(
                f"  {value.nbytes:>15,}  {value.kind:9}  {first}{shared} in "
                f"{value.computation}, {_steps(value)}"
            )
        if len(held) > most:
            rest = sum(value.nbytes for value in held[most:])
            lines.append(f"  {rest:>15,}  {len(held) - most:,} smaller ones")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data: the peak, the bytes of every step, and all values."""
        return {
            "peak_bytes": self.peak,
            "peak_step": self.peak_step,
            "steps": [[one.computation, one.instruction.name, one.nbytes] for one in self.steps],
            "values": [
                {
                    "names": list(one.names),
                    "computation": one.computation,
                    "bytes": one.nbytes,
                    "kind": one.kind,
                    "ranges": [list(pair) for pair in one.ranges],
                }
                for one in self.values
            ],
        }

    def __str__(self) -> str:
        return self.text()


def liveness(module: Module) -> Liveness:
    """Forecast which values of a module are alive when.

    The bodies of loops run once in it, at the place of the loop; the branches of a conditional
    run one after the other, none of them needing another's values.

    Example:
        >>> from torch_galley import hlo
        >>> found = liveness(hlo.parse('''HloModule m, is_scheduled=true
        ...   ENTRY e {
        ...     p = f32[256]{0} parameter(0)
        ...     a = f32[256]{0} reverse(p), dimensions={0}
        ...     b = f32[256]{0} negate(a)
        ...     ROOT c = f32[512]{0} concatenate(b, b), dimensions={0}
        ...   }'''))
        >>> found.peak, [value.names for value in found.at(found.peak_step)]
        (4096, [('c',), ('p',), ('a', 'b')])

    Args:
        module: a scheduled one. In one that is not, instructions are taken to run in the order of
            the text, and much is counted that fusion will remove.

    Raises:
        HloSyntaxError: computations call each other in a ring, or are nested without end.
    """
    program = Buffers(module)
    values = [_value(memory) for memory in program.memories() if memory.contents[0].nbytes]
    alive = _alive(values, len(program.steps))
    pairs = zip(program.steps, alive, strict=True)
    return Liveness(tuple(Step(one, place, n) for (one, place), n in pairs), tuple(values))


def _value(memory: Memory) -> Value:
    contents = sorted(memory.contents, key=lambda one: one.start)
    names = dict.fromkeys(name for one in contents for name in one.names)
    first = contents[0]
    ranges = tuple(memory.ranges)
    return Value(tuple(names), first.computation, first.nbytes, memory.kind, ranges)


def _steps(value: Value) -> str:
    return "steps " + ", ".join(f"{start + 1:,} to {end + 1:,}" for start, end in value.ranges)


def _alive(values: Iterable[Value], steps: int) -> list[int]:
    """Return the bytes of some values that are alive in each step."""
    change = [0] * (steps + 1)
    for one in values:
        for start, end in one.ranges:
            change[start] += one.nbytes
            change[end + 1] -= one.nbytes
    return list(accumulate(change[:-1]))
