"""Shrunken models: inference and one training step, all of it in XLA."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from torch_galley.core.events import GraphBuilt, listen

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def ids(*shape):
    return torch.randint(0, 99, shape)


def bert():
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids(2, 9), "attention_mask": mask, "labels": torch.tensor([0, 1])}
    return transformers.BertForSequenceClassification(config), inputs


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    tokens = ids(2, 9)
    inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    return transformers.GPT2LMHeadModel(config), inputs


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=3
    )
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}
    return transformers.ResNetForImageClassification(config), inputs


class Recurrent(nn.Module):
    """An LSTM in both directions under a linear layer."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(16, 3)

    def forward(self, x):
        return {"loss": self.linear(self.lstm(x)[0]).square().mean()}


def lstm():
    return Recurrent(), {"x": torch.randn(2, 5, 6)}


MODELS = [bert, gpt2, resnet, lstm]


@pytest.fixture(autouse=True)
def _whole_lstm():
    """Dynamo leaves recurrent layers to eager unless told otherwise, and torch's AOTAutograd
    fails on the oneDNN layer in training (with the backend aot_eager, too)."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.fixture
def native():
    """Collect the operators that stay out of XLA."""
    found = []

    def on(event):
        if isinstance(event, GraphBuilt):
            clustered = event.plan.clustered
            found.extend(f"{n.target}: {reason}" for n, reason in clustered.native.items())

    stop = listen(on)
    yield found
    stop()


def loss(model, inputs):
    return model(**inputs)["loss"]


@pytest.mark.parametrize("make", MODELS)
def test_inference(galley, native, make):
    model, inputs = make()
    model.eval()
    with torch.no_grad():
        want, got = model(**inputs), galley(model)(**inputs)
    for key in want:
        if isinstance(want[key], torch.Tensor):
            torch.testing.assert_close(got[key], want[key], rtol=1e-4, atol=1e-4)
    assert native == []


@pytest.mark.parametrize("make", MODELS)
def test_training_step(galley, native, make):
    model, inputs = make()
    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = loss(model, inputs), galley(loss)(twin, inputs)
    for value in losses:
        value.backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    largest = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
    for (name, want), got in zip(model.named_parameters(), twin.parameters(), strict=True):
        if want.grad is None:
            assert got.grad is None, name
            continue
        scale = max(want.grad.abs().max(), largest * 1e-3)
        assert (got.grad - want.grad).abs().max() <= 1e-3 * scale, name
    torch.testing.assert_close(dict(twin.named_buffers()), dict(model.named_buffers()))
    assert native == []
