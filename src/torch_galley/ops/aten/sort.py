"""Sorting, selection and binary search.

Sorting is stable in both directions, and NaN counts as the largest value. Where torch leaves open
which of equal elements is meant (topk, kthvalue, median), they count in the order of their places.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_galley.ops.aten.cast import number
from torch_galley.ops.aten.reduce import axis_of
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def _sorted(x: jax.Array, axis: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    """Return the sorted values and where they were."""
    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    if descending:  # backwards twice, so that equal elements keep their order
        x, places = jnp.flip(x, axis), jnp.flip(places, axis)
    x, places = lax.sort((x, places), dimension=axis, is_stable=True, num_keys=1)
    if descending:
        x, places = jnp.flip(x, axis), jnp.flip(places, axis)
    return x, places


def sort(self, dim=-1, descending=False, stable=True):
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    return _sorted(self, axis_of(self, dim), descending)


rows(
    (aten.sort.default, sort),
    (aten.sort.stable, sort),  # always is
)


@lowers(aten.topk.default)
def topk(self, k, dim=-1, largest=True, sorted=True):
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = axis_of(self, dim)
    values, places = _sorted(self, axis, largest)
    return (
        lax.slice_in_dim(values, 0, k, axis=axis),
        lax.slice_in_dim(places, 0, k, axis=axis),
    )


@lowers(aten.kthvalue.default)
def kthvalue(self, k, dim=-1, keepdim=False):
    return _pick(self, k - 1, dim, keepdim)


def _pick(x, rank, dim, keepdim):
    """Return the element of a rank in ascending order, and its place."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = axis_of(x, dim)
    return tuple(lax.index_in_dim(part, rank, axis, keepdim) for part in _sorted(x, axis, False))


@lowers(aten.median.dim)
def median_dim(self, dim, keepdim=False):
    """The lower of two middle elements; the first NaN if there is one."""
    size = self.shape[axis_of(self, dim)] if self.ndim else 1
    values, places = _pick(self, (size - 1) // 2, dim, keepdim)
    if not jnp.issubdtype(self.dtype, jnp.floating) or self.ndim == 0:
        return values, places
    lost = jnp.isnan(self)
    axis = axis_of(self, dim)
    some = jnp.any(lost, axis, keepdims=keepdim)
    first = jnp.argmax(lost, axis, keepdims=keepdim)
    return jnp.where(some, jnp.nan, values).astype(self.dtype), jnp.where(some, first, places)


@lowers(aten.median.default)
def median(self):
    if self.size == 0:
        return jnp.full((), jnp.nan, self.dtype)
    return median_dim(self.ravel(), 0)[0]


@lowers(aten.nanmedian.dim)
def nanmedian_dim(self, dim, keepdim=False):
    """The lower middle one of those that are numbers."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = axis_of(self, dim)
    values, places = _sorted(self, axis, False)
    valid = jnp.sum(~jnp.isnan(self), axis, keepdims=True, dtype=jnp.int64)
    rank = jnp.maximum((valid - 1) // 2, 0)
    found = [jnp.take_along_axis(part, rank, axis) for part in (values, places)]
    return tuple(part if keepdim else jnp.squeeze(part, axis) for part in found)


@lowers(aten.nanmedian.default)
def nanmedian(self):
    if self.size == 0:
        return jnp.full((), jnp.nan, self.dtype)
    return nanmedian_dim(self.ravel(), 0)[0]


@lowers(aten.mode.default)
def mode(self, dim=-1, keepdim=False):
    """The smallest of the most frequent elements, at its last place.

    Eager's answer for NaN depends on where in the row it stands; ours counts it as the largest.
    """
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    axis = axis_of(self, dim)
    values, places = _sorted(self, axis, False)
    number = lax.broadcasted_iota(jnp.int64, values.shape, axis)
    begins = (values != jnp.roll(values, 1, axis)) | (number == 0)  # a run of equal elements
    length = number - lax.cummax(jnp.where(begins, number, 0), axis)
    longest = jnp.argmax(length, axis, keepdims=True)
    found = [jnp.take_along_axis(part, longest, axis) for part in (values, places)]
    return tuple(part if keepdim else jnp.squeeze(part, axis) for part in found)


# Binary search


def searchsorted(sequence, values, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, -1)
    return _search(sequence, values, out_int32, right or side == "right")


def bucketize(values, boundaries, out_int32=False, right=False):
    return _search(boundaries, values, out_int32, right)


def _search(sequence, values, out_int32, right):
    """torch's own bisection, so that NaN and unsorted sequences give what torch gives."""
    if sequence.dtype == bool and not isinstance(values, jax.Array):
        sequence = sequence.astype(jnp.int64)  # a number between or beyond them stays one
    values = number(values, sequence)
    common = jnp.result_type(sequence, values)
    sequence, values = sequence.astype(common), values.astype(common)
    size = sequence.shape[-1]
    low = jnp.zeros(values.shape, jnp.int64)
    high = jnp.full(values.shape, size, jnp.int64)

    def at(places):
        if sequence.ndim == 1:
            return sequence[places]
        return jnp.take_along_axis(sequence, places, -1)

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        here = at(jnp.minimum(middle, size - 1))
        beyond = ~(here > values) if right else ~(here >= values)
        beyond &= low < high
        return jnp.where(beyond, middle + 1, low), jnp.where(beyond | (low >= high), high, middle)

    if size and values.size:
        steps = int(np.ceil(np.log2(size + 1)))
        low, _ = lax.fori_loop(0, steps, halve, (low, high))
    return low.astype(jnp.int32 if out_int32 else jnp.int64)


rows(
    (aten.searchsorted.Tensor, searchsorted),
    (aten.searchsorted.Scalar, searchsorted),
    (aten.bucketize.Tensor, bucketize),
    (aten.bucketize.Scalar, bucketize),
)


@lowers(aten.isin.Tensor_Tensor, promotes=True)
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    tests = test_elements.ravel()
    if not tests.size:
        return jnp.full(elements.shape, invert)
    tests = jnp.sort(tests)
    place = jnp.minimum(jnp.searchsorted(tests, elements), tests.size - 1)
    return (tests[place] == elements) ^ invert
