"""Whole models trained on the xla device: eager's losses, and no more compilations than graphs."""

from __future__ import annotations

import pytest
import torch

import torch_galley
from benchmarks import zoo
from torch_galley.core.events import Flushed, GraphBuilt, listen

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def steps(name: str, count: int, device: torch.device | str) -> list[float]:
    """Return the loss before each of so many AdamW steps, as zoo.losses does, on a device."""
    model, inputs, loss_of = zoo.training(name, small=True)
    model.to(device)
    inputs = {key: value.to(device) for key, value in inputs.items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for _ in range(count):
        optimiser.zero_grad()
        loss = loss_of(model(**inputs))
        loss.backward()
        optimiser.step()
        torch_galley.sync()
        found.append(loss.item())
    return found


def _watched(name: str, count: int) -> tuple[list[float], list[str], int]:
    """Train on the device; return the losses, the distinct graphs' fingerprints, and flushes."""
    graphs: list[str] = []
    flushes = 0

    def on(event: object) -> None:
        nonlocal flushes
        if isinstance(event, GraphBuilt):
            graphs.append(event.plan.clustered.captured.fingerprint)
        flushes += isinstance(event, Flushed)

    device = torch_galley.device()
    torch_galley.sync()
    stop = listen(on)
    try:
        return steps(name, count, device), graphs, flushes
    finally:
        stop()


@pytest.mark.parametrize("name", zoo.TRAINED)
@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_training_equals_eager(name: str, count: int) -> None:
    wanted = steps(name, count, "cpu")
    given, graphs, flushes = _watched(name, count)
    assert given == pytest.approx(wanted, rel=1e-3)
    assert wanted[-1] < wanted[0]
    assert len(graphs) <= 3, "moving the model there, the first step, every later step"
    assert len(set(graphs)) == len(graphs)
    assert torch_galley.metrics()["compiles"] <= len(graphs)
    assert flushes <= count + 1


def test_generate_equals_eager() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=4, n_head=2, vocab_size=96, n_positions=64, eos_token_id=95
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 90, (2, 5))
    settings = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(ids, **settings)
    device = torch_galley.device()
    given = model.to(device).generate(ids.to(device), **settings)
    assert given.shape == (2, 37)
    assert torch.equal(given.cpu(), wanted)
