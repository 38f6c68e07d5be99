"""Resampling of images with a filter as wide as the step, so that downscaling does not alias.

Both dimensions are a product with a matrix of weights, known once the sizes are.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten import cubic
from torch_galley.ops.aten.matmul import product
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

Filter = Callable[[np.ndarray], np.ndarray]


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: np.ndarray) -> np.ndarray:
    a, x = cubic.ANTIALIASING, np.abs(x)
    return np.where(x < 1, cubic.inner(x, a), np.where(x < 2, cubic.outer(x, a), 0))


def _weights(
    size: int, out: int, radius: int, shape: Filter, align_corners: bool, scale: float | None
) -> np.ndarray:
    """Return how much each input element (column) has of each output element (row)."""
    if align_corners:
        step = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        step = 1 / scale if scale else size / out
    stretch = max(step, 1.0)
    center = step * (np.arange(out) + 0.5)[:, None]
    place = np.arange(size)
    first = np.maximum(np.trunc(center - radius * stretch + 0.5), 0)
    stop = np.minimum(np.trunc(center + radius * stretch + 0.5), size)
    weight = shape((place - center + 0.5) / stretch)
    weight = np.where((place >= first) & (place < stop), weight, 0)
    total = weight.sum(1, keepdims=True)
    return weight / np.where(total == 0, 1, total)


def _floating(self, *unused, **unnamed) -> Reason | None:
    if not self.is_floating_point():
        return ArgumentForm("upsampling with antialias", "integers are rounded at each step")
    return None


def _matrices(shape, radius, filtering, output_size, align_corners, scales, dtype):
    """Return the matrices of weights of both dimensions."""
    return [
        jnp.asarray(_weights(size, out, radius, filtering, align_corners, scale), dtype)
        for size, out, scale in zip(shape[-2:], output_size, scales, strict=True)
    ]


def _resampled(radius: int, shape: Filter):
    def lowering(self, output_size, align_corners, scales_h=None, scales_w=None):
        x = wide(self)
        scales = (scales_h, scales_w)
        down, across = _matrices(
            x.shape, radius, shape, output_size, align_corners, scales, x.dtype
        )
        return product(down, product(x, across.T)).astype(self.dtype)

    return lowering


def _backward(radius: int, shape: Filter):
    def lowering(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        grad, scales = wide(grad_output), (scales_h, scales_w)
        down, across = _matrices(
            input_size, radius, shape, output_size, align_corners, scales, grad.dtype
        )
        return product(down.T, product(grad, across)).astype(grad_output.dtype)

    return lowering


lowers(aten._upsample_bilinear2d_aa.default, when=_floating)(_resampled(1, _triangle))
lowers(aten._upsample_bicubic2d_aa.default, when=_floating)(_resampled(2, _cubic))
lowers(aten._upsample_bilinear2d_aa_backward.default)(_backward(1, _triangle))
lowers(aten._upsample_bicubic2d_aa_backward.default)(_backward(2, _cubic))
