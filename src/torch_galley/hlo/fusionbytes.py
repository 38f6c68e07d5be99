"""The bytes that a fusion moves, by the rules of XLA's own analysis.

What passes between the instructions inside moves none: only what is read of the operands, large
constants, and results. Of an operand that is only sliced, the slices count; one whose part is
updated in place isn't read, and only the part is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch_galley.hlo import attribute
from torch_galley.hlo.model import Computation, Instruction
from torch_galley.hlo.op import Cost, Op, leaves, nbytes
from torch_galley.hlo.shape import Shape, Tuple

_UPDATE = "dynamic-update-slice"


@dataclass(frozen=True)
class Scope:
    """A computation, and questions about it."""

    computation: Computation

    @cached_property
    def users(self) -> Mapping[str, Sequence[Instruction]]:
        """By an instruction's name those that read it, each once."""
        found: dict[str, list[Instruction]] = {}
        for one in self.computation:
            for name in dict.fromkeys(one.operands):
                found.setdefault(name, []).append(one)
        return found

    def operand(self, instruction: Instruction, index: int) -> Instruction | None:
        """The instruction that is an operand; None if there is none."""
        if index >= len(instruction.operands):
            return None
        return self.computation.by_name.get(instruction.operands[index])

    def operands(self, instruction: Instruction) -> tuple[Shape, ...]:
        """The shapes of the operands, as far as the text says them."""
        written = instruction.operand_shapes
        return tuple(
            found.shape
            if (found := self.computation.by_name.get(name))
            else (written[index] if index < len(written) else Tuple())
            for index, name in enumerate(instruction.operands)
        )


class FusionBytes:
    """Bytes of a module's fusions. Computations have to be added before those that call them."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._reads: dict[str, list[int]] = {}
        """Of each computation, what of its parameters is read."""

    def add(self, scope: Scope) -> None:
        """Take a computation in."""
        reads = [self._read(scope, one) for one in scope.computation.parameters]
        self._scopes[scope.computation.name] = scope
        self._reads[scope.computation.name] = reads

    def moved(self, fusion: Instruction) -> tuple[int, int]:
        """Return the bytes that a fusion reads and writes.

        Example: a fusion that adds two f32[4] gives `(32, 16)`
        """
        scope = self._inside(fusion)
        if scope is None:
            return 0, leaves(fusion.shape)
        constants = sum(
            nbytes(one.shape)
            for one in scope.computation
            if one.opcode == "constant" and one.shape.elements > 1
        )
        read = sum(self._parameter(scope, one) for one in scope.computation.parameters)
        return read + constants, self._written(scope, fusion.shape)

    def stands_for(self, fusion: Instruction, totals: Mapping[str, Cost]) -> Op | None:
        """Return the gather or scatter that XLA takes a fusion of its kernels' kind for."""
        scope = self._inside(fusion)
        if scope is None or fusion.attributes.get("kind") != "kCustom":
            return None
        moving = (one for one in scope.computation if one.opcode in ("gather", "scatter"))
        found = next(moving, None)
        return Op(found, scope.operands(found), totals) if found else None

    def _inside(self, fusion: Instruction) -> Scope | None:
        names = attribute.names(fusion.attributes.get("calls", ""))
        return self._scopes.get(names[0]) if names else None

    def _written(self, scope: Scope, shape: Shape) -> int:
        root = scope.computation.root
        if not isinstance(shape, Tuple):
            return self._given(scope, root, shape)
        return sum(
            leaves(part)
            if isinstance(part, Tuple)
            else self._given(
                scope, scope.operand(root, i) if root.opcode == "tuple" else root, part
            )
            for i, part in enumerate(shape.parts)
        )

    def _given(self, scope: Scope, root: Instruction | None, shape: Shape) -> int:
        if root and root.opcode == _UPDATE and (update := scope.operand(root, 1)):
            return nbytes(update.shape)
        return nbytes(shape)

    def _parameter(self, scope: Scope, parameter: Instruction) -> int:
        """Return what is read of a parameter, of a tuple what is read of each array in it."""
        if not isinstance(parameter.shape, Tuple):
            return self._read(scope, parameter)
        found = 0
        for path in _paths(parameter.shape):
            one = parameter
            for index in path:
                parts = (
                    user
                    for user in scope.users.get(one.name, ())
                    if user.opcode == "get-tuple-element"
                    and user.attributes.get("index") == str(index)
                )
                one = next(parts, one)
            found += self._read(scope, one)
        return found

    def _read(self, scope: Scope, source: Instruction) -> int:
        """Return what of a value its users read: slices each, all others once together."""
        found, whole = 0, False
        for user in scope.users.get(source.name, ()):
            if user.opcode == "fusion":
                found += self._read_by_fusion(scope, source, user)
            elif user.opcode in ("broadcast", "reshape"):
                found += nbytes(source.shape)
            elif (part := _sliced(source, user)) is not None:
                found += part
            else:
                whole = True
        return found + (nbytes(source.shape) if whole else 0)

    def _read_by_fusion(self, scope: Scope, source: Instruction, fusion: Instruction) -> int:
        """Return what a fusion inside a fusion reads, whose result may be sliced in turn."""
        inside = self._inside(fusion)
        if inside is None:
            return nbytes(source.shape)
        root, parameters = inside.computation.root, inside.computation.parameters
        found = 0
        for index, name in enumerate(fusion.operands):
            if name != source.name or index >= len(parameters):
                continue
            direct = not root.operands or root.operands[0] == parameters[index].name
            whole: int | None = None
            for user in scope.users.get(fusion.name, ()):
                part = _sliced(fusion, user) if direct else None
                if part is not None:
                    found += part
                elif whole is None:
                    places = direct and user.opcode in ("dynamic-slice", _UPDATE)
                    reads = self._reads[inside.computation.name][index]
                    whole = nbytes(fusion.shape) if places else reads
            found += whole or 0
        return found


def _sliced(source: Instruction, user: Instruction) -> int | None:
    """Return what a user reads that takes but a part of a value; None if it takes all."""
    if user.opcode == "slice":
        return nbytes(user.shape)
    if user.opcode == "dynamic-slice" and user.operands[:1] == (source.name,):
        return nbytes(user.shape)
    if user.opcode == _UPDATE and user.operands[:1] == (source.name,):
        return 0
    return None


def _paths(shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield of each array in a shape the numbers that lead to it."""
    if not isinstance(shape, Tuple):
        yield ()
        return
    for index, part in enumerate(shape.parts):
        for path in _paths(part):
            yield (index, *path)
