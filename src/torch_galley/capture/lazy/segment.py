"""Cutting a long program into short ones that a loop repeats.

A loop that never syncs would be one endless program. When there is too much of it, it is cut
where its first step comes again: so each piece is a whole number of turns, and one compiled
piece serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_galley.capture.lazy.trace import Program, Value

LENGTH = 512
"""About how many steps a piece has."""


def segments(program: Program) -> Iterator[list[Value]]:
    """Yield, piece by piece, the values that later steps or the program's outputs need.

    They have to be computed before the next is asked for. The steps after the last piece are
    left over.
    """
    steps = program.steps
    last_use = {id(value): len(steps) for value in program.outputs}
    made: list[dict[int, Value]] = [{} for _ in steps]
    for value in program.outputs:
        assert value.step is not None
        made[value.step.position][id(value)] = value
    for step in steps:
        for value in step.operands:
            if value.step is not None:
                last_use[id(value)] = max(step.position, last_use.get(id(value), 0))
                made[value.step.position][id(value)] = value
    start = 0
    while (end := _end(program, start)) is not None:
        yield [
            value
            for values in made[start:end]
            for key, value in values.items()
            if last_use[key] >= end
        ]
        start = end


def _end(program: Program, start: int) -> int | None:
    """Return where the piece that begins at `start` ends, None if there is too little left."""
    limit = start + LENGTH
    if limit > len(program.steps):
        return None
    first = program.steps[start]
    for position in range(limit, start, -1):
        if position == len(program.steps):
            continue
        step = program.steps[position]
        if step.recipe is first.recipe and step.place == first.place:
            return position
    return limit
