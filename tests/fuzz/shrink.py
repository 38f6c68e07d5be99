"""Makes a program that shows a difference smaller, for as long as it still shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.program import NAME, Input, Program, defined

NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?(e-?\d+)?\b(?!\.)")
BLOCK = re.compile(r"^(?:if|else|for|with)\b.*:\n    (?P<body>.*)$", re.MULTILINE)


def shrink(program: Program, same: Callable[[Program], bool], patience: int = 400) -> Program:
    """Return a smaller program for which `same` still holds.

    Args:
        program: one for which it does.
        same: whether a program shows the difference that is looked for.
        patience: how many programs are tried.
    """
    tried: set[str] = set()
    shrunk = True
    while shrunk and len(tried) < patience:
        shrunk = False
        for smaller in _smaller(program):
            text = smaller.to_json()
            if text in tried or len(tried) >= patience:
                continue
            tried.add(text)
            if same(smaller):
                program, shrunk = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs that are a little smaller, the largest steps first."""
    yield from _fewer_results(program)
    yield from _fewer_lines(program)
    yield from _fewer_inputs(program)
    if program.dynamic:
        yield replace(program, dynamic=False)
    for place, one in enumerate(program.inputs):
        for simpler in _simpler_inputs(one):
            inputs = (*program.inputs[:place], simpler, *program.inputs[place + 1 :])
            yield replace(program, inputs=inputs)
    for place, line in enumerate(program.lines):
        for simpler in _simpler_lines(line):
            yield _with_lines(program, place, simpler)


def _fewer_results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,))
        for name in program.results:
            yield replace(program, results=tuple(n for n in program.results if n != name))


def _fewer_lines(program: Program) -> Iterator[Program]:
    """Leave out a line; who reads what it defined reads something earlier instead."""
    for place in reversed(range(len(program.lines))):
        line = program.lines[place]
        without = (*program.lines[:place], *program.lines[place + 1 :])
        if not (names := defined(line)):
            yield replace(program, lines=without)
            continue
        read = [name for name in NAME.findall(line) if name not in names]
        earlier = [one.name for one in program.inputs]
        for other in dict.fromkeys((*read, *earlier)):
            yield _renamed(replace(program, lines=without), names, other)


def _renamed(program: Program, names: list[str], other: str) -> Program:
    def renamed(text: str) -> str:
        return NAME.sub(lambda found: other if found[0] in names else found[0], text)

    results = tuple(dict.fromkeys(map(renamed, program.results)))
    return replace(program, lines=tuple(map(renamed, program.lines)), results=results)


def _fewer_inputs(program: Program) -> Iterator[Program]:
    text = "\n".join((*program.lines, *program.results, *(one.alias for one in program.inputs)))
    for one in program.inputs:
        if len(program.inputs) > 1:
            rest = tuple(other for other in program.inputs if other is not one)
            if one.name not in NAME.findall(text):
                yield replace(program, inputs=rest)
            elif not any(other.alias for other in rest):
                yield _renamed(replace(program, inputs=rest), [one.name], rest[0].name)


def _simpler_inputs(one: Input) -> Iterator[Input]:
    if one.alias:
        return
    if one.layout != "plain":
        yield replace(one, layout="plain")
    if one.grad:
        yield replace(one, grad=False)
    if len(one.shape) > 1:
        for dim in range(len(one.shape)):
            yield replace(one, shape=(*one.shape[:dim], *one.shape[dim + 1 :]))
    for dim, size in enumerate(one.shape):
        for less in {1, 2, size - 1}:
            if 0 < less < size:
                yield replace(one, shape=(*one.shape[:dim], less, *one.shape[dim + 1 :]))
    if one.dtype in ("float16", "bfloat16", "float64", "int32", "int16", "int8"):
        yield replace(one, dtype="int64" if "int" in one.dtype else "float32")
    if one.dtype != "bool" and len(one.values) > 1:
        yield replace(one, values=(1,))
        yield replace(one, values=(1, 2, 3, 4, 5, 6))
        yield replace(one, values=one.values[: len(one.values) // 2])
        yield replace(one, values=one.values[len(one.values) // 2 :])


def _simpler_lines(line: str) -> Iterator[str]:
    for found in BLOCK.finditer(line):
        yield found["body"]
    for found in NUMBER.finditer(line):
        for simpler in ("0", "1", "2"):
            if found[0] != simpler and len(found[0].lstrip("-")) >= len(simpler):
                yield line[: found.start()] + simpler + line[found.end() :]
    for option in re.finditer(r", \w+=(True|False|torch\.\w+|-?[\d.]+)", line):
        yield line[: option.start()] + line[option.end() :]
    if (one := re.sub(r"torch\.(float16|bfloat16|float64)\b", "torch.float32", line)) != line:
        yield one


def _with_lines(program: Program, place: int, line: str) -> Program:
    lines = (*program.lines[:place], line, *program.lines[place + 1 :])
    return replace(program, lines=lines)
