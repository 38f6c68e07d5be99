"""torch_galley.jit: what a step depends on outside its arguments is seen when it changes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_galley
from torch_galley.capture.lazy import jit
from torch_galley.core.errors import CaptureError

SCALE = 2.0
HELPERS = types.ModuleType("helpers")


@pytest.fixture(autouse=True)
def _device() -> None:
    torch_galley.device()


def _helped(x: torch.Tensor) -> torch.Tensor:
    return x * HELPERS.by + HELPERS.table["shift"][1]


class Layer(nn.Module):
    factor = 3.0
    shift = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight * self.factor + self.shift
        return y if self.training else -y


class Slotted:
    __slots__ = ("by",)


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(Layer()).to("xla")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.25)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.clip = 1.5
        self.log: list[float] = []

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).sum().clamp(max=self.clip * 100)
        loss.backward()
        self.optimizer.step()
        return loss

    def scheduled(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.step(x)
        self.schedule.step()
        return loss


def _losses(change: Callable[[Trainer, int], object], name: str, jitted: bool) -> list[float]:
    trainer = Trainer()
    step = getattr(trainer, name)
    step = torch_galley.jit(step) if jitted else step
    losses = []
    for turn in range(6):
        change(trainer, turn)
        losses.append(step(torch.arange(3.0, device="xla")).item())
    return losses


def _new_weight(trainer: Trainer, turn: int) -> None:
    if turn == 3:
        trainer.model[0].weight = nn.Parameter(torch.zeros(3, device="xla"))


KEPT: list[torch.Tensor] = []


def _new_memory(trainer: Trainer, turn: int) -> None:
    if turn == 3:
        KEPT.append(trainer.model[0].weight.data)
        trainer.model[0].weight.data = torch.zeros(3, device="xla")


CHANGES: dict[str, tuple[str, Callable[[Trainer, int], object]]] = {
    "nothing": ("step", lambda trainer, turn: None),
    "learning rate": (
        "step",
        lambda trainer, turn: trainer.optimizer.param_groups[0].update(lr=0.5**turn),
    ),
    "schedule": ("scheduled", lambda trainer, turn: None),
    "momentum": (
        "step",
        lambda trainer, turn: trainer.optimizer.param_groups[0].update(momentum=0.1 * (turn > 3)),
    ),
    "training": ("step", lambda trainer, turn: trainer.model.train(turn % 2 == 0)),
    "class attribute": ("step", lambda trainer, turn: setattr(Layer, "shift", 0.5 * (turn // 2))),
    "shadowed": ("step", lambda trainer, turn: setattr(trainer.model[0], "factor", 1.0 + turn)),
    "own attribute": ("step", lambda trainer, turn: setattr(trainer, "clip", 0.01 * turn)),
    "a module replaced": (
        "step",
        lambda trainer, turn: (
            setattr(trainer, "model", nn.Sequential(Layer()).to("xla").eval())
            if turn == 3
            else None
        ),
    ),
    "a parameter replaced": ("step", _new_weight),
    "a parameter's memory replaced": ("step", _new_memory),
    "a hook": (
        "step",
        lambda trainer, turn: (
            trainer.model[0].register_forward_hook(lambda m, x, y: y * 2) if turn == 3 else None
        ),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_objects(change: str) -> None:
    name, apply = CHANGES[change]
    wanted = _losses(apply, name, False)
    assert len(set(wanted)) > 1
    assert _losses(apply, name, True) == wanted


def _both(make: Callable[[], Callable[[Any], torch.Tensor]], change: Callable[[int], Any]) -> None:
    """Assert that a function and what jit makes of it agree while things change."""
    function = make()
    jitted = torch_galley.jit(function)
    x = torch.arange(3.0, device="xla")
    seen = set()
    for turn in range(4):
        with change(turn) or contextlib.nullcontext():
            wanted, given = function(x), jitted(x)
        assert given.dtype is wanted.dtype
        assert given.tolist() == wanted.tolist()
        seen.add((wanted.dtype, str(wanted.tolist())))
    assert len(seen) > 1


def test_globals_closures_defaults_and_partials(monkeypatch: pytest.MonkeyPatch) -> None:
    HELPERS.by = 1.0
    HELPERS.table = {"shift": [0.0, 0.0]}
    _both(lambda: lambda x: x * SCALE, lambda n: monkeypatch.setitem(globals(), "SCALE", n / 2))
    _both(lambda: _helped, lambda n: setattr(HELPERS, "by", 1.0 - n))
    _both(lambda: _helped, lambda n: HELPERS.table["shift"].__setitem__(1, n % 2))
    _both(lambda: lambda x: _helped(x), lambda n: setattr(HELPERS, "by", n))
    by = 1.0

    def set_by(n: int) -> None:
        nonlocal by
        by = [1, 1.5, -0.0, 0.0][n]

    _both(lambda: lambda x: 1 / (x * by), set_by)
    slotted = Slotted()
    slotted.by = 1.0
    _both(lambda: lambda x: x * slotted.by, lambda n: setattr(slotted, "by", n / 2))
    options = {"by": 1.0}

    def scaled(x: torch.Tensor, options: dict[str, float] = options) -> torch.Tensor:
        return x * options["by"]

    _both(lambda: scaled, lambda n: options.update(by=n / 4))
    _both(lambda: functools.partial(scaled, options=options), lambda n: options.update(by=n / 8))
    _both(lambda: torch_galley.jit(scaled), lambda n: options.update(by=n / 16))
    _both(lambda: torch.no_grad()(scaled), lambda n: options.update(by=n / 32))


@contextlib.contextmanager
def _determinism(on: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int], Any]]] = {
    "default dtype": (
        lambda x: torch.ones(3, device="xla") / 3,
        lambda n: _default_dtype([torch.float32, torch.float64][n % 2]),
    ),
    "autocast": (
        lambda x: x.view(3, 1) @ x.view(1, 3) / 3,
        lambda n: torch.autocast("xla", torch.bfloat16, enabled=n % 2 == 0),
    ),
    "autocast dtype": (
        lambda x: x.view(3, 1) @ x.view(1, 3),
        lambda n: torch.autocast("xla", [torch.bfloat16, torch.float16][n % 2]),
    ),
    "grad mode": (
        lambda x: x + torch.is_grad_enabled(),
        lambda n: torch.set_grad_enabled(n % 2 == 0),
    ),
    "determinism": (
        lambda x: x + torch.are_deterministic_algorithms_enabled(),
        lambda n: _determinism(n % 2 == 0),
    ),
    "default device": (
        lambda x: torch.ones(3).to("xla") + (torch.ones(3).device.type == "xla"),
        lambda n: torch.device(["cpu", "xla"][n % 2]),
    ),
    "inference mode": (
        lambda x: x + torch.is_inference_mode_enabled(),
        lambda n: torch.inference_mode(n % 2 == 0),
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str) -> None:
    step, change = SETTINGS[setting]
    _both(lambda: step, change)


def test_gradients_that_are_not_zeroed_add_up() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    step = torch_galley.jit(lambda x: (weight * x).sum().backward())
    for turn in range(1, 5):
        step(torch.ones(2, device="xla"))
        assert weight.grad.tolist() == [turn] * 2
    weight.grad = torch.full((2,), 10.0, device="xla")
    for turn in range(1, 4):
        step(torch.ones(2, device="xla"))
        assert weight.grad.tolist() == [10 + turn] * 2


def test_an_argument_may_be_what_the_step_refers_to() -> None:
    kept, weight = torch.zeros(2, device="xla"), torch.ones(2, device="xla", requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        (weight * 2).sum().backward()
        x.add_(1)
        return kept + 10 * x + 100 * weight.grad

    def results(function: Callable[[torch.Tensor], torch.Tensor], order: str) -> list[list[float]]:
        kept.zero_()
        weight.grad = torch.zeros(2, device="xla")
        given = {"k": kept, "g": weight.grad, "o": torch.zeros(2, device="xla"), "v": kept[:]}
        return [function(given[name]).tolist() for name in order]

    for order in ("ookkoo", "kkookk", "oovkg", "ggoogg", "vvkko"):
        assert results(torch_galley.jit(step), order) == results(step, order)


def test_gradients_of_arguments_are_theirs() -> None:
    step = torch_galley.jit(lambda weight, x: (weight * x).sum().backward())
    x = torch.ones(2, device="xla")
    weights = [torch.ones(2, device="xla", requires_grad=True) for _ in range(2)]
    for turn in range(1, 4):
        for scale, weight in enumerate(weights, 1):
            step(weight, x * scale)
            assert weight.grad.tolist() == [turn * scale] * 2
    with pytest.raises(CaptureError, match="detach"):
        step(weights[0] * 2, x)


def test_what_nobody_reads_does_not_matter() -> None:
    trainer, runs = Trainer(), itertools.count()

    def step(x: torch.Tensor) -> torch.Tensor:
        next(runs)
        return trainer.step(x)

    jitted = torch_galley.jit(step)
    for _ in range(5):
        trainer.log.append(jitted(torch.ones(3, device="xla")).item())
    assert next(runs) == 2  # the first call leaves gradients, with which the second begins


def test_a_number_that_always_changes_is_told_and_compiled_once() -> None:
    trainer = Trainer()
    step, x = torch_galley.jit(trainer.step), torch.ones(3, device="xla")
    compiles = []

    def train() -> None:
        for turn in range(jit._TOLD_AFTER + 4):
            trainer.optimizer.param_groups[0]["lr"] = 1 / (turn + 1)
            step(x)
            compiles.append(torch_galley.metrics()["compiles"])

    with pytest.warns(UserWarning, match=r"param_groups.*\.lr is another at every call") as told:
        train()
    assert len(told) == 1
    assert compiles[-1] == compiles[3]
