"""Which arrays of a program share memory, and from when to when each piece is needed.

A program is the entry with all calls written out: each instruction is a step, and a called
computation's steps stand before the caller's own. See liveness.py for what is asked of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch_galley.core.errors import HloSyntaxError
from torch_galley.hlo import attribute
from torch_galley.hlo.model import Computation, Instruction, Module
from torch_galley.hlo.opcodes import ELEMENTWISE
from torch_galley.hlo.shape import Shape, Tuple

_ALIAS = re.compile(r"\{([\d, ]*)\}:\s*\((\d+),\s*\{([\d, ]*)\}")
_PASSING = frozenset(("bitcast", "opt-barrier", "add-dependency", "domain"))
"""What gives its first operand's memory on."""
_READING_NOTHING = _PASSING | {"tuple", "get-tuple-element", "parameter", "while"}
"""What needs no operand itself, when its own step comes."""
_OVER_ALL = (ELEMENTWISE | {"sort"}) - {"copy"}
"""What may write over any of its operands."""
_OVER_FIRST = frozenset(("dynamic-update-slice", "scatter", "set-dimension-size"))
"""What may write over its first operands."""
_KEEPING = frozenset(("parameter", "constant", "tuple"))
"""What reads no element of another place, beside what is elementwise."""
_WRITTEN = ("temporary", "result", "donated")
"""Kinds of memory that anything may be written to."""
_DEEPEST = 100
_MOST = 1_000_000
"""Steps of a program; only computations that are called again and again make more."""


@dataclass(eq=False, slots=True)
class Memory:
    """A place for an array: for one content after the other."""

    kind: str
    """"parameter", "donated" (one of which a result takes the place), "constant", "result" or
    "temporary"."""
    contents: list[Content] = field(default_factory=list["Content"])
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From which step to which it is needed, in order."""

    def take(self, other: Memory) -> None:
        """Be the place of another's contents, too."""
        if other is self:
            return
        for one in other.contents:
            one.memory = self
        self.contents += other.contents
        if self.kind in ("temporary", "result") and other.kind in ("result", "donated"):
            self.kind = other.kind
        self.ranges = _united([*self.ranges, *other.ranges])


@dataclass(eq=False, slots=True)
class Content:
    """An array that an instruction writes."""

    names: list[str]
    """Of that instruction, and of those that show it."""
    computation: str
    nbytes: int
    start: int
    end: int
    """The last step that needs it."""
    memory: Memory


Tree: TypeAlias = "Content | list[Tree]"
"""The arrays of a value: one, or a list of a tuple's."""


def leaves(tree: Tree) -> Iterator[Content]:
    """Yield the arrays of a value, from left to right."""
    if isinstance(tree, Content):
        yield tree
    else:
        for one in tree:
            yield from leaves(one)


def aliases(text: str) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """Yield which part of a result is which part of which argument.

    Example:
        >>> list(aliases("{ {1}: (2, {}, may-alias) }"))
        [((1,), 2, ())]

    Args:
        text: an `input_output_alias` of a module, or an instruction's `output_to_operand_aliasing`.
    """
    for result, number, argument in _ALIAS.findall(text):
        yield attribute.ints(result), int(number), attribute.ints(argument)


