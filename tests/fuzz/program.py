"""A program of the fuzzer: input tensors and lines of Python, all of it plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import torch

NAME = re.compile(r"\bv\d+\b")
"""What tensors are called."""
WIDER = dict.fromkeys(("float16", "bfloat16", "float32"), "float64") | {"complex64": "complex128"}
DTYPE = re.compile(rf"\btorch\.({'|'.join(WIDER)})\b")

LAYOUTS: dict[str, str] = {
    "plain": "",
    "transposed": ".transpose(0, -1)",
    "gaps": "[..., ::2]",
    "offset": "[1:]",
    "expanded": ".expand({shape})",
}
"""How an input lies in memory: what is called on the dense tensor it is made of."""


@dataclass(frozen=True)
class Input:
    """A tensor that a program is called with."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[Any, ...] = ()
    """What it is filled with, from the start again where it is larger."""
    layout: str = "plain"
    grad: bool = False
    alias: str = ""
    """If given, what it is instead: an expression of earlier inputs, whose memory it shares."""

    def dense(self) -> tuple[int, ...]:
        """Return the shape of the dense tensor it is made of."""
        shape = self.shape
        if self.layout == "transposed":
            return (shape[-1], *shape[1:-1], shape[0])
        if self.layout == "gaps":
            return (*shape[:-1], 2 * shape[-1])
        if self.layout == "offset":
            return (shape[0] + 1, *shape[1:])
        return (1, *shape[1:]) if self.layout == "expanded" else shape

    def text(self, turn: int = 0) -> str:
        """Return the expression that makes it; each turn has other values."""
        if self.alias:
            return self.alias
        shape = self.dense()
        size, given = prod(shape), self.values or (0,)
        values = [given[(i + turn) % len(given)] for i in range(size)]
        made = f"torch.tensor([{', '.join(map(_number, values))}], dtype=torch.{self.dtype}"
        made += f", device=device).reshape({shape})"
        made += LAYOUTS[self.layout].format(shape=self.shape)
        return made + ".requires_grad_()" * self.grad


def _number(value: Any) -> str:
    text = str(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text


@dataclass(frozen=True)
class Program:
    """What is run in eager, compiled and on the lazy device."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    """Statements; most are `v3 = torch.add(v1, v2)`. `device` is that of the inputs."""
    results: tuple[str, ...]
    """The names of what it returns."""
    dynamic: bool = False
    """Whether it is compiled with dynamic=True."""
    seed: str = field(default="", compare=False)
    """What it was generated from."""

    @property
    def grad(self) -> bool:
        """Whether gradients of the results are asked for."""
        return any(one.grad for one in self.inputs)

    def source(self, wide: bool = False) -> str:
        """Return its function as text; wide: in double precision throughout."""
        body = "\n".join(self.lines).replace("\n", "\n    ")
        names = ", ".join(one.name for one in self.inputs)
        lines = [f"def program({names}):"]
        if "device" in body:
            lines.append(f"    device = {self.inputs[0].name}.device")
        lines += [f"    {body}"] if body else []
        lines.append(f"    return ({', '.join(self.results)},)")
        return _widened("\n".join(lines), wide)

    def making(self, turn: int = 0, wide: bool = False) -> str:
        """Return the function that makes its inputs, as text."""
        lines = ['def inputs(device="cpu"):']
        lines += [f"    {one.name} = {one.text(turn)}" for one in self.inputs]
        lines.append(f"    return ({', '.join(one.name for one in self.inputs)},)")
        return _widened("\n".join(lines), wide)

    def script(self, path: str) -> str:
        """Return a Python script that shows what eager gives, and what we give."""
        ours = "program(*inputs(torch_galley.device()))"
        if path == "compile":
            dynamic = ", dynamic=True" * self.dynamic
            options = 'options={"min_cluster_size": 1}'
            ours = f'torch.compile(program, backend="galley"{dynamic}, {options})(*inputs())'
        parts = ["import torch\nimport torch_galley", self.source(), self.making()]
        parts.append(f"print(program(*inputs()))\nprint({ours})")
        return "\n\n".join(parts) + "\n"

    def function(self, wide: bool = False) -> Callable[..., tuple[Any, ...]]:
        """Return its function."""
        return _defined(self.source(wide), "program")

    def made(self, device: Any = "cpu", turn: int = 0, wide: bool = False) -> tuple[Any, ...]:
        """Return its inputs."""
        return _defined(self.making(turn, wide), "inputs")(device)

    def to_json(self) -> str:
        """Return it as text that `from_json` reads."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Return what `to_json` wrote.

        Example:
            >>> one = Program((Input("v0", (2,), "complex64", (1j,)),), ("v1 = v0 * 2",), ("v1",))
            >>> Program.from_json(one.to_json()) == one
            True
        """
        read = json.loads(text)
        inputs = []
        for one in read.pop("inputs"):
            values = tuple(complex(v) if isinstance(v, str) else v for v in one.pop("values"))
            inputs.append(Input(**one | {"shape": tuple(one["shape"]), "values": values}))
        return cls(tuple(inputs), tuple(read.pop("lines")), tuple(read.pop("results")), **read)


def _widened(text: str, wide: bool) -> str:
    return DTYPE.sub(lambda found: f"torch.{WIDER[found[1]]}", text) if wide else text


def _defined(source: str, name: str) -> Any:
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<fuzz>", "exec"), space)
    return space[name]


def defined(line: str) -> list[str]:
    """Return the names that a line gives to tensors.

    Example:
        >>> defined("v3, v4 = v1.chunk(2)"), defined("v3.mul_(v4)")
        (['v3', 'v4'], [])
    """
    found: list[str] = []
    for part in line.splitlines():
        left, equals, _ = part.strip().partition(" = ")
        if equals and re.fullmatch(r"v\d+(, v\d+)*", left):
            found += [name for name in left.split(", ") if name not in found]
    return found
