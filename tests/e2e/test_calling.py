"""The ways in which a model is called: threads, modes, gradients, shared and new memory."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import torch_galley


class Tied(nn.Module):
    """An embedding whose weight is the head's too, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids)) * self.scale)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def executions() -> float:
    return torch_galley.metrics()["executions"]


def test_a_model_in_two_threads(galley):
    model = Tied()
    compiled = galley(model)
    batches = [(IDS + shift) % 7 for shift in range(7)]
    wanted = [model(ids) for ids in batches]

    def work(_thread: int) -> None:
        for _ in range(20):
            for ids, want in zip(batches, wanted, strict=True):
                torch.testing.assert_close(compiled(ids), want)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert executions() >= 2 * 20 * 7


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_model_under_each_mode(galley, mode):
    model = Tied()
    with mode():
        given, wanted = galley(model)(IDS), model(IDS)
    torch.testing.assert_close(given, wanted)
    assert given.is_inference() == wanted.is_inference()
    assert given.requires_grad == wanted.requires_grad
    assert executions()


def test_tensors_made_in_inference_mode(galley):
    with torch.inference_mode():
        x = torch.randn(3)
        given = galley(lambda x: x.exp() + 1)(x)
    torch.testing.assert_close(given, x.exp() + 1)
    with torch.no_grad():  # and outside of it, with the function compiled inside
        torch.testing.assert_close(galley(lambda x: x.exp() + 1)(x), x.exp() + 1)
    assert executions()


def test_an_input_that_requires_grad_beside_one_that_does_not(galley):
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * y).sin(), y.exp()

    inputs = [torch.randn(3, requires_grad=True), torch.randn(3)]
    again = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    given, wanted = galley(function)(*inputs), function(*again)
    torch.testing.assert_close(given, wanted)
    assert [result.requires_grad for result in given] == [True, False]
    given[0].sum().backward()
    wanted[0].sum().backward()
    torch.testing.assert_close(inputs[0].grad, again[0].grad)
    assert inputs[1].grad is None
    assert executions() == 2


def test_tied_weights_get_one_gradient_and_stay_tied(galley):
    torch.manual_seed(0)
    model, eager = Tied(), Tied()
    eager.load_state_dict(model.state_dict())
    compiled = galley(model)
    for module, run in ((model, compiled), (eager, eager)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(IDS).square().sum().backward()
            optimizer.step()
    assert model.head.weight is model.embed.weight
    torch.testing.assert_close(model.embed.weight, eager.embed.weight)
    assert executions() == 6


def test_a_buffer_bound_anew_between_calls(galley):
    model = Tied()
    compiled = galley(model)
    with torch.no_grad():
        for factor in (1.0, 2.0, -3.0):
            model.scale = torch.full((4,), factor)
            torch.testing.assert_close(compiled(IDS), model(IDS))
            model.scale.add_(1)
            torch.testing.assert_close(compiled(IDS), model(IDS))
            model.scale.data = torch.randn(4)
            torch.testing.assert_close(compiled(IDS), model(IDS))
    assert executions() == 9
    assert torch_galley.metrics()["compiles"] <= 1  # 0 if an earlier test compiled it


def test_a_parameter_bound_anew_between_calls(galley):
    model = Tied()
    compiled = galley(model)
    with torch.no_grad():
        for _ in range(3):
            model.head.weight = nn.Parameter(torch.randn(7, 4))
            torch.testing.assert_close(compiled(IDS), model(IDS))
            model.head.weight.data = torch.randn(7, 4)
            torch.testing.assert_close(compiled(IDS), model(IDS))
            model.load_state_dict({name: t * 2 for name, t in model.state_dict().items()})
            torch.testing.assert_close(compiled(IDS), model(IDS))
    assert executions() == 9


def test_a_replaced_parameter_is_let_go_at_the_next_call(galley):
    model = nn.Linear(300, 300)
    compiled, x = galley(model), torch.randn(2, 300)
    for _ in range(2):
        compiled(x)
    memory = np.random.default_rng(0).random((300, 300), np.float32)
    memory /= 100
    gone = weakref.ref(memory)
    model.weight = nn.Parameter(torch.from_numpy(memory))
    del memory
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert gone() is not None
    model.weight = nn.Parameter(torch.rand(300, 300) / 100)
    torch.testing.assert_close(compiled(x), model(x))
    assert gone() is None
    assert executions() == 5


def test_a_thread_is_handed_the_settings(galley):
    def native_operators(*, handed: bool) -> float:
        function, x = galley(lambda x: (x * 3).sin()), torch.ones(3)
        torch._dynamo.reset()
        torch_galley.reset_metrics()
        with torch_galley.config(deny_ops=["aten.sin"]):
            target = partial(contextvars.copy_context().run, function) if handed else function
            thread = threading.Thread(target=target, args=(x,))
            thread.start()
            thread.join()
        return torch_galley.metrics()["native_ops"]

    assert native_operators(handed=True) == 1
    assert native_operators(handed=False) == 0


def test_a_forked_child_runs_natively() -> None:
    """XLA's threads stay with the parent: what it compiled, and anything new, runs in torch."""
    code = (
        "import os, signal, torch, torch_galley as g\n"
        "def function(x): return (x @ x).sin() + 1\n"
        "def other(x): return (x * 2).cos() - x\n"
        "def compiled(f): return torch.compile(f, backend='galley')\n"
        "mine, x = compiled(function), torch.randn(512, 512)\n"
        "wanted = mine(x)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(120)\n"  # a hang is a failure
        "    torch.set_num_threads(1)\n"  # OpenMP's threads stay with the parent too
        "    g.reset_metrics()\n"
        "    torch.testing.assert_close(mine(x), wanted, rtol=1e-3, atol=1e-3)\n"
        "    torch.testing.assert_close(compiled(other)(x), other(x))\n"
        "    os._exit(0 if g.metrics()['executions'] == 0 else 3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
