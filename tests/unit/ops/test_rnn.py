"""An LSTM, which Dynamo lets through only if asked, goes to XLA whole."""

import pytest
import torch

import torch_galley


@pytest.fixture(autouse=True)
def _allow_rnn():
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_lstm_inference(same, bias, bidirectional):
    model = torch.nn.LSTM(5, 7, 2, bias=bias, bidirectional=bidirectional)
    with torch.no_grad():
        same(model, torch.randn(6, 3, 5))


def test_lstm_inference_from_a_given_state(same):
    model = torch.nn.LSTM(5, 7, batch_first=True)
    state = torch.randn(1, 3, 7), torch.randn(1, 3, 7)
    with torch.no_grad():
        same(model, torch.randn(3, 6, 5), state)


@pytest.mark.parametrize("wanted_of_input", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_training(kind, bidirectional, wanted_of_input):
    """An LSTM whose input wants no gradient is one operator, backward too; else it is steps."""
    model = kind(3, 4, bidirectional=bidirectional)
    inputs = torch.randn(5, 2, 3, requires_grad=wanted_of_input)

    def gradients(call):
        model.zero_grad()
        output, state = call(inputs)
        state = state if isinstance(state, tuple) else (state,)
        (output.square().sum() + sum((i + 2) * s.sum() for i, s in enumerate(state))).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    compiled = torch.compile(model, backend="galley", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(model))
    assert torch_galley.metrics()["native_ops"] == 0
