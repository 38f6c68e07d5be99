"""Autocast, around compiled functions and on the xla device: eager's dtypes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_galley
from torch_galley.capture.lazy.autocast import Rule, rule_of

aten = torch.ops.aten

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer_norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), (3, 4)),
    "batch_norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)),
        (2, 3, 6, 6),
    ),
    "group_norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()),
        (2, 3, 6, 6),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), (2, 3, 4)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.PReLU(), nn.Softmax(1)),
        (2, 3, 6, 6),
    ),
}


def step(make: Callable[[], nn.Module], shape: tuple[int, ...], low: torch.dtype, way: str) -> Any:
    """Return what a step of training under autocast computes: "eager", "galley" or "xla"."""
    torch.manual_seed(0)
    device = "xla" if way == "xla" else "cpu"
    model, x = make().to(device), torch.randn(shape).to(device).requires_grad_()

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        y = model(x)
        return [
            y,
            y.softmax(-1),
            F.mse_loss(y, torch.zeros_like(y)),
            torch.cat([y, x.mean()[None] + y]),
        ]

    run = torch.compile(forward, backend="galley", fullgraph=True) if way == "galley" else forward
    with torch.autocast(device, low):
        results = run(x)
    sum(result.float().square().mean() for result in results).backward()
    return [*results, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("way", ["galley", "xla"])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, low: torch.dtype, way: str, xla: torch.device) -> None:
    wanted = step(*MODELS[name], low, "eager")
    torch_galley.reset_metrics()
    given = [tensor.cpu() for tensor in step(*MODELS[name], low, way)]
    assert torch_galley.metrics()["executions"] >= 1
    assert [g.dtype for g in given] == [w.dtype for w in wanted]
    torch.testing.assert_close(given, wanted, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (aten.mm.default, Rule.LOWER),
        (aten.conv2d.default, Rule.LOWER),
        (aten.scaled_dot_product_attention.default, Rule.LOWER),
        (aten.mse_loss.default, Rule.SINGLE),
        (aten.fft_fftn.default, Rule.SINGLE),
        (aten.cat.default, Rule.WIDEST),
        (aten.softmax.int, Rule.NONE),
    ],
)
def test_the_rule_is_what_the_cpu_does(op: Any, rule: Rule) -> None:
    assert rule_of(op) is rule


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x @ x.bfloat16(),
    lambda x: torch.einsum("ij,jk->ik", x, x),
    lambda x: torch.baddbmm(x[None], x[None], x[None]),
    lambda x: x.double() @ x.double(),
    lambda x: torch.cat([x @ x, x]),
    lambda x: torch.stack([x.bfloat16(), x.bfloat16()]),
    lambda x: (x @ x).exp(),
    lambda x: (x @ x).softmax(0),
    lambda x: F.layer_norm(x.bfloat16(), (3,)),
    lambda x: F.binary_cross_entropy((x @ x).sigmoid(), torch.ones_like(x)),
    lambda x: F.cross_entropy(x @ x, torch.tensor([0, 2, 1], device=x.device)),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    lambda x: (x @ x).cumsum(0),
    lambda x: torch.linalg.inv((x @ x) + 5 * torch.eye(3, device=x.device)),
    lambda x: torch.mm(x, x, out=torch.empty_like(x)),
    lambda x: (x @ x).add_(x),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_dtypes_on_the_device(function: Callable[..., torch.Tensor], xla: torch.device) -> None:
    x = torch.arange(9.0).view(3, 3) / 9
    with torch.autocast("cpu", torch.bfloat16):
        wanted = function(x)
    with torch.autocast("xla", torch.bfloat16):
        given = function(x.to(xla)).cpu()
    assert given.dtype is wanted.dtype
    torch.testing.assert_close(given, wanted, rtol=0.02, atol=0.02)


def test_nested_and_by_default(xla: torch.device) -> None:
    x = torch.ones(2, 2, device=xla)
    with torch.autocast("xla"):
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is torch.float32
        with torch.autocast("xla", torch.float16):
            assert (x @ x).dtype is torch.float16
        assert (x @ x).dtype is torch.bfloat16
    assert (x @ x).dtype is torch.float32


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient @ x.mT + x.mT @ gradient


def test_a_function_that_asks_for_single_precision(xla: torch.device) -> None:
    x = torch.rand(3, 3).to(xla).requires_grad_()
    with torch.autocast("xla"):
        y = Product.apply(x)
    y.sum().backward()
    (wanted,) = torch.autograd.grad((x @ x).sum(), x)
    assert y.dtype is torch.float32
    torch.testing.assert_close(x.grad.cpu(), wanted.cpu())


@pytest.mark.parametrize("way", ["galley", "xla"])
def test_a_scaler_skips_the_step_that_overflows(way: str, xla: torch.device) -> None:
    def trained(way: str) -> tuple[Any, ...]:
        device = "xla" if way == "xla" else "cpu"
        torch.manual_seed(0)
        model, x = nn.Linear(3, 3).to(device), torch.randn(5, 3).to(device)
        run = torch.compile(model, backend="galley") if way == "galley" else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        for i in range(4):
            with torch.autocast(device, torch.float16):
                loss = run(x).square().mean() * (1e6 if i == 1 else 1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), *(p.detach().cpu() for p in model.parameters())

    wanted, given = trained("eager"), trained(way)
    assert given[0] == wanted[0] == 8.0
    torch.testing.assert_close(given[1:], wanted[1:], rtol=2e-3, atol=2e-3)
