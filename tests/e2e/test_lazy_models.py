"""Whole models trained on the xla device: eager's losses, and no more compilations than graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_galley
from benchmarks import zoo
from torch_galley.capture.lazy import flush
from torch_galley.compile.programs import executables
from torch_galley.core.events import GraphBuilt, listen

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


GRAPHS = {"GPT-2, 4 layers": 3, "BERT, 4 layers": 2, "ResNet-18": 2, "LSTM": 2, "UNet": 2}
"""How many graphs a training is: the first step, which makes the optimizer's state, and all later
ones. transformers reads GPT-2's position ids at each step, to see whether sequences are packed:
what that needs is a graph of its own."""


def steps(name: str, count: int, device: torch.device | str) -> list[float]:
    """Return the loss before each of so many AdamW steps on a device."""
    return zoo.losses(name, count, lambda model: model, small=True, device=device, lr=1e-4)


@pytest.fixture
def graphs() -> Iterator[list[str]]:
    """The fingerprints of the graphs that are built; what earlier tests built is forgotten."""
    seen: list[str] = []
    flush._families.clear()
    executables().clear()

    def on(event: object) -> None:
        if isinstance(event, GraphBuilt):
            seen.append(event.plan.clustered.captured.fingerprint)

    stop = listen(on)
    yield seen
    stop()


@pytest.mark.parametrize(
    ("name", "count"),
    [("ResNet-18", 3), *[pytest.param(name, 50, marks=pytest.mark.slow) for name in zoo.TRAINED]],
)
def test_training_equals_eager(name: str, count: int, graphs: list[str]) -> None:
    wanted = steps(name, count, "cpu")
    torch_galley.reset_metrics()
    given = steps(name, count, torch_galley.device())
    assert given == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    assert wanted[-1] < wanted[0]
    assert len(graphs) == len(set(graphs)) == GRAPHS[name]
    done = torch_galley.metrics()
    assert done["compiles"] == GRAPHS[name]
    assert done["flushes"] == count * (2 if "GPT-2" in name else 1)
    assert done["native_ops"] == 0


def test_the_gradients_of_a_unet() -> None:
    """XLA would compile this step so that a fusion writes over what it still reads."""

    def gradients(device: torch.device | str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, x = zoo.UNet(8, 1).train(), torch.randn(2, 3, 32, 32)
        torch.nn.functional.cross_entropy(
            model.to(device)(x.to(device)), torch.randint(0, 2, (2, 32, 32)).to(device)
        ).backward()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    for given, wanted in zip(gradients(torch_galley.device()), gradients("cpu"), strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
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
