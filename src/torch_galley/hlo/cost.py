"""FLOPs, transcendentals and bytes of a module and of each instruction, from its text alone.

Totals are XLA's own, number for number (`compiled.cost_analysis()`), but for its rounding: XLA adds
in float32, here numbers are whole. XLA counts the body of a loop once, and takes 1 from FLOPs and
bytes for each custom call. `with_loops` does neither, so that it is what a run really costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch_galley.hlo.fusionbytes import FusionBytes, Scope
from torch_galley.hlo.model import Computation, Instruction, Module
from torch_galley.hlo.op import Cost, Op
from torch_galley.hlo.opcost import RECOGNISED, op_cost
from torch_galley.hlo.shape import Tuple

__all__ = ["Cost", "ModuleCost", "cost"]

_XLA_UNKNOWN = Cost(-1, 0, -1, -1, known=False)
_Key = tuple[str, str]
_Way = Callable[[Op], Cost]


@dataclass(frozen=True)
class ModuleCost:
    """What a run of a module costs, and what each instruction of it does."""

    total: Cost
    """As XLA counts: bodies of loops once, custom calls -1."""
    with_loops: Cost
    """Bodies of loops as often as they run, as far as that is known; custom calls their bytes."""
    instructions: Mapping[tuple[str, str], Cost]
    """By the names of computation and instruction, per run of the computation. Inside a fusion
    FLOPs are an instruction's own and add up to the fusion's; bytes are what it would move if it
    were not fused. A loop costs its condition and its body once."""
    unknown_loops: tuple[tuple[str, str], ...] = ()
    """Loops of which the text doesn't say how often they run: they count once."""
    unknown: tuple[str, ...] = ()
    """Opcodes that there are no rules for, counted as a FLOP an element. Custom calls are not
    among them, see `Cost.known`."""

    @property
    def flops(self) -> int:
        """As `cost_analysis()["flops"]`."""
        return self.total.flops

    @property
    def transcendentals(self) -> int:
        """As `cost_analysis()["transcendentals"]`."""
        return self.total.transcendentals

    @property
    def bytes(self) -> int:
        """As `cost_analysis()["bytes accessed"]`."""
        return self.total.bytes


def cost(module: Module) -> ModuleCost:
    """Return what a module costs, before or after optimisation.

    Example:
        >>> from torch_galley import hlo
        >>> found = cost(hlo.parse("ENTRY e { p = f32[4] parameter(0) ROOT t = f32[4] tanh(p) }"))
        >>> found.flops, found.transcendentals, found.bytes
        (0, 4, 32)
        >>> found.instructions["e", "t"].written
        16
    """
    count = _Count(module)
    _, instructions = count.all(op_cost)
    total, _ = count.all(_as_xla, instructions)
    with_loops, _ = count.all(_looped, instructions)
    every = [(one.name, i) for one in module.computations for i in one]
    return ModuleCost(
        total,
        with_loops,
        instructions,
        tuple((name, i.name) for name, i in every if i.opcode == "while" and i.trip_count is None),
        tuple(dict.fromkeys(i.opcode for _, i in every if _plain(i).opcode not in RECOGNISED)),
    )


class _Count:
    def __init__(self, module: Module) -> None:
        self.entry = module.entry.name
        self.fusions = FusionBytes()
        self.scopes = [Scope(one) for one in _called_first(module)]
        self.moved: dict[_Key, tuple[int, int]] = {}
        """What fusions read and write."""
        for scope in self.scopes:
            self.fusions.add(scope)
            for one in map(_plain, scope.computation):
                if one.opcode == "fusion":
                    self.moved[scope.computation.name, one.name] = self.fusions.moved(one)

    def all(
        self, way: _Way, other: Mapping[_Key, Cost] | None = None
    ) -> tuple[Cost, Mapping[_Key, Cost]]:
        """Return the costs of the module and of its instructions.

        Args:
            way: how to count.
            other: costs by another way, in which ways can differ only where something is called.
        """
        totals: dict[str, Cost] = {}
        found: dict[_Key, Cost] = {}
        for scope in self.scopes:
            name, total = scope.computation.name, Cost()
            for one in scope.computation:
                if other and not one.called and one.opcode != "custom-call":
                    made = other[name, one.name]
                else:
                    made = self.one(scope, _plain(one), totals, way)
                found[name, one.name] = made
                total += made
            totals[name] = total
        return totals[self.entry], found

    def one(self, scope: Scope, one: Instruction, totals: Mapping[str, Cost], way: _Way) -> Cost:
        if one.opcode != "fusion":
            return way(Op(one, scope.operands(one), totals))
        if op := self.fusions.stands_for(one, totals):
            return way(op)
        read, written = self.moved[scope.computation.name, one.name]
        inside = op_cost(Op(one, (), totals))
        return dataclasses.replace(inside, bytes=read + written, written=written)


def _as_xla(op: Op) -> Cost:
    return _XLA_UNKNOWN if op.instruction.opcode == "custom-call" else op_cost(op)


def _looped(op: Op) -> Cost:
    runs = op.instruction.trip_count if op.instruction.opcode == "while" else None
    if runs is None:
        return op_cost(op)
    return op.called("body")[0].times(runs) + op.called("condition")[0].times(runs + 1)


def _plain(one: Instruction) -> Instruction:
    """Return what XLA's short form of asynchronous operations, `negate-start`, stands for."""
    if one.opcode in RECOGNISED:
        return one
    opcode, _, step = one.opcode.rpartition("-")
    if opcode not in RECOGNISED or step not in ("start", "update", "done"):
        return one
    if step != "start":
        return dataclasses.replace(one, opcode=f"async-{step}")
    parts = one.shape.parts if isinstance(one.shape, Tuple) else ()
    return dataclasses.replace(one, opcode=opcode, shape=parts[1] if len(parts) > 1 else one.shape)


def _called_first(module: Module) -> Iterator[Computation]:
    """Yield computations, each behind those that it calls, unless they call each other."""
    seen = set[str]()
    stack = [(one, False) for one in reversed(module.computations)]
    while stack:
        one, ready = stack.pop()
        if ready:
            yield one
            continue
        if one.name in seen:
            continue
        seen.add(one.name)
        stack.append((one, True))
        called = dict.fromkeys(name for i in one for name in i.called)
        stack += [(module.by_name[name], False) for name in called if name in module.by_name]
