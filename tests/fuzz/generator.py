"""Makes random programs. Each line is run in eager at once, and dropped if eager refuses it."""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import replace
from typing import Any

import torch

from tests.fuzz.compute import COMPUTE
from tests.fuzz.control import CONTROL
from tests.fuzz.draw import DTYPES, REAL, WEIGHTS, Draw, Unable
from tests.fuzz.paths import eager
from tests.fuzz.program import NAME, Input, Program, defined
from tests.fuzz.table import from_table
from tests.fuzz.views import VIEWS, WRITES

LARGEST = 300
"""Most elements of a tensor."""
MODERATE = 1e4
"""Numbers grow no larger, mostly."""
TOO_LARGE = "too large"
FAMILIES = ((COMPUTE, 9), (VIEWS, 5), (WRITES, 4), ([(1.0, from_table)], 5), (CONTROL, 1))
"""Makers of lines, and how often one of them is asked."""
REFUSED = 0.03
"""The share of programs that end in a line which eager refuses."""


def generate(seed: str) -> tuple[Program, bool]:
    """Return the program of a seed, and whether eager refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program, refused = _Generator(random.Random(seed)).program(seed)
        if program.grad and not refused and eager(program).error:  # it writes what backward needs
            inputs = tuple(replace(one, grad=False) for one in program.inputs)
            program = replace(program, inputs=inputs)
        return program, refused


class _Generator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.draw = Draw(rng, {})
        self.number = 0
        self.lines: list[str] = []
        self.start = Program((), (), ())
        self.space: dict[str, Any] = {}

    def program(self, seed: str) -> tuple[Program, bool]:
        dynamic = self.rng.random() < 0.1
        self.start = Program(tuple(self._inputs()), (), (), dynamic, seed)
        self._restart()
        refused = self.rng.random() < REFUSED
        wanted, tries = self.rng.randint(2, 12), 0
        while len(self.lines) < wanted and tries < 60:
            tries += 1
            line = self._line()
            problem = line and self._problem(line)
            if line and not problem:
                self._keep(line)
            elif refused and self.lines and problem not in ("", TOO_LARGE):
                self.lines.append(line)
                results = tuple(defined(line)) or self._results()
                return replace(self.start, lines=tuple(self.lines), results=results), True
        return replace(self.start, lines=tuple(self.lines), results=self._results()), False

    def _name(self) -> str:
        self.number += 1
        return f"v{self.number - 1}"

    def _inputs(self) -> list[Input]:
        inputs: list[Input] = []
        main = self.rng.choices(DTYPES, WEIGHTS)[0]
        shape = self.draw.shape()
        grads = self.rng.random() < 0.25
        for _ in range(self.rng.randint(1, 3)):
            if inputs and self.rng.random() < 0.04:
                inputs.append(self._alias(inputs))
                continue
            dtype = main if self.rng.random() < 0.7 else self.rng.choices(DTYPES, WEIGHTS)[0]
            if self.rng.random() < 0.3:
                shape = self.draw.shape()
            layout = self._layout(shape)
            grad = grads and dtype in REAL and self.rng.random() < 0.7
            values = self._values(dtype)
            inputs.append(Input(self._name(), shape, dtype, values, layout, grad))
        return inputs

    def _alias(self, inputs: list[Input]) -> Input:
        base = self.rng.choice(inputs)
        views = [".detach()", ".detach().flatten()"]
        views += [".detach()[:1]", ".detach().transpose(0, -1)"] if base.shape else []
        text = base.name + self.rng.choice(views)
        return Input(self._name(), base.shape, base.dtype, alias=text)

    def _layout(self, shape: tuple[int, ...]) -> str:
        layouts = ["plain"] * 5
        if shape:
            layouts += ["gaps", "offset", "expanded", "transposed"]
        return self.rng.choice(layouts)

    def _values(self, dtype: str) -> tuple[Any, ...]:
        rng, kind = self.rng, self.rng.random()
        count = rng.choice([5, 7, 12, 16])
        if dtype == "bool":
            return tuple(rng.random() < 0.5 for _ in range(count))
        if dtype == "uint8":
            return tuple(rng.choice([rng.randint(0, 9), 255]) for _ in range(count))
        if "int" in dtype:
            extreme = 127 if dtype == "int8" else 2**31 - 1 if "16" not in dtype else 2**15 - 1
            few = [rng.randint(-6, 6) for _ in range(count)]
            return (*few[:-2], extreme, -extreme - 1) if kind < 0.08 else tuple(few)
        if dtype == "complex64":
            parts = [rng.randint(-9, 9) / 4 for _ in range(2 * count)]
            return tuple(map(complex, parts[:count], parts[count:]))
        if kind < 0.5:
            numbers = [rng.randint(-32, 32) / 8 for _ in range(count)]
        else:
            numbers = [round(rng.uniform(-3, 3), 3) for _ in range(count)]
        if kind > 0.96:
            numbers[:4] = [float("inf"), float("-inf"), float("nan"), -0.0]
        return tuple(numbers)

    def _line(self) -> str:
        family = self.rng.choices([f for f, _ in FAMILIES], [w for _, w in FAMILIES])[0]
        maker = self.rng.choices([m for _, m in family], [w for w, _ in family])[0]
        try:
            text = maker(self.draw)
        except (Unable, RuntimeError, IndexError, TypeError, ValueError):
            return ""  # nothing it fits, or an index that even making it refused
        if family is WRITES:
            return text
        if family is CONTROL:
            first = self._name()
            return text.replace("NEW2", self._name()).replace("NEW", first)
        return f"{self._name()} = {text}"

    def _problem(self, line: str) -> str:
        """Return why a line is not kept, "" if it is; if so, it has been run."""
        names = defined(line)
        try:
            exec(line, self.space)
            found = [self.space[name] for name in names] or list(self.draw.values.values())
            for value in found:
                if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                    raise TypeError(f"gives a {type(value).__name__}")
            if any(value.numel() > LARGEST or self._wild(value) for value in found):
                raise OverflowError
        except Exception as error:
            self._restart()
            return TOO_LARGE if isinstance(error, OverflowError) else type(error).__name__
        return ""

    def _restart(self) -> None:
        """Make the values anew: a line that was refused may have written some."""
        made = self.start.made()
        self.space = {"torch": torch, "device": torch.device("cpu")}
        self.space |= zip((one.name for one in self.start.inputs), made, strict=True)
        self.draw.values.clear()
        torch.manual_seed(0)
        for line in self.lines:
            exec(line, self.space)
        names = [one.name for one in self.start.inputs]
        names += [name for line in self.lines for name in defined(line)]
        self.draw.values |= {name: self.space[name] for name in names}

    def _wild(self, value: torch.Tensor) -> bool:
        if not (value.is_floating_point() or value.is_complex()) or not value.numel():
            return False
        real = value.detach().abs().double()
        wild = bool((real > MODERATE).any() or not real.isfinite().all())
        return wild and self.rng.random() < 0.8

    def _keep(self, line: str) -> None:
        self.lines.append(line)
        for name in defined(line):
            self.draw.values[name] = self.space[name]

    def _results(self) -> tuple[str, ...]:
        """Return names of results: most of what no line reads, and some of the rest."""
        made = {name for line in self.lines for name in defined(line)}
        text = re.sub(r"(?m)^ *v\d+(, v\d+)* = ", "", "\n".join(self.lines))
        read = set(NAME.findall(text))
        names = list(self.draw.values)
        shares = [0.9 if name in made - read else 0.2 for name in names]
        chosen = [n for n, share in zip(names, shares, strict=True) if self.rng.random() < share]
        return tuple(chosen or names[-1:])
