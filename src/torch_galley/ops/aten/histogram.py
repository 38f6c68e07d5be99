"""Counts of values in bins, of one variable or several."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten.shape import joined
from torch_galley.ops.check import require
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def _some_range(self, bins=100, min=0, max=0) -> Reason | None:
    if not (math.isfinite(min) and math.isfinite(max) and min <= max) or not bins > 0:
        return ArgumentForm("aten.histc", "eager refuses the range")
    return None


@lowers(aten.histc.default, when=_some_range)
def histc(self, bins=100, min=0, max=0):
    """Values outside of the range, and NaN, count nowhere; the last bin contains its upper end.

    An empty range stands for that of the data.
    """
    x = self.ravel()
    low, high = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype)
    if min == max and x.size:
        low, high = jnp.min(x), jnp.max(x)
        message = "the range of the data is not finite"
        require(jnp.isfinite(low) & jnp.isfinite(high), jnp.zeros(()), RuntimeError, message)
        single = (low == high).astype(x.dtype)
        low, high = low - single, high + single
    elif min == max:
        low, high = low - 1, high + 1
    place = ((x - low) * bins / (high - low)).astype(jnp.int64)
    inside = (x >= low) & (x <= high)
    place = jnp.where(inside, jnp.minimum(place, bins - 1), bins)  # bins: nowhere, dropped
    return jnp.zeros(bins, x.dtype).at[place].add(1, mode="drop")


# histogram and histogramdd: bins by their edges, the last one with its upper edge; weights; density


def _edges(x: jax.Array, bins: int, limits: Sequence[float] | None) -> jax.Array:
    """Return bins + 1 edges at equal distances over given limits, or the data's."""
    if limits is not None:
        low, high = (jnp.asarray(limit, x.dtype) for limit in limits)
    elif x.size:
        low, high = jnp.min(x), jnp.max(x)
        message = "the range of the data is not finite"
        require(jnp.isfinite(low) & jnp.isfinite(high), jnp.zeros(()), RuntimeError, message)
    else:  # of nothing: from 0 to 1
        low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    half = jnp.where(low == high, 0.5, 0.0).astype(x.dtype)
    low, high = low - half, high + half
    step, number = (high - low) / bins, jnp.arange(bins + 1)
    # As linspace: each half from its own end.
    up, down = low + step * number, high - step * (bins - number)
    return jnp.where(number < (bins + 1) // 2, up, down).astype(x.dtype)


def _counts(columns, edges, places, weight, density):
    """Return the histogram of points, given each coordinate's bin."""
    inside, flat = jnp.ones((), bool), jnp.zeros((), jnp.int64)
    shape = tuple(len(e) - 1 for e in edges)
    for x, e, place, size in zip(columns, edges, places, shape, strict=True):
        inside = inside & (x >= e[0]) & (x <= e[-1])
        flat = flat * size + jnp.clip(place, 0, size - 1)
    flat = jnp.where(inside, flat, math.prod(shape))  # past the end: dropped
    amount = jnp.ones((), columns[0].dtype) if weight is None else weight.ravel()
    counts = jnp.zeros(math.prod(shape), columns[0].dtype)
    counts = counts.at[flat].add(amount, mode="drop").reshape(shape)
    if density:
        counts = counts / counts.sum()
        for d, e in enumerate(edges):
            counts = counts / jnp.diff(e).reshape(
                [-1 if k == d else 1 for k, _ in enumerate(shape)]
            )
    return counts


def _searched(x: jax.Array, edges: jax.Array) -> jax.Array:
    return jnp.searchsorted(edges, x, side="right") - 1


@lowers(aten.histogram.bin_ct)
def histogram(self, bins=100, *, range=None, weight=None, density=False):
    x = self.ravel()
    edges = _edges(x, bins, range)
    return _counts([x], [edges], [_searched(x, edges)], weight, density), edges


@lowers(aten.histogram.bins_tensor)
def histogram_of_edges(self, bins, *, weight=None, density=False):
    x = self.ravel()
    return _counts([x], [bins], [_searched(x, bins)], weight, density), bins


def _columns(self):
    return list(joined(self, 1).T)


def _all_edges(columns, bins, limits):
    pairs = [None if limits is None else limits[2 * d : 2 * d + 2] for d, _ in enumerate(columns)]
    return [_edges(x, b, pair) for x, b, pair in zip(columns, bins, pairs, strict=True)]


@lowers(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(self, bins, *, range=None, weight=None, density=False):
    return _all_edges(_columns(self), bins, range)


@lowers(aten._histogramdd_from_bin_cts.default)
def histogramdd(self, bins, *, range=None, weight=None, density=False):
    columns = _columns(self)
    edges = _all_edges(columns, bins, range)
    places = [
        ((x - e[0]) * b / (e[-1] - e[0])).astype(jnp.int64)
        for x, e, b in zip(columns, edges, bins, strict=True)
    ]
    return _counts(columns, edges, places, weight, density)


@lowers(aten._histogramdd_from_bin_tensors.default)
def histogramdd_of_edges(self, bins, *, weight=None, density=False):
    columns = _columns(self)
    places = [_searched(x, e) for x, e in zip(columns, bins, strict=True)]
    return _counts(columns, bins, places, weight, density)
