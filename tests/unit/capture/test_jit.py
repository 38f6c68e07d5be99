"""torch_galley.jit: a step is recorded once, and what can't be repeated is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import torch_galley
from torch_galley.core.errors import CaptureError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "plain": lambda p, dev: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p, dev: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p, dev: torch.optim.AdamW(p, lr=0.01, capturable=dev == "xla"),
}
PYTHON_RUNS = {"plain": 2, "momentum": 2, "adamw": 2}
"""The first step makes the gradients and the optimizer's state, which the second one finds."""


@pytest.fixture(autouse=True)
def _device() -> None:
    torch_galley.device()


def _training(
    dev: str, optimizer: str, runs: Iterator[int]
) -> tuple[nn.Module, Callable[..., Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)
    ).to(dev)
    optim = OPTIMIZERS[optimizer](model.parameters(), dev)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        next(runs)
        optim.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optim.step()
        return loss

    return model, step


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_steps_without_python(optimizer: str) -> None:
    torch.manual_seed(1)
    data = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(5)]
    here, step = _training("cpu", optimizer, count())
    wanted = [step(x, y).item() for x, y in data]
    runs = count()
    there, step = _training("xla", optimizer, runs)
    jitted = torch_galley.jit(step)
    given = [jitted(x.to("xla"), y.to("xla")).item() for x, y in data]
    assert next(runs) == PYTHON_RUNS[optimizer]
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    for (name, w), g in zip(here.state_dict().items(), there.state_dict().values(), strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5, msg=name)


def test_guards() -> None:
    runs = count()  # which, unlike a list, has nothing that a step could depend on

    @torch_galley.jit
    def double(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        next(runs)
        return x * by

    x = torch.arange(3.0, device="xla")
    for argument, by in ((x, 2.0), (x + 1, 2.0), (x, 3.0), (x[:2], 2.0), (x.double(), 2.0)):
        assert double(argument, by).tolist() == (argument * by).tolist()
    assert next(runs) == 4  # values are no guard; a number, a shape and a dtype are


def test_aliases_are_kept() -> None:
    kept = torch.zeros(4, device="xla")

    @torch_galley.jit
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept.add_(x)
        x[:2].mul_(10)
        y = x + 1
        return x, y, y[1:], kept

    for turn in (1, 2, 3):
        x = torch.ones(4, device="xla")
        same, y, tail, state = step(x)
        assert state is kept
        assert kept.tolist() == [turn] * 4
        assert x.tolist() == [10, 10, 1, 1]
        same.zero_()
        tail.zero_()
        assert x.tolist() == [0] * 4
        assert y.tolist() == [11, 0, 0, 0]


def test_two_tensors_of_one_value_are_two() -> None:
    a = torch.ones(2, device="xla")
    b = torch.empty_like(a).copy_(a)

    @torch_galley.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        a.add_(x)
        return a + b

    one = torch.ones(2, device="xla")
    assert [step(one).tolist() for _ in range(3)] == [[3, 3], [4, 4], [5, 5]]


def test_each_call_draws_anew() -> None:
    noisy = torch_galley.jit(lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(64, device="xla")
    first, second = noisy(x), noisy(x)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    third = noisy(x)
    torch.manual_seed(5)
    assert torch.equal(noisy(x), third)


@pytest.mark.parametrize(
    "noise", [nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5)], ids=str
)
def test_training_with_noise_leaves_nothing_behind(noise: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 8), noise, nn.Linear(8, 1)).to("xla")
    optimizer, runs = torch.optim.SGD(model.parameters(), 0.1), count()

    @torch_galley.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        next(runs)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = {step(torch.ones(6, 4, device="xla")).item() for _ in range(6)}
    assert len(losses) == 6
    assert next(runs) == 2  # the first call leaves gradients, with which the second begins


STORE: list[torch.Tensor] = []
COUNT = torch.zeros(())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "asks for a value"),
        (lambda x: x[x > 0], "asks for a value"),
        (lambda x: COUNT.add_(1) and x, r"writes a CPU tensor \(add_\)"),
        (lambda x: x * float(COUNT), "reads a CPU tensor"),
        (lambda x: x + torch.ones(2).add(COUNT).to("xla"), "brings a CPU tensor"),
        (lambda x: x + torch.rand(2).to("xla"), "brings a CPU tensor"),
    ],
)
def test_what_cannot_be_repeated_is_refused(step: Callable[..., Any], words: str) -> None:
    x = torch.ones(2, device="xla")
    with pytest.raises(CaptureError, match=words) as error:
        torch_galley.jit(step)(x)
    assert error.value.site is not None
    assert error.value.site.file == __file__
    assert COUNT.item() == 0
    assert (x + 1).tolist() == [2, 2]  # the device goes on


def test_a_step_that_collects_is_refused() -> None:
    jitted = torch_galley.jit(lambda x: STORE.append(x * 2))
    x = torch.ones(2, device="xla")
    jitted(x)
    jitted(x)
    with pytest.raises(CaptureError, match="leaves 1 new tensors behind"):
        jitted(x)


def test_arguments_that_do_not_fit() -> None:
    jitted = torch_galley.jit(lambda x: x)
    with pytest.raises(CaptureError, match="is on cpu"):
        jitted(torch.ones(2))
    with pytest.raises(CaptureError, match="bytearray"):
        jitted(bytearray(2))


def test_a_lost_value_matters_where_it_is_read() -> None:
    table = torch.ones(4, 2, device="xla")
    lost, read = [nn.functional.embedding(torch.tensor([i]).to("xla"), table) for i in (7, 8)]
    with pytest.raises(IndexError):
        torch_galley.sync()
    assert torch_galley.jit(lambda x: x + 1)(table).sum().item() == 16
    doubled = torch_galley.jit(lambda x: x * 2)
    assert doubled(torch.ones(1, 2, device="xla")).tolist() == [[2, 2]]
    for step, argument in (
        (doubled, lost),  # traced already
        (torch_galley.jit(lambda x: x + 1), lost),
        (torch_galley.jit(lambda x: x + read), table),
        (torch_galley.jit(lambda x: table.copy_(x)), lost),
        (torch_galley.jit(lambda x: x.clone()), lost),
    ):
        with pytest.raises(CaptureError, match="lost"):
            step(argument)
    assert table.sum().item() == 8
    assert torch_galley.jit(lambda x: x.zero_())(lost).tolist() == [[0, 0]]
