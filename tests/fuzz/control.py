"""Makers of lines whose control flow depends on values: Python's own, which breaks graphs, and
torch.cond, which does not."""

from __future__ import annotations

from tests.fuzz.draw import Draw
from tests.fuzz.views import Maker


def branch(d: Draw) -> str:
    v = d.tensor(lambda t: not t.is_complex())
    w, x = d.tensor(), d.tensor()
    test = d.one([f"{v}.sum().item() > {d.number()}", f"{v}.any()", f"{v}.max() > 0"])
    return f"if {test}:\n    NEW = {w} + 1\nelse:\n    NEW = {x}.abs()"


def loop(d: Draw) -> str:
    v = d.tensor()
    step = d.one([f"NEW = NEW * 2 - {v}", "NEW.add_(1)", "NEW = NEW.sin()"])
    return f"NEW = {v}.clone()\nfor _ in range({d.rng.randint(0, 3)}):\n    {step}"


def counted(d: Draw) -> str:
    v, w = d.tensor(lambda t: not t.is_complex()), d.ranked(1)
    return f"NEW = {w}[: int({v}.abs().sum().item()) % 3 + 1]"


def number_read(d: Draw) -> str:
    v, w = d.tensor(lambda t: t.numel() > 0), d.tensor()
    return f"NEW = {w} * {v}.flatten()[0].item()"


def condition(d: Draw) -> str:
    v, w = d.tensor(lambda t: t.is_floating_point()), d.tensor()
    yes, no = d.rng.sample(["a * 2", "a.clone()", "a + a.abs()", "a - 1", "a * a * 3"], 2)
    return f"NEW = torch.cond({v}.sum() > 0, lambda a: {yes}, lambda a: {no}, ({w},))"


def without_gradient(d: Draw) -> str:
    v = d.tensor()
    return f"with torch.no_grad():\n    NEW = {v} * {d.number(d[v])}"


def unpacked(d: Draw) -> str:
    v = d.ranked(1)
    return f"NEW, NEW2 = {v}.tensor_split(2, {d.dim(v)})"


CONTROL: list[tuple[float, Maker]] = [
    (2.0, branch),
    (1.0, loop),
    (1.0, counted),
    (1.0, number_read),
    (0.5, condition),
    (1.0, without_gradient),
    (2.0, unpacked),
]
"""These define NEW, and perhaps NEW2, themselves."""
