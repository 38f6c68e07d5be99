"""torch_galley.jit: what a step depends on outside its arguments is seen when it changes."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

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


class Gain:
    def __init__(self) -> None:
        self.by = 1.0

    def __rmul__(self, other: torch.Tensor) -> torch.Tensor:
        return other * self.by

    def __gt__(self, other: float) -> bool:
        return self.by > other

    def __getattr__(self, name: str) -> float:
        if name != "twice":
            raise AttributeError(name)
        return 2 * self.by


class ByName:
    """A descriptor."""

    by = 1.0

    def __get__(self, owner: object, kind: type) -> float:
        return self.by


class Described:
    by = ByName()


def _own_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * _own_attribute.by


HOLDERS: dict[str, Callable[[], tuple[Any, Callable[[Any, torch.Tensor], Any], Any]]] = {
    "argparse": lambda: (argparse.Namespace(by=1), lambda h, x: x * h.by, _set_by),
    "namespace": lambda: (types.SimpleNamespace(by=1), lambda h, x: x * h.by, _set_by),
    "reflected": lambda: (Gain(), lambda h, x: x * h, _set_by),
    "compared": lambda: (Gain(), lambda h, x: x * (1 + (h > 0.5)), _set_by),
    "getattr": lambda: (Gain(), lambda h, x: x * h.twice, _set_by),
    "literal": lambda: (Gain(), lambda h, x: x * getattr(h, "by"), _set_by),  # noqa: B009
    "vars": lambda: (Gain(), lambda h, x: x * vars(h)["by"], _set_by),
    "descriptor": lambda: (Described(), lambda h, x: x * h.by, lambda h, n: _set_by(ByName, n)),
    "function": lambda: (_own_attribute, lambda h, x: h(x), _set_by),
    "weak": lambda: (weakref.ref(WEAK), lambda h, x: x * h().by, lambda h, n: _set_by(h(), n)),
    "bytes": lambda: (bytearray(1), lambda h, x: x * h[0], lambda h, n: h.__setitem__(0, n)),
    "user dict": lambda: (
        collections.UserDict(by=1),
        lambda h, x: x * h["by"],
        lambda h, n: h.update(by=n),
    ),
    "proxy": lambda: (
        types.MappingProxyType(vars(WEAK)),
        lambda h, x: x * h["by"],
        lambda h, n: _set_by(WEAK, n),
    ),
    "context": lambda: (
        ContextVar("by", default=1.0),
        lambda h, x: x * h.get(),
        lambda h, n: h.set(n / 2) and None,
    ),
}
WEAK = Gain()


def _set_by(holder: Any, turn: int) -> None:
    holder.by = turn / 2


@pytest.mark.parametrize("holder", HOLDERS)
def test_where_a_value_may_lie(holder: str) -> None:
    made, read, change = HOLDERS[holder]()
    change(made, 1)
    _both(lambda: lambda x: read(made, x), lambda n: change(made, n))


def _double(weight: torch.Tensor) -> None:
    weight.grad *= 2


def test_hooks_of_tensors_and_optimizers() -> None:
    def trained(add_hook: Callable[[Any, Any], Any], jitted: bool) -> list[float]:
        weight = torch.ones(3, device="xla", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()

        run = torch_galley.jit(step) if jitted else step
        for turn in range(5):
            if turn == 3:
                handle = add_hook(weight, optimizer)
            run(torch.arange(3.0, device="xla"))
        handle.remove()
        return weight.tolist()

    def double(optimizer: Any, *_: Any) -> None:
        _double(optimizer.param_groups[0]["params"][0])

    hooks = {
        "gradient": lambda w, o: w.register_hook(lambda g: g * 2),
        "accumulated": lambda w, o: w.register_post_accumulate_grad_hook(_double),
        "all optimizers": lambda w, o: register_optimizer_step_pre_hook(double),
        "optimizer": lambda w, o: o.register_step_pre_hook(double),
    }
    plain = trained(lambda w, _: w.register_hook(lambda g: g), jitted=False)
    for name, hook in hooks.items():
        eager = trained(hook, jitted=False)
        assert trained(hook, jitted=True) == eager != plain, name


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


class Tripling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + result + result if func is torch.Tensor.mul else result


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
    "function mode": (
        lambda x: x * 2,
        lambda n: Tripling() if n % 2 else contextlib.nullcontext(),
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
