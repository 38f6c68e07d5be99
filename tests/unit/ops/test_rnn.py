"""An LSTM, which Dynamo lets through only if asked, goes to XLA whole."""

import pytest
import torch


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


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_training(kind):
    model = kind(3, 4)

    def gradients(inputs):
        model.zero_grad()
        model(inputs)[0].square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    inputs = torch.randn(5, 2, 3)
    wanted = gradients(inputs)
    model = torch.compile(model, backend="galley", fullgraph=True)
    torch.testing.assert_close(gradients(inputs), wanted)
