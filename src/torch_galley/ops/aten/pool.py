"""Max and average pooling over windows of a fixed size.

Values travel channels-last, as in conv.py, and a window is written out as shifted slices: XLA:CPU
runs those several times faster than a reduce_window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch._ops import OpOverload

from torch_galley.ops.aten.shape import joined
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_MOST_SLICES = 32
"""Longest side of a window that is written out as slices; longer ones become a reduce_window."""


def _each(value: Sequence[int] | int, rank: int) -> list[int]:
    """Return one number per spatial dimension: torch takes one for all, too."""
    value = [value] if isinstance(value, int) else list(value)
    return value * rank if len(value) == 1 else value


def _out_size(n: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    span = n + 2 * p - d * (k - 1) - 1
    out = (span + (s - 1 if ceil_mode else 0)) // s + 1
    # The last window must start inside the input or the padding to its left.
    return out - 1 if ceil_mode and (out - 1) * s >= n + p else out


class _Windows:
    """The geometry of one pooling: what is needed per spatial dimension."""

    def __init__(self, x, kernel, stride, padding, dilation, ceil_mode):
        rank = len(kernel)
        self.rank, self.kernel = rank, kernel
        self.stride = _each(stride, rank) or kernel
        self.padding, self.dilation = _each(padding, rank), _each(dilation, rank)
        self.size = x.shape[-rank:]
        self.out = [
            _out_size(*row, ceil_mode)
            for row in zip(self.size, kernel, self.stride, self.padding, self.dilation, strict=True)
        ]

    def pads(self) -> list[tuple[int, int]]:
        """How much to pad so that every window lies inside; less than none is a crop."""
        return [
            (p, (out - 1) * s + d * (k - 1) + 1 - n - p)
            for n, out, k, s, p, d in zip(
                self.size,
                self.out,
                self.kernel,
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        ]

    def slice(self, padded: jax.Array, dim: int, tap: int) -> jax.Array:
        """Return what the windows see at position `tap` along spatial dimension `dim`.

        Dimensions are those of a [batch, spatial..., channels] array.
        """
        start = tap * self.dilation[dim]
        stop = start + (self.out[dim] - 1) * self.stride[dim] + 1
        return lax.slice_in_dim(padded, start, stop, self.stride[dim], axis=1 + dim)


def _channels_last(x: jax.Array, rank: int) -> jax.Array:
    x = joined(x, rank + 1) if x.ndim != rank + 2 else x
    return jnp.moveaxis(x, 1, -1)


def _channels_first(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Undo `_channels_last`; `shape` is that of the result but for its spatial sizes."""
    rank = x.ndim - 2
    x = jnp.moveaxis(x, -1, 1)
    return x.reshape(*shape[: len(shape) - rank], *x.shape[2:])


