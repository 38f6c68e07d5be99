"""Random numbers through both ways in: seeds, freshness, checkpoints, training, settings."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_galley
from torch_galley.core.events import GraphBuilt, listen
from torch_galley.core.reasons import Random, Seed

WAYS = ("compile", "lazy", "jit", "compile-lazy")


def noisy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.dropout(x.sin(), 0.5),
        torch.rand_like(x),
        torch.empty_like(x).normal_(2, 3),
        torch.rand(64, device=x.device),
        torch.randperm(64, device=x.device),
    )


def calls(way: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of CPU tensors that computes `function` in a way of ours."""
    device = "cpu" if way == "compile" else torch_galley.device()
    inner = torch_galley.jit(function) if way == "jit" else function
    if "compile" in way:
        inner = torch.compile(function, backend="galley", fullgraph=True)

    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        found = inner(*(arg.to(device) for arg in args))
        torch_galley.sync()
        return [tensor.cpu() for tensor in found]

    return call


def seeded(call: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(7)
    return call(*args)


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, some, others))


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_brings_numbers_back_and_each_call_has_its_own(way):
    call, x = calls(way, noisy), torch.ones(64)
    first = seeded(call, x)
    second = call(x)
    assert not any(map(torch.equal, first, second))
    assert not torch.equal(first[1], first[3])  # nor are two draws of one call alike
    assert equal(seeded(call, x), first)
    assert equal(call(x), second)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_takes_one_number_from_torchs_generator(way):
    call, x = calls(way, noisy), torch.ones(64)
    call(x)
    seeded(call, x)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.get_rng_state(), after)


def every_kind(x: torch.Tensor) -> list[torch.Tensor]:
    """Draw in all of torch's ways, nothing below 0."""
    new, half = torch.empty_like, torch.full_like(x, 0.5)
    return [
        *(torch.rand(64, device=x.device), torch.rand_like(x)),
        *(torch.randn(9, device=x.device) ** 0, torch.randn_like(x) ** 0),
        *(torch.randint(9, (64,), device=x.device), torch.randint(1, 9, (64,), device=x.device)),
        *(torch.randint_like(x, 9), torch.randint_like(x, 1, 9)),
        *(new(x).random_(9), new(x).random_(1, 9), new(x).random_(), new(x).random_(10**6, None)),
        *(new(x).uniform_(), new(x).uniform_(1, 9), new(x).exponential_(9), new(x).normal_(5, 0.1)),
        *(new(x).cauchy_(4, 0.001) ** 0, new(x).log_normal_(0, 0.1), new(x).geometric_(0.9)),
        *(new(x).bernoulli_(), new(x).bernoulli_(0.5), half.bernoulli(), torch.bernoulli(half)),
        *(torch.normal(x, half / 5), torch.normal(x, 0.1), torch.normal(1.0, half / 5)),
        *(torch.poisson(half), torch.binomial(x * 9, half), torch._standard_gamma(half)),
        *(half.multinomial(5, True), half.multinomial(5), torch.randperm(9, device=x.device)),
        *(torch.normal(5.0, 0.1, (64,), device=x.device), F.rrelu(x, training=True)),
        torch._sample_dirichlet(half),
    ]


def test_torchs_ways_of_drawing_on_the_device():
    x = torch.ones(64)
    drawn = seeded(calls("lazy", every_kind), x)
    for want, got in zip(every_kind(x), drawn, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert (got >= 0).all(), got


def test_all_ways_draw_the_same():
    found = [seeded(calls(way, noisy), torch.ones(64)) for way in WAYS]
    native = {"compile": "background"}, {"deny_ops": ("aten.rand_like", "aten.bernoulli")}, {}
    for options in (*native, {"min_cluster_size": 99}, {"decide": "model"}):
        compiled = torch.compile(noisy, backend="galley", options=options)
        found.append(list(seeded(compiled, torch.ones(64))))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6)
        assert torch.equal(other[0] == 0, found[0][0] == 0)


def test_only_the_seed_is_native(galley):
    built = []
    stop = listen(lambda event: built.append(event.plan) if isinstance(event, GraphBuilt) else 0)
    galley(noisy, options={"require_full": True})(torch.ones(4))
    stop()
    (plan,) = built
    assert {type(reason) for reason in plan.clustered.native.values()} == {Seed}
    assert len(plan.clustered.clusters) == 1


