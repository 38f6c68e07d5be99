"""Ways through a module: who reads a value, what comes before it, and who calls a computation.

What a name leads to is looked up; a name that leads nowhere is passed over, see check.py for it.
All of it takes time in proportion to the text, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch_galley.core.errors import HloSyntaxError
from torch_galley.hlo import attribute
from torch_galley.hlo.model import Computation, Instruction, Module
from torch_galley.hlo.opcodes import APPLYING


def users(computation: Computation) -> dict[str, tuple[Instruction, ...]]:
    """Return for each instruction those that read it, each once, in the order of the text.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse("e { p = f32[] parameter(0) ROOT a = f32[] add(p, p) }")
        >>> [one.name for one in users(module.entry)["p"]], users(module.entry)["a"]
        (['a'], ())
    """
    found: dict[str, list[Instruction]] = {one.name: [] for one in computation}
    for one in computation:
        for name in dict.fromkeys(one.operands):
            if name in found:
                found[name].append(one)
    return {name: tuple(many) for name, many in found.items()}


def ancestors(computation: Computation, *names: str) -> set[str]:
    """Return all that some instructions need, directly or through others; not themselves.

    An instruction that needs itself, by a ring, is among them.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse("e { p = f32[] parameter(0) ROOT t = f32[] tanh(p) }")
        >>> ancestors(module.entry, "t"), ancestors(module.entry, "p")
        ({'p'}, set())
    """
    by_name = computation.by_name
    return _closed(names, {one.name: one.operands for one in computation}, by_name)


def descendants(computation: Computation, *names: str) -> set[str]:
    """Return all that need some instructions, directly or through others; not themselves.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse("e { p = f32[] parameter(0) ROOT t = f32[] tanh(p) }")
        >>> descendants(module.entry, "p")
        {'t'}
    """
    reading = {name: [one.name for one in many] for name, many in users(computation).items()}
    return _closed(names, reading, computation.by_name)


def _closed(
    names: Iterable[str], ways: Mapping[str, Iterable[str]], known: Mapping[str, object]
) -> set[str]:
    found = set[str]()
    open_ = [name for name in names if name in ways]
    while open_:
        for name in ways[open_.pop()]:
            if name not in found and name in known:
                found.add(name)
                open_.append(name)
    return found


def order(computation: Computation) -> tuple[Instruction, ...]:
    """Return the instructions so that each comes after its operands, else as in the text.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse("e { ROOT t = f32[] tanh(p) p = f32[] parameter(0) }")
        >>> [one.name for one in order(module.entry)]
        ['p', 't']

    Raises:
        HloSyntaxError: some need each other in a ring; `facts["names"]` are those.
    """
    by_name = computation.by_name
    done = set[str]()
    found: list[Instruction] = []
    for first in computation:
        open_ = [first]
        on_way = dict[str, None]()
        while open_:
            one = open_[-1]
            if one.name in done:
                open_.pop()
                continue
            needed = [by_name[n] for n in one.operands if n in by_name and n not in done]
            if not needed:
                on_way.pop(one.name, None)
                done.add(open_.pop().name)
                found.append(one)
                continue
            on_way[one.name] = None
            ring = next((other.name for other in needed if other.name in on_way), None)
            if ring is not None:
                names = list(on_way)
                names = names[names.index(ring) :]
                raise HloSyntaxError(
                    f"in {computation.name}, {' needs '.join([*reversed(names), names[-1]])}",
                    names=names,
                )
            open_.extend(reversed(needed))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Call:
    """One place at which a computation is called.

    Example: the `body=%b` of `%loop = ... while(%x), condition=%c, body=%b` in the entry is
    `Call("main", loop, "body", "b")`.
    """

    caller: str
    """The computation in which it is called."""
    instruction: Instruction
    """What calls it."""
    attribute: str
    """As what: "body", "calls", "to_apply", ..."""
    callee: str

    @property
    def fuses(self) -> bool:
        """Whether what it calls is one kernel with it."""
        return self.instruction.opcode == "fusion"

    @property
    def applies(self) -> bool:
        """Whether what it calls is applied to single elements, as by a reduction."""
        return self.instruction.opcode in APPLYING

    def __str__(self) -> str:
        return f"{self.attribute} of {self.instruction.name} in {self.caller}"


def calls(computation: Computation) -> Iterator[Call]:
    """Yield all calls in a computation, in the order of the text.

    Example: `[str(call) for call in calls(entry)]` is `["body of loop in main", ...]`
    """
    for one in computation:
        if not one.called:
            continue
        for key in attribute.CALLS:
            for name in attribute.names(one.attributes.get(key, "")):
                yield Call(computation.name, one, key, name)


@dataclass(frozen=True, slots=True)
class Reached:
    """A computation that a run of the module comes to, and how."""

    computation: Computation
    calls: tuple[Call, ...] = ()
    """All places at which it is called; none of the entry."""
    fused: bool = False
    """Whether it is inside of a fusion, at any depth."""
    applied: bool = False
    """Whether it is applied to single elements, at any depth."""


def reached(module: Module) -> dict[str, Reached]:
    """Return the computations that the entry reaches, callers before what they call.

    Example:
        >>> from torch_galley import hlo
        >>> module = hlo.parse('''
        ...   f { ROOT p = f32[] parameter(0) }
        ...   unused { ROOT p = f32[] parameter(0) }
        ...   ENTRY e { p = f32[] parameter(0) ROOT y = f32[] fusion(p), kind=kLoop, calls=f }
        ... ''')
        >>> {name: (one.fused, *map(str, one.calls)) for name, one in reached(module).items()}
        {'e': (False,), 'f': (True, 'calls of y in e')}
    """
    inside = _calls_by_caller(module)
    into: dict[str, list[Call]] = {}
    for many in inside.values():
        for call in many:
            into.setdefault(call.callee, []).append(call)
    found: dict[str, Reached] = {}
    for name in inside:
        given = into.get(name, ())
        # In a ring, which check.py tells, a caller may come later.
        above = [(call, found.get(call.caller)) for call in given]
        fused = any(call.fuses or (one is not None and one.fused) for call, one in above)
        applied = any(call.applies or (one is not None and one.applied) for call, one in above)
        found[name] = Reached(module[name], tuple(given), fused, applied)
    return found


def _calls_by_caller(module: Module) -> dict[str, tuple[Call, ...]]:
    """Return the calls in each computation that the entry reaches, callers before callees."""
    inside: dict[str, tuple[Call, ...]] = {}
    finished: dict[str, None] = {}
    open_ = [module.entry.name]
    while open_:
        name = open_[-1]
        if name not in inside:
            known = (call for call in calls(module[name]) if call.callee in module.by_name)
            inside[name] = tuple(known)
            # Backwards, as what is finished last comes first.
            open_.extend(call.callee for call in inside[name] if call.callee not in inside)
        else:
            finished.setdefault(open_.pop())
    return {name: inside[name] for name in reversed(finished)}


def chains(module: Module, computation: str) -> Iterator[tuple[Call, ...]]:
    """Yield each way from the entry to a computation: the calls, the outermost first.

    For the entry that is one empty way, for what nothing reaches there is none. The module with
    all calls written out has each of the computation's instructions once for each of these, which
    can be very many: take what is needed.

    Example: `[call.instruction.name for call in next(chains(module, "body"))]` is `["loop"]`

    Args:
        module: where to look.
        computation: its name.
    """
    found = reached(module)
    if computation not in found:
        return
    open_: list[tuple[Call, ...]] = [()]
    while open_:
        way = open_.pop()
        at = way[0].caller if way else computation
        if at == module.entry.name:
            yield way
        on_way = {call.callee for call in way}
        if at not in on_way:  # else a ring
            open_.extend((call, *way) for call in reversed(found[at].calls))
