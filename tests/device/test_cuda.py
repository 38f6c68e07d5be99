"""CUDA tensors through XLA on their device, in stream order. Needs a GPU that both see."""

from __future__ import annotations

import pytest
import torch

import torch_galley
from torch_galley.compile.client import has_device

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture(autouse=True)
def _jax_sees_it():
    if not has_device(torch.device("cuda")):
        pytest.skip("jax sees no CUDA device")


def test_a_chain_right_after_a_write_on_the_same_stream(galley):
    def chain(x):
        y = x
        for _ in range(6):
            y = ((y @ x) * 0.02).sin()
        return y

    compiled = galley(chain)
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.empty(1000, 1000, device="cuda").normal_()  # still running when we are called
        wanted = chain(x.clone())
        given = compiled(x)
        x.zero_()
        torch.testing.assert_close(given, wanted, rtol=1e-2, atol=1e-2)
    assert torch_galley.metrics()["executions"] == 5


def test_native_operators_between_clusters(galley):
    compiled = galley(lambda x: (x * 2).t().sin().exp(), options={"deny_ops": ["aten.sin"]})
    x = torch.randn(64, 32, device="cuda")
    torch.testing.assert_close(compiled(x), (x * 2).t().sin().exp())
    assert compiled(x).stride() == (x * 2).t().sin().exp().stride()


def test_training(galley):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = model.cuda()
    x = torch.randn(32, 8, device="cuda")
    model(x).square().mean().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    galley(model)(x).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)
