"""Gradients of interpolation; torch rewrites interpolation itself.

It is linear along each dimension: each input element gathers from the output elements that read it,
with their weights, which are known once the sizes are. A scatter would run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_galley.ops.aten import cubic
from torch_galley.ops.half import wide
from torch_galley.ops.registry import rows

aten = torch.ops.aten

Weights = Callable[[int, int, bool, float | None], np.ndarray]
"""Of a dimension's size, that of the output, align_corners and a scale, how much each output
element (row) has of each input element (column)."""


def _source(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Return where each output element lies among the input's."""
    if align_corners:
        return np.arange(out) * ((size - 1) / (out - 1) if out > 1 else 0.0)
    return (np.arange(out) + 0.5) * (1 / scale if scale else size / out) - 0.5


def _placed(size: int, places: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the weights that give each output element so much of those input elements."""
    weights = np.zeros((len(places), size))
    np.add.at(weights, (np.arange(len(places))[:, None], np.clip(places, 0, size - 1)), shares)
    return weights


def _linear(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    if size == out:
        return np.eye(size)
    x = np.maximum(_source(size, out, align_corners, scale), 0)
    low = np.minimum(np.floor(x), size - 1)
    part = np.minimum(x - low, 1)
    return _placed(size, np.stack([low, low + 1], 1).astype(int), np.stack([1 - part, part], 1))


def _cubic(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
    """Over the edge it is the edge's element."""
    x = _source(size, out, align_corners, scale)
    steps = np.arange(-1, 3)
    places = np.floor(x)[:, None] + steps
    a, away = cubic.INTERPOLATING, np.abs(x[:, None] - places)
    shares = np.where(away <= 1, cubic.inner(away, a), cubic.outer(away, a))
    return _placed(size, places.astype(int), shares)


def _nearest(half: float) -> Weights:
    def weights(size: int, out: int, align_corners: bool, scale: float | None) -> np.ndarray:
        # In single precision for all dtypes, as eager: it decides which side of a border counts.
        step = np.float32(1 / scale if scale else np.float32(size) / np.float32(out))
        places = np.floor((np.arange(out, dtype=np.float32) + np.float32(half)) * step)
        return _placed(size, places.astype(int)[:, None], np.ones((out, 1)))

    return weights


def _gathered(grad: jax.Array, axis: int, weights: np.ndarray) -> jax.Array:
    """Return the weights' transpose times a dimension, from what is not 0 of it alone."""
    reads = weights != 0
    readers = np.argsort(~reads, axis=0, kind="stable")[: reads.sum(0).max(initial=0)]
    shares = np.take_along_axis(weights, readers, 0)
    wide_shares = shares.reshape(*shares.shape, *[1] * (grad.ndim - axis - 1))
    parts = jnp.take(grad, jnp.asarray(readers), axis=axis)
    parts = parts * jnp.asarray(wide_shares, grad.dtype)
    return jnp.where(wide_shares != 0, parts, 0).sum(axis)


def _backward(weights: Weights, aligns: bool = True):
    def backward(grad_output, output_size, input_size, *rest):
        align_corners, *scales = rest if aligns else (False, *rest)
        grad = wide(grad_output)
        for dim, (size, out) in enumerate(zip(input_size[2:], output_size, strict=True)):
            scale = scales[dim] if dim < len(scales) else None
            grad = _gathered(grad, 2 + dim, weights(size, out, align_corners, scale))
        return grad.astype(grad_output.dtype)

    return backward


rows(
    (aten.upsample_nearest1d_backward.default, _backward(_nearest(0.0), aligns=False)),
    (aten.upsample_nearest2d_backward.default, _backward(_nearest(0.0), aligns=False)),
    (aten.upsample_nearest3d_backward.default, _backward(_nearest(0.0), aligns=False)),
    (aten._upsample_nearest_exact1d_backward.default, _backward(_nearest(0.5), aligns=False)),
    (aten._upsample_nearest_exact2d_backward.default, _backward(_nearest(0.5), aligns=False)),
    (aten._upsample_nearest_exact3d_backward.default, _backward(_nearest(0.5), aligns=False)),
    (aten.upsample_linear1d_backward.default, _backward(_linear)),
    (aten.upsample_bilinear2d_backward.default, _backward(_linear)),
    (aten.upsample_trilinear3d_backward.default, _backward(_linear)),
    (aten.upsample_bicubic2d_backward.default, _backward(_cubic)),
)
