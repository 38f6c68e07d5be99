"""Python numbers of a recorded program: which are constants, which are inputs, both right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_galley

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.1, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.1, **k),
}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_schedules_compile_nothing(optimizer: str, foreach: bool, xla: torch.device) -> None:
    def train(dev: torch.device) -> tuple[list[torch.Tensor], list[float]]:
        params = [torch.linspace(-1, 1, n).to(dev).requires_grad_() for n in (3, 4)]
        optim = OPTIMIZERS[optimizer](params, foreach=foreach)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optim, 0.7)
        compiles = []
        for _ in range(6):
            optim.zero_grad()
            sum((p * p).sum() for p in params).backward()
            optim.step()
            schedule.step()
            torch_galley.sync()
            compiles.append(torch_galley.metrics()["compiles"])
        return [p.detach().cpu() for p in params], compiles

    (wanted, _), (given, compiles) = train(torch.device("cpu")), train(xla)
    torch.testing.assert_close(given, wanted)
    assert compiles[-1] == compiles[2]  # the first makes the state, the second may see what varies


PROGRAMS: list[Callable[[torch.Tensor, float], torch.Tensor]] = [
    lambda x, n: x * n,
    lambda x, n: x + n,
    lambda x, n: n - x,
    lambda x, n: torch.add(x, x, alpha=n),
    lambda x, n: x / n,
    lambda x, n: x > n,
    lambda x, n: x == n,
    lambda x, n: x.clamp_min(n),
    lambda x, n: torch.addcdiv(x, x, x + 3, value=n),
    lambda x, n: torch.addcmul(x, x, x, value=n),
    lambda x, n: torch.lerp(x, x + 1, n),
    lambda x, n: x.abs() ** n,
    lambda x, n: n**x,
    lambda x, n: x.masked_fill(x > 0, n),
    lambda x, n: torch.full_like(x, n),
    lambda x, n: x.clone().fill_(n),
    lambda x, n: x.clone().mul_(n),
    lambda x, n: torch._foreach_add([x, x], [n, n + 1])[1],
    lambda x, n: torch._foreach_lerp([x, x], [x + 1, x], n)[0],
]
NUMBERS = [0.5, 0.1, -0.0, 2.0, 1e-8, float("inf"), float("nan"), 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_number_that_changes_gives_what_eager_gives(
    dtype: torch.dtype, xla: torch.device
) -> None:
    source = torch.tensor([-1.5, 0.1, 0.5, 2.0], dtype=dtype)
    for shape in ((4,), (2, 2)):
        x = source.view(shape)
        for program in PROGRAMS:
            for n in NUMBERS:
                wanted, given = program(x, n), program(x.to(xla), n).cpu()
                torch.testing.assert_close(given, wanted, equal_nan=True)
    for n in (0.1, 0.3):  # compared in the tensor's own precision, also without dimensions
        assert ((source[1].to(xla) > n).item()) == (source[1] > n).item()


def test_whole_numbers(xla: torch.device) -> None:
    x = torch.tensor([-7, 0, 5])
    for n in (2, 3, -4, 2**40):
        for program in (
            lambda x, n: x * n,
            lambda x, n: x + n,
            lambda x, n: x > n,
            torch.full_like,
        ):
            assert torch.equal(program(x.to(xla), n).cpu(), program(x, n))
    small = torch.ones(2, dtype=torch.int8)
    assert torch.equal((small.to(xla) + 300).cpu(), small + 300)


def test_what_varies_is_compiled_once(xla: torch.device) -> None:
    x = torch.ones(3, device=xla)
    torch_galley.sync()
    torch_galley.reset_metrics()
    for n in (0.25, 0.75, 1.75, 2.25):
        assert (x.sin() * n).tolist() == (torch.ones(3).sin() * n).tolist()
    assert torch_galley.metrics()["compiles"] == 2  # a constant first, then an input
