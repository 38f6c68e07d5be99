"""Convolutions: every setting, both ways, and all three gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "plain": ((2, 4, 7, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "grouped dilated": ((2, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "dilation": 2}),
    "1x1": ((2, 4, 5, 6), (6, 4, 1, 1), {}),
    "1x1 strided": ((2, 4, 5, 6), (6, 4, 1, 1), {"stride": 2}),
    "1x1 padded": ((2, 4, 5, 6), (6, 4, 1, 1), {"padding": 1}),
    "depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "stride": (2, 1), "padding": 1}),
    "depthwise dilated": ((2, 4, 9, 8), (4, 1, 3, 2), {"groups": 4, "dilation": (1, 3)}),
    "depthwise twice": ((2, 4, 6, 6), (8, 1, 3, 3), {"groups": 4}),
    "1d": ((2, 4, 9), (6, 4, 3), {"padding": 2, "dilation": 2}),
    "3d": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 3), {"stride": (1, 2, 1)}),
    "unbatched": ((4, 7, 8), (6, 4, 3, 3), {}),
    "empty batch": ((0, 4, 7, 8), (6, 4, 3, 3), {"padding": 1}),
}
TRANSPOSED = {
    "plain": ((2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "all": (
        (2, 4, 5, 5),
        (4, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2},
    ),
    "deep": ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"stride": (1, 2, 1)}),
    "wide": ((2, 4, 5), (4, 3, 3), {"stride": 3}),
}
FORWARD = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
BACKWARD = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def with_gradients(galley, function, *tensors):
    """Compare a function and the gradients of all its arguments with eager."""
    twins = (
        [t.clone().requires_grad_() for t in tensors],
        [t.clone().requires_grad_() for t in tensors],
    )
    outputs = function(*twins[0]), galley(function, fullgraph=True)(*twins[1])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(outputs[0])
    for output in outputs:
        (output * weight).sum().backward()
    for want, got in zip(*twins, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_convolution(galley, name):
    x, w, settings = CASES[name]
    function = FORWARD[len(w)]
    tensors = torch.randn(x), torch.randn(w), torch.randn(w[0])
    with_gradients(galley, lambda x, w, b: function(x, w, b, **settings), *tensors)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(galley, name):
    x, w, settings = TRANSPOSED[name]
    function = BACKWARD[len(w)]
    tensors = torch.randn(x), torch.randn(w), torch.randn(w[1] * settings.get("groups", 1))
    with_gradients(galley, lambda x, w, b: function(x, w, b, **settings), *tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(same, dtype):
    x, w = torch.randn(2, 4, 6, 6).to(dtype), torch.randn(6, 4, 3, 3).to(dtype)
    same(lambda x, w: F.conv2d(x, w), x, w)
    same(lambda x, w: F.conv2d(x, w, groups=4), x, w[:4, :1])


def test_integers(same):
    x, w = torch.arange(50).reshape(1, 2, 5, 5), torch.arange(36).reshape(2, 2, 3, 3)
    same(lambda x, w: F.conv2d(x, w, padding=1), x, w)


def test_complex(same):
    x, w = (torch.randn(s, dtype=torch.complex64) for s in ((1, 2, 5, 5), (3, 2, 3, 3)))
    same(lambda x, w: F.conv2d(x, w, padding=1), x, w, rtol=1e-4, atol=1e-5)
    same(lambda x: x.real * 2j, x)
