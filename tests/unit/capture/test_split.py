"""What the backward keeps of inputs that the forward overwrites: their old values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_galley


def checkpointed(function, *args):
    return checkpoint(function, *args, use_reentrant=False)


class Normed(nn.Module):
    """BatchNorm, which writes its statistics and counts its calls, inside a checkpoint."""

    around = staticmethod(checkpointed)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def inner(self, x):
        return torch.relu(self.norm(self.first(x)))

    def forward(self, x):
        return self.last(self.around(self.inner, x))


class Nested(Normed):
    def forward(self, x):
        return self.around(lambda x: self.last(self.around(self.inner, x)), x)


class Average(Normed):
    """A moving average of the user's own, and a counter that changes what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(1))

    def inner(self, x):
        scaled = self.first(x) * (self.mean.sin() + 1) / self.calls.float()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.calls.add_(1)
        return scaled.tanh() + self.mean


class Plain(Average):
    around = staticmethod(lambda function, x: function(x))


def trained(model, run, x):
    """Return what three steps leave behind."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        loss = run(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return losses, gradients, dict(model.state_dict())


@pytest.mark.parametrize("kind", [Normed, Nested, Average, Plain])
def test_training_with_buffers_that_are_overwritten(galley, kind):
    """Without a checkpoint, eager writes once: so does torch.compile with one. (Eager with a
    checkpoint writes again in the backward, and torch's aot_eager backend computes with that.)
    """
    torch.manual_seed(0)
    model, x = kind(), torch.randn(8, 4, requires_grad=True)
    other, y = copy.deepcopy(model), x.detach().clone().requires_grad_()
    other.around = lambda function, x: function(x)
    given, wanted = trained(model, galley(model, fullgraph=True), x), trained(other, other, y)
    torch.testing.assert_close(given, wanted)
    torch.testing.assert_close(x.grad, y.grad)
    assert torch_galley.metrics()["executions"] >= 6


@pytest.mark.parametrize("kind", [Normed, Average])
def test_a_checkpoint_still_keeps_only_its_inputs(galley, kind):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(512, 4)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        galley(model)(x)
    large = [t for t in kept if t.numel() == x.numel() and t.data_ptr() != x.data_ptr()]
    assert len(large) <= 1  # the last layer's input at most


def scaled(w, buffer):
    scale = buffer * 2
    buffer.add_(1)
    return w * scale


def copied(w, buffer):
    old = buffer.clone()
    buffer.add_(1)
    return w * old


def through_a_view(w, buffer):
    scale = buffer.view(2, 2).t().sin().flatten()
    buffer.view(2, 2)[0].mul_(3)
    return w * scale * buffer.exp()


def transposed(w, buffer):
    table = buffer.view(2, 2).t()
    old = table * 2
    table.add_(1)
    return w.view(2, 2) * old


def through_pieces(w, buffer):
    first, last = buffer.split(2)
    scale = torch.cat([last * 2, first.exp()])
    first.zero_()
    return w * scale


@pytest.mark.parametrize("program", [scaled, copied, through_a_view, transposed, through_pieces])
def test_an_input_read_and_then_overwritten(galley, program):
    torch.manual_seed(0)
    w, buffer = torch.randn(4, requires_grad=True), torch.randn(4)
    v, other = w.detach().clone().requires_grad_(), buffer.clone()
    given, wanted = galley(program, fullgraph=True)(w, buffer), program(v, other)
    given.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close((given, w.grad, buffer), (wanted, v.grad, other))
    assert torch_galley.metrics()["executions"] >= 2


def test_two_views_of_one_tensor_of_which_one_is_overwritten(galley):
    def program(w, first, last):
        scale = first * 2
        last.add_(1)
        return w * scale

    torch.manual_seed(0)
    results = []
    base = torch.randn(6)
    for run in (galley(program), program):
        w, memory = torch.ones(4, requires_grad=True), base.clone()
        y = run(w, memory[:4], memory[2:])
        y.square().sum().backward()
        results.append((y, w.grad, memory))
    torch.testing.assert_close(*results)


def test_what_eager_refuses_is_refused(galley):
    """The backward needs the input itself: torch refuses that while it traces."""

    def program(w, buffer):
        y = w * buffer
        buffer.add_(1)
        return y

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        galley(program)(torch.ones(4, requires_grad=True), torch.ones(4)).sum().backward()
