"""Normalisations: values, running statistics, gradients, half types."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

MODULES = {
    "layer": lambda: (nn.LayerNorm((4, 5)), (2, 3, 4, 5)),
    "layer without weights": lambda: (nn.LayerNorm(5, elementwise_affine=False), (2, 3, 5)),
    "batch1d": lambda: (nn.BatchNorm1d(3, momentum=0.3), (4, 3, 5)),
    "batch1d of rows": lambda: (nn.BatchNorm1d(3), (4, 3)),
    "batch2d": lambda: (nn.BatchNorm2d(3), (2, 3, 4, 5)),
    "batch without stats": lambda: (nn.BatchNorm2d(3, track_running_stats=False), (2, 3, 4, 5)),
    "batch without weights": lambda: (nn.BatchNorm2d(3, affine=False), (2, 3, 4, 5)),
    "group": lambda: (nn.GroupNorm(2, 4), (3, 4, 5, 2)),
    "instance": lambda: (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
    "rms": lambda: (nn.RMSNorm(5), (2, 3, 5)),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(galley, name, train):
    module, shape = MODULES[name]()
    module.train(train)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2)
    twins = [module, copy.deepcopy(module)]
    runs = [twins[0], galley(twins[1], fullgraph=True)]
    inputs = [torch.randn(shape) * 3 + 2 for _ in range(2)]
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in runs]
    outputs = [[run(x) for x in own] for run, own in zip(runs, leaves, strict=True)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dict(twins[1].named_buffers()), dict(twins[0].named_buffers()))
    weight = torch.randn(shape)
    for own in outputs:
        sum((y * weight).sum() for y in own).backward()
    for want, got in zip(leaves[0], leaves[1], strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
    for want, got in zip(twins[0].parameters(), twins[1].parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(same, dtype):
    x, w = torch.randn(4, 6, 8).to(dtype), torch.randn(8).to(dtype)
    # Eager rounds its half statistics in between; we need not.
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    same(lambda x, w: F.layer_norm(x, (8,), w, w), x, w, **near)
    same(lambda x, w: F.group_norm(x, 3, w[:6], w[:6]), x, w, **near)
    same(lambda x, w: F.batch_norm(x, None, None, w[:6], w[:6], True), x, w, **near)


def test_a_mean_far_from_zero_leaves_the_variance_right(galley):
    x = torch.randn(4, 64) + 10000
    want = F.layer_norm(x.double(), (64,)).float()
    got = galley(lambda x: F.layer_norm(x, (64,)))(x)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