def test_what_stays_with_torchs_generators(galley):
    """A generator of the user's, and numbers that eager refuses: these raise as in eager."""
    generator = torch.Generator()
    built = []
    stop = listen(lambda event: built.append(event.plan) if isinstance(event, GraphBuilt) else 0)
    with torch_galley.config(rng="native"):
        galley(noisy)(torch.ones(4))
    with pytest.raises(RuntimeError, match="expects std >= 0"):
        galley(lambda x: x + torch.normal(0.0, -1.0, (4,)))(torch.ones(4))
    stop()
    for plan in built:
        assert any(isinstance(reason, Random) for reason in plan.clustered.native.values())
    given = torch.rand(3, generator=generator.manual_seed(1), device=torch_galley.device())
    assert torch.equal(given.cpu(), torch.rand(3, generator=generator.manual_seed(1)))
    with pytest.raises(RuntimeError, match="expects std >= 0"):
        torch.empty(3, device=torch_galley.device()).normal_(0, -1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", ["positional", "keyword"])
def test_a_checkpoint_draws_what_its_forward_drew(way, given):
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        args, kwargs = ((x,), {}) if given == "positional" else ((), {"x": x})
        before = F.dropout(x, 0.5)
        inner = checkpoint(part, *args, use_reentrant=False, **kwargs)
        after = F.dropout(inner, 0.5)
        (grad,) = torch.autograd.grad(inner.sum() + 0 * (before.sum() + after.sum()), x)
        return [inner.detach(), grad, before.detach(), after.detach()]

    def part(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x * 2, 0.5) * 3, 0.25)

    if "compile" in way:
        whole = torch.compile(lambda x: checkpoint(part, x, use_reentrant=False), backend="galley")

        def step(x: torch.Tensor) -> list[torch.Tensor]:
            x = x.detach().requires_grad_()
            inner = whole(x)
            (grad,) = torch.autograd.grad(inner.sum(), x)
            return [inner.detach(), grad]

        device = "cpu" if way == "compile" else torch_galley.device()

        def call(x: torch.Tensor) -> list[torch.Tensor]:
            return [t.cpu() for t in step(x.to(device))]
    else:
        call = calls(way, step)
    for _ in range(3):
        inner, grad, *others = call(torch.ones(200))
        assert torch.equal(inner, grad)  # 0 or 16, by the masks
        assert 0 < (inner == 0).sum() < 200
        assert all(not torch.equal(other == 0, inner == 0) for other in others)


@pytest.mark.parametrize("way", ["compile", "compile-lazy"])
def test_the_recomputed_graph_has_no_seed_of_its_own(way):
    """The seed is saved for the backward; what it makes is computed again there."""
    roles = []
    stop = listen(
        lambda event: (
            roles.append(event.plan.clustered.captured) if isinstance(event, GraphBuilt) else 0
        )
    )
    device = "cpu" if way == "compile" else torch_galley.device()
    x = torch.ones(4, device=device, requires_grad=True)
    part = torch.compile(
        lambda x: checkpoint(lambda x: F.dropout(x * 2, 0.5).sin(), x, use_reentrant=False),
        backend="galley",
    )
    part(x).sum().backward()
    torch_galley.sync()
    stop()
    if way == "compile":
        forward, backward = (captured.text() for captured in roles)
        assert "galley.seed" in forward
        assert "galley.bernoulli" in forward
        assert "galley.seed" not in backward
        assert "galley.bernoulli" in backward


class Block(nn.Module):
    """A small transformer, with dropout wherever one has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(F.dropout(self.embed(x), 0.1, self.training)))


def trained(way: str, steps: int = 20) -> list[float]:
    """Return the losses of a training from seed 0."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    device = torch_galley.device() if way == "lazy" else "cpu"
    model = Block().to(device)
    run = torch.compile(model, backend="galley") if way == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    x = torch.arange(24).view(4, 6) % 11
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x.to(device)).flatten(0, 1), x.to(device).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", ["compile", "lazy"])
def test_training_from_a_seed(way):
    first = trained(way)
    assert trained(way) == first  # bit for bit
    assert first[-1] < first[0]
    with torch_galley.config(rng="native"):
        torch.testing.assert_close(trained(way), trained("eager"), rtol=1e-3, atol=1e-3)


def test_states_bring_back_the_place_among_the_draws():
    device = torch_galley.device()

    def draw() -> torch.Tensor:
        return torch.rand(8, device=device)

    draw()
    state = torch.get_rng_state()
    some = [draw(), draw()]
    torch.set_rng_state(state)
    again = [draw()]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = draw()
        torch.manual_seed(1)
        assert torch.equal(draw().cpu(), other.cpu())
    again.append(draw())
    assert equal([t.cpu() for t in some], [t.cpu() for t in again])


def test_pieces_of_an_endless_program_draw_on():
    """Without a sync the device runs what it recorded in pieces, which share executables."""
    device = torch_galley.device()
    with torch_galley.config(max_pending=64), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs in pieces, told once in a process
        kept = [torch.rand(16, device=device).sin().cos() + turn for turn in range(100)]
        torch_galley.sync()
    values = torch.cat([value.cpu() - turn for turn, value in enumerate(kept)])
    assert values.unique().numel() > 1500
    assert torch_galley.metrics()["compiles"] < 20


LOADED = """
import sys, torch
from torch_galley.capture.fx import Captured
captured = Captured.load(sys.argv[1])
from torch_galley.pipeline import build
torch.manual_seed(7)
for found, wanted in zip(build(captured)([torch.ones(64)]), torch.load(sys.argv[2])):
    torch.testing.assert_close(found, wanted)
"""


def test_a_saved_graph_draws_the_same_elsewhere(galley, tmp_path):
    built = []
    stop = listen(lambda event: built.append(event.plan) if isinstance(event, GraphBuilt) else 0)
    torch.save(seeded(galley(noisy), torch.ones(64)), tmp_path / "wanted")
    stop()
    folder = built[0].clustered.captured.save(tmp_path / "graph")
    command = [sys.executable, "-c", LOADED, str(folder), str(tmp_path / "wanted")]
    subprocess.run(command, check=True, timeout=200)


FORKED = """
import os, torch, torch_galley
def f(x): return torch.nn.functional.dropout(x, 0.5)
g = torch.compile(f, backend="galley", options={"min_cluster_size": 1})
x = torch.ones(32); g(x)
if (child := os.fork()) == 0:
    torch.set_num_threads(1)
    torch.manual_seed(1); a, b = g(x), g(x)
    torch.manual_seed(1); c = g(x)
    os._exit(0 if torch.equal(a, c) and not torch.equal(a, b) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_draws_by_itself():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=200)