class Buffers:
    """The program of a module, and the memory of its values.

    Raises:
        HloSyntaxError: computations call each other in a ring, or too deep, or too often.
    """

    def __init__(self, module: Module) -> None:
        self.steps: list[tuple[Instruction, str]] = []
        """Each with the name of its computation."""
        self._module = module
        self._contents: list[Content] = []
        self._chances: list[tuple[int, Tree, Sequence[Tree]]] = []
        """Results that may be written over one of some values: the step, the result, those."""
        self._over: dict[str, frozenset[int]] = {}
        self._callers: list[str] = []
        given: list[Tree] = []
        for one in module.entry.parameters:
            if int(one.literal) == len(given):  # else one is missing, see check.py
                given.append(self._new(one.shape, one.name, module.entry.name, "parameter"))
        for _, number, argument in aliases(module.attributes.get("input_output_alias", "")):
            for content in leaves(_part(given, (number, *argument))):
                content.memory.kind = "donated"
        self._finish(given, self._run(module.entry, given))

    def memories(self) -> list[Memory]:
        """Return all places of memory, in the order in which they are first needed."""
        found = dict.fromkeys(one.memory for one in self._contents)
        return sorted(found, key=lambda one: one.ranges[0])

    def _finish(self, given: Sequence[Tree], root: Tree) -> None:
        """Settle what can be only when all steps are known."""
        last = max(len(self.steps) - 1, 0)
        for one in leaves(root):
            one.end = last + 1  # the caller reads it
        for content in self._contents:
            if content.memory.kind in ("parameter", "constant"):
                content.start, content.end = 0, last
        for memory in dict.fromkeys(one.memory for one in self._contents):
            memory.ranges = _united([(one.start, one.end) for one in memory.contents])
        text = self._module.attributes.get("input_output_alias", "")
        for one, other in _aliased(root, given, text):
            if one.memory.kind == "temporary" and other.memory.kind == "donated":
                other.memory.take(one.memory)
        for one in leaves(root):
            if one.memory.kind == "temporary":
                one.memory.kind = "result"
        for step, tree, operands in reversed(self._chances):
            _write_over(step, tree, operands)
        for memory in self.memories():
            memory.ranges = [(start, min(end, last)) for start, end in memory.ranges]

    def _new(self, shape: Shape, name: str, place: str, kind: str = "temporary") -> Tree:
        if isinstance(shape, Tuple):
            return [self._new(one, name, place, kind) for one in shape.parts]
        return self._content([name], place, shape.nbytes, Memory(kind))

    def _content(self, names: list[str], place: str, nbytes: int, memory: Memory) -> Content:
        content = Content(names, place, nbytes, len(self.steps), len(self.steps), memory)
        memory.contents.append(content)
        self._contents.append(content)
        return content

    def _run(self, computation: Computation, given: Sequence[Tree]) -> Tree:
        """Take a computation's steps, and return the value of its root."""
        names = [*self._callers, computation.name]
        if computation.name in self._callers:
            raise HloSyntaxError(f"{' calls '.join(names)}, and so on", names=names)
        if len(names) > _DEEPEST:
            raise HloSyntaxError(f"calls are nested more than {_DEEPEST} deep")
        self._callers.append(computation.name)
        known: dict[str, Tree] = {}
        for one in computation:
            operands = [known.get(name, []) for name in one.operands]
            found = self._shown(one, operands, given)
            if found is None:
                found = self._written(one, operands)
            else:
                for content in leaves(found):
                    content.names.append(one.name)
            if one.opcode not in _READING_NOTHING:
                for content in leaves(operands):
                    content.end = len(self.steps)
            known[one.name] = found
            self.steps.append((one, computation.name))
            if len(self.steps) > _MOST:
                raise HloSyntaxError(f"all calls written out, there are over {_MOST:,} steps")
        self._callers.pop()
        return known.get(computation.root.name, [])

    def _called(self, name: str, operands: Sequence[Tree]) -> Tree:
        computation = self._module.by_name.get(name)
        return [] if computation is None else self._run(computation, operands)

    def _shown(self, one: Instruction, operands: list[Tree], given: Sequence[Tree]) -> Tree | None:
        """Return the value of what writes nothing itself; None of what does."""
        opcode = one.opcode
        if opcode == "parameter":
            number = int(one.literal)
            return given[number] if number < len(given) else None
        if opcode == "tuple":
            return operands
        if opcode == "call":
            return next((self._called(name, operands) for name in one.called), None)
        if not operands:
            return None
        if opcode in _PASSING or opcode.endswith("-update"):
            return operands[0]
        if opcode == "get-tuple-element":
            return _part(operands[0], attribute.ints(one.attributes.get("index", ""))[:1])
        if opcode.endswith("-done"):
            part = _part(operands[0], (0 if opcode == "copy-done" else 1,))
            return next((x for x in (part, operands[0]) if _fits(x, one.shape)), None)
        return None

    def _written(self, one: Instruction, operands: list[Tree]) -> Tree:
        """Return the value of what writes one, and note which memory it may take."""
        opcode, place = one.opcode, self._callers[-1]
        if opcode == "while" and operands:
            return self._loop(one, operands[0])
        if opcode.endswith("-start") and isinstance(one.shape, Tuple):
            return self._started(one, operands, one.shape)
        branches = self._branches(one, operands) if opcode == "conditional" else []
        found = self._new(
            one.shape, one.name, place, "constant" if opcode == "constant" else "temporary"
        )
        for branch in branches:
            for content, result in _pairs(branch, found):
                if content.memory.kind == "temporary":
                    result.memory.take(content.memory)
        text = one.attributes.get("output_to_operand_aliasing", "")
        for content, other in _aliased(found, operands, text):
            if other.memory.kind in _WRITTEN:
                other.memory.take(content.memory)
        over: Sequence[Tree] = operands if opcode in _OVER_ALL else ()
        if opcode in _OVER_FIRST:
            over = operands[: len(operands) // 2 if opcode == "scatter" else 1]
        elif opcode == "fusion" and one.attributes.get("kind") == "kLoop":
            numbers = self._over_which(next(iter(one.called), ""))
            over = [tree for i, tree in enumerate(operands) if i in numbers]
        if over:
            self._chances.append((len(self.steps), found, over))
        return found

    def _branches(self, one: Instruction, operands: list[Tree]) -> list[Tree]:
        """Take the steps of a conditional's branches, and return their values, but arguments."""
        found: list[Tree] = []
        given = set(leaves(operands))
        for name, argument in zip(one.called, operands[1:], strict=False):
            after = self._called(name, [argument])
            for content in leaves(after):
                content.end = max(content.end, len(self.steps) - 1)
            if given.isdisjoint(leaves(after)):
                found.append(after)
        return found

    def _loop(self, one: Instruction, before: Tree) -> Tree:
        """Take the steps of a loop, and return what it leaves.

        What it carries has one place: for what is there before, for what the body is given, for
        what it makes when nobody needs that any more, and for what is left.
        """
        first = len(self.steps)
        carried = self._like(before)
        for key in ("condition", "body"):
            after: Tree = []
            for name in attribute.names(one.attributes.get(key, "")):
                after = self._called(name, [carried])
        others = set(leaves(carried))
        for given, made in _pairs(carried, after):
            made.end = len(self.steps)
            if made not in others and made.memory.kind == "temporary" and made.start >= given.end:
                given.memory.take(made.memory)
        left = self._like(before)
        ends = zip(leaves(before), leaves(carried), leaves(left), strict=True)
        made = dict(_pairs(carried, after))
        for old, given, new in ends:
            old.end = max(old.end, first)
            given.memory.take(new.memory)
            if old.memory.kind in _WRITTEN or made.get(given) is given:
                old.memory.take(given.memory)
            new.names.append(one.name)
        return left

    def _like(self, tree: Tree) -> Tree:
        """Return a value like another, in places of its own, from here on."""
        if isinstance(tree, Content):
            return self._content([], self._callers[-1], tree.nbytes, Memory("temporary"))
        return [self._like(one) for one in tree]

    def _started(self, one: Instruction, operands: list[Tree], shape: Tuple) -> Tree:
        """Return the value of what runs beside others: its operands, and its result."""
        shown = 1 if one.opcode == "copy-start" else 0
        given = [operands, *operands[:1]]
        found: list[Tree] = []
        for number, part in enumerate(shape.parts):
            fitting = (tree for tree in given if number == shown and _fits(tree, part))
            tree = next(fitting, None)
            new = self._new(part, one.name, self._callers[-1]) if tree is None else tree
            found.append(new)
        return found

    def _over_which(self, name: str) -> frozenset[int]:
        """Return the parameters of a fused computation that its result may be written over.

        That are those of which each element is read only where the result's is written.
        """
        if name not in self._over and name in self._module.by_name:
            fused = self._module.by_name[name]
            elsewhere = set[str]()
            for one in reversed(fused.instructions):
                if one.opcode in ("dynamic-update-slice", "scatter") and one.name not in elsewhere:
                    elsewhere.update(one.operands[1:])
                elif one.opcode not in ELEMENTWISE | _KEEPING or one.name in elsewhere:
                    elsewhere.update(one.operands)
            self._over[name] = frozenset(
                int(one.literal) for one in fused.parameters if one.name not in elsewhere
            )
        return self._over.get(name, frozenset())


def _part(tree: Tree, index: Sequence[int]) -> Tree:
    """Return a part of a value; nothing if it has no such part."""
    for number in index:
        if isinstance(tree, Content) or number >= len(tree):
            return []
        tree = tree[number]
    return tree


def _fits(tree: Tree, shape: Shape) -> bool:
    if isinstance(shape, Tuple):
        if not isinstance(tree, list) or len(tree) != len(shape.parts):
            return False
        return all(map(_fits, tree, shape.parts))
    return isinstance(tree, Content) and tree.nbytes == shape.nbytes


def _pairs(one: Tree, other: Tree) -> Iterator[tuple[Content, Content]]:
    """Yield the arrays that are at the same place in two values."""
    if isinstance(one, list) and isinstance(other, list):
        for part, another in zip(one, other, strict=False):
            yield from _pairs(part, another)
    elif isinstance(one, Content) and isinstance(other, Content):
        yield one, other


def _aliased(result: Tree, given: Sequence[Tree], text: str) -> Iterator[tuple[Content, Content]]:
    """Yield the arrays of a result that are said to be some of what was given, with those."""
    for index, number, argument in aliases(text):
        if number < len(given):
            yield from _pairs(_part(result, index), _part(given[number], argument))


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _write_over(step: int, result: Tree, operands: Sequence[Tree]) -> None:
    """Let results take the place of operands that nobody needs after a step."""
    free = [one for tree in operands for one in leaves(tree) if one.end == step]
    for one in leaves(result):
        for other in free:
            if other.nbytes == one.nbytes and _may_be_one(one.memory, other.memory, step):
                other.memory.take(one.memory)
                free.remove(other)
                break


def _may_be_one(one: Memory, other: Memory, step: int) -> bool:
    """Whether two places can be one: they are not needed at once, but for a step."""
    if one is other or one.kind not in _WRITTEN or other.kind not in _WRITTEN:
        return False
    meetings = (
        (max(start, begin), min(end, stop))
        for start, end in one.ranges
        for begin, stop in other.ranges
    )
    return all(first > last or first == last == step for first, last in meetings)
