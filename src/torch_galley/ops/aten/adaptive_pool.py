"""Pooling to a given output size: windows that differ in length where it does not divide."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def _bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each window starts and stops along a dimension."""
    number = np.arange(out)
    return number * size // out, -(-(number + 1) * size // out)


def _members(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in each window, [out, longest], and which of them belong to it."""
    start, stop = _bounds(size, out)
    longest = int((stop - start).max(initial=1))
    position = start[:, None] + np.arange(longest)
    return np.minimum(position, max(size - 1, 0)), position < stop[:, None]


def _average(x: jax.Array, axis: int, out: int) -> jax.Array:
    size = x.shape[axis]
    if out and size % out == 0:
        shape = (*x.shape[:axis], out, size // out, *x.shape[axis + 1 :])
        return x.reshape(shape).mean(axis + 1)
    position, belongs = _members(size, out)
    start, stop = _bounds(size, out)
    after = [1] * (x.ndim - axis - 1)
    windows = jnp.take(x, jnp.asarray(position), axis=axis)
    windows = jnp.where(belongs.reshape(*belongs.shape, *after), windows, 0)
    return windows.sum(axis + 1) / jnp.asarray(stop - start, x.dtype).reshape(-1, *after)


def _average_all(x: jax.Array, output_size) -> jax.Array:
    rank = len(output_size)
    for dim, out in enumerate(output_size):
        x = _average(x, x.ndim - rank + dim, out)
    return x


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(self, output_size):
    return _average_all(wide(self), output_size).astype(self.dtype)


def _backward(grad, x, rank):
    sizes = grad.shape[-rank:]
    pull = jax.vjp(lambda x: _average_all(x, sizes), wide(x))[1]
    return pull(wide(grad))[0].astype(x.dtype)


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(self, output_size):
    rank = len(output_size)
    batch, sizes = self.shape[:-rank], self.shape[-rank:]
    flat, inside = np.zeros((), np.int64), np.ones((), bool)
    for dim, (size, out) in enumerate(zip(sizes, output_size, strict=True)):
        # [out of the dimensions so far..., members of the dimensions so far...]
        position, belongs = (_between(table, dim) for table in _members(size, out))
        flat = _spread(flat, dim) * size + position
        inside = _spread(inside, dim) & belongs
    shape = (*output_size, math.prod(flat.shape[rank:]))
    flat, inside = flat.reshape(shape), inside.reshape(shape)
    pixels = lax.collapse(self, len(batch))
    values = jnp.take(pixels, jnp.asarray(flat), axis=len(batch))
    choice = _last_greatest(values, jnp.asarray(inside))[..., None]
    picked = jnp.take_along_axis(values, choice, -1)[..., 0]
    table = jnp.broadcast_to(jnp.asarray(flat), values.shape)
    return picked, jnp.take_along_axis(table, choice, -1)[..., 0]


def _spread(table: np.ndarray, dim: int) -> np.ndarray:
    """Make room for one more window dimension in the middle and one more member at the end."""
    return table.reshape(*table.shape[:dim], 1, *table.shape[dim:], 1)


def _between(table: np.ndarray, dim: int) -> np.ndarray:
    """Put [out, members] where `_spread` made room."""
    return table.reshape(*[1] * dim, table.shape[0], *[1] * dim, table.shape[1])


def _last_greatest(values: jax.Array, inside: jax.Array) -> jax.Array:
    """Return the first greatest element's number, or the last NaN's: eager scans so."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    lowest = -jnp.inf if floating else jnp.iinfo(values.dtype).min
    first = jnp.argmax(jnp.where(inside, values, lowest), -1)
    if not floating:
        return first
    bad = jnp.isnan(values) & inside
    last = values.shape[-1] - 1 - jnp.argmax(jnp.flip(bad, -1), -1)
    return jnp.where(bad.any(-1), last, first)


def _max_backward(grad, x, indices, rank):
    batch = int(np.prod(x.shape[:-rank], dtype=np.int64))
    rows = jnp.arange(batch)[:, None]
    flat = jnp.zeros((batch, int(np.prod(x.shape[-rank:]))), wide(grad).dtype)
    windows = (batch, math.prod(grad.shape[-rank:]))
    flat = flat.at[rows, indices.reshape(windows)].add(wide(grad).reshape(windows))
    return flat.reshape(x.shape).astype(x.dtype)


def _fractional_backward(grad_output, self, kernel_size, output_size, indices):
    return _max_backward(grad_output, self, indices, len(output_size))


rows(
    (aten._adaptive_avg_pool2d_backward.default, partial(_backward, rank=2)),
    (aten._adaptive_avg_pool3d_backward.default, partial(_backward, rank=3)),
    (aten.adaptive_max_pool2d_backward.default, partial(_max_backward, rank=2)),
    (aten.adaptive_max_pool3d_backward.default, partial(_max_backward, rank=3)),
    (aten.fractional_max_pool2d_backward.default, _fractional_backward),
    (aten.fractional_max_pool3d_backward.default, _fractional_backward),
)