def _pad(x: jax.Array, pads: Sequence[tuple[int, int]], value: float) -> jax.Array:
    config = [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def _lowest(dtype: jnp.dtype) -> float | int:
    return -math.inf if jnp.issubdtype(dtype, jnp.floating) else int(jnp.iinfo(dtype).min)


# Max pooling


def _max_pool(x, kernel, stride, padding, dilation, ceil_mode):
    """Return the maxima and the flat position of each in the unpadded input.

    Later elements win only if greater, or NaN, as in eager. Values come from plain maxima, so
    that XLA drops all the rest where nobody uses the positions.
    """
    rank = len(kernel)
    w = _Windows(x, kernel, stride, padding, dilation, ceil_mode)
    rows = _pad(_channels_last(x, rank), w.pads(), _lowest(x.dtype))
    best = values = tap = None
    for number, offset in enumerate(np.ndindex(*kernel)):
        v = rows
        for dim, position in enumerate(offset):
            v = w.slice(v, dim, position)
        if best is None or values is None or tap is None:
            # A window of nothing but -inf has its first real element chosen.
            best, values = jnp.full(v.shape, _lowest(x.dtype), v.dtype), v
            tap = jnp.broadcast_to(_first_tap(w), v.shape)
        values = jnp.maximum(values, v)
        take = v > best
        if jnp.issubdtype(v.dtype, jnp.floating):
            take = take | jnp.isnan(v)
        best = jnp.where(take, v, best)
        tap = jnp.where(take, jnp.int32(number), tap)
    assert values is not None
    assert tap is not None
    indices = _flat_position(w, tap)
    shape = (*x.shape[:-rank], *w.out)
    return _channels_first(values, shape), _channels_first(indices, shape)


def _first_tap(w: _Windows) -> np.ndarray:
    """Return, per window, the number of its first element outside the left padding."""
    number = np.zeros((), np.int32)
    for out, k, s, p, d in zip(w.out, w.kernel, w.stride, w.padding, w.dilation, strict=True):
        skipped = np.maximum(0, -((np.arange(out) * s - p) // d))
        number = number[..., None] * k + skipped.astype(np.int32)
    return number[None, ..., None]


def _flat_position(w: _Windows, tap: jax.Array) -> jax.Array:
    """Turn the number of an element in its window into its place in the unpadded input."""
    digits, rest = [], tap
    for k in reversed(w.kernel):
        digits.insert(0, rest % k)
        rest = rest // k
    flat = jnp.zeros((), jnp.int64)
    for dim, digit in enumerate(digits):
        first = np.arange(w.out[dim]) * w.stride[dim] - w.padding[dim]
        first = first.reshape(-1, *[1] * (w.rank - dim))
        flat = flat * w.size[dim] + (digit * w.dilation[dim] + first).astype(jnp.int64)
    return flat


def _max_pool_backward(grad, x, kernel, stride, padding, dilation, ceil_mode, indices):
    """Send each gradient to where its maximum was.

    For each element of the window: the gradients whose window chose it, spread out by the
    stride. That is a sum of pads, where a scatter would run one element after the other.
    """
    rank = len(kernel)
    w = _Windows(x, kernel, stride, padding, dilation, ceil_mode)
    chosen = _channels_last(indices, rank)
    rows = wide(_channels_last(grad, rank))
    total = jnp.zeros(_channels_last(x, rank).shape, rows.dtype)
    for number in range(math.prod(kernel)):
        position = _flat_position(w, jnp.full((1,) * (rank + 2), number, jnp.int32))
        part = jnp.where(chosen == position, rows, 0)
        config = [(0, 0, 0)]
        for dim, digit in enumerate(np.unravel_index(number, kernel)):
            low = int(digit) * w.dilation[dim] - w.padding[dim]
            high = w.size[dim] - low - ((w.out[dim] - 1) * w.stride[dim] + 1)
            config.append((low, high, w.stride[dim] - 1))
        total = total + lax.pad(part, jnp.zeros((), part.dtype), [*config, (0, 0, 0)])
    return _channels_first(total, x.shape).astype(x.dtype)


# Average pooling


def _average(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    """Return the averages in the accumulation dtype, one spatial dimension after the other."""
    rank = len(kernel)
    w = _Windows(x, kernel, stride, padding, 1, ceil_mode)
    rows = wide(_channels_last(x, rank))
    rows = _pad(rows, w.pads(), 0)
    for dim, k in enumerate(kernel):
        if w.out[dim] == 1:
            rows = lax.slice_in_dim(rows, 0, k, axis=1 + dim).sum(1 + dim, keepdims=True)
        elif k <= _MOST_SLICES:
            rows = reduce(jnp.add, [w.slice(rows, dim, tap) for tap in range(k)])
        else:
            window, step = [1] * rows.ndim, [1] * rows.ndim
            window[1 + dim], step[1 + dim] = k, w.stride[dim]
            zero = np.zeros((), rows.dtype)  # concrete, so that jax sees a sum, with a gradient
            rows = lax.reduce_window(rows, zero, lax.add, window, step, "VALID")
    divisor = divisor_override or _counts(w, count_include_pad)
    if isinstance(divisor, np.ndarray):
        divisor = jnp.asarray(divisor, rows.dtype)
    return _channels_first(_divided(rows, divisor), (*x.shape[:-rank], *w.out))


def _divided(total: jax.Array, divisor) -> jax.Array:
    integer = jnp.issubdtype(total.dtype, jnp.integer)
    return lax.div(*jnp.broadcast_arrays(total, divisor)) if integer else total / divisor


def _counts(w: _Windows, include_pad: bool) -> np.ndarray:
    """Return how many elements each window averages, as [1, spatial..., 1]."""
    count = np.ones((), np.int64)
    for n, out, k, s, p in zip(w.size, w.out, w.kernel, w.stride, w.padding, strict=True):
        start = np.arange(out) * s - p
        stop = np.minimum(start + k, n + p)
        if not include_pad:
            start, stop = np.maximum(start, 0), np.minimum(stop, n)
        count = count[..., None] * (stop - start)
    return count[None, ..., None]


def _lower_max_pool(rank: int, forward: OpOverload, backward: OpOverload) -> None:
    """Lower the pooling of a number of dimensions: a list may have one number for all of them."""

    @lowers(forward)
    def max_pool_with_indices(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        return _max_pool(self, _each(kernel_size, rank), stride, padding, dilation, ceil_mode)

    @lowers(backward)
    def max_pool_with_indices_backward(
        grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
    ):
        kernel = _each(kernel_size, rank)
        return _max_pool_backward(
            grad_output, self, kernel, stride, padding, dilation, ceil_mode, indices
        )


def _lower_avg_pool(rank: int, forward: OpOverload, backward: OpOverload) -> None:
    """Lower the pooling of a number of dimensions: a list may have one number for all of them."""

    @lowers(forward)
    def avg_pool(
        self,
        kernel_size,
        stride=(),
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ):
        kernel = _each(kernel_size, rank)
        options = (ceil_mode, count_include_pad, divisor_override)
        return _average(self, kernel, stride, padding, *options).astype(self.dtype)

    @lowers(backward)
    def avg_pool_backward(
        grad_output,
        self,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
    ):
        kernel = _each(kernel_size, rank)
        options = (ceil_mode, count_include_pad, divisor_override)

        def forward(x: jax.Array) -> jax.Array:
            return _average(x, kernel, stride, padding, *options)

        return jax.vjp(forward, wide(self))[1](wide(grad_output))[0].astype(self.dtype)


_lower_max_pool(
    2, aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
)
_lower_max_pool(
    3, aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices_backward.default
)
_lower_avg_pool(2, aten.avg_pool2d.default, aten.avg_pool2d_backward.default)
_lower_avg_pool(3, aten.avg_pool3d.default, aten.avg_pool3d_backward.default)
