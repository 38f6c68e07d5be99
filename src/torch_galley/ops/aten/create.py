"""Tensors made of nothing: fills, ranges, index lists. Memory that torch leaves open is zero."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten.cast import number
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten
prims = torch.ops.prims


def _inferred(*values) -> torch.dtype:
    """Return the dtype torch gives to Python numbers: the default dtype for floats."""
    if any(isinstance(v, complex) for v in values):
        return torch.complex128 if _float() is torch.float64 else torch.complex64
    if any(isinstance(v, float) for v in values):
        return _float()
    return torch.bool if all(isinstance(v, bool) for v in values) else torch.int64


def _float() -> torch.dtype:
    return torch.get_default_dtype()


def filled(size, value, dtype: torch.dtype):
    """Return an array of one value."""
    # A number that only a loop's body knows is an array of another dtype, maybe.
    return jnp.broadcast_to(number(value, XLA_DTYPE[dtype]).astype(XLA_DTYPE[dtype]), tuple(size))


@lowers(aten.full.default)
def full(size, fill_value, *, dtype=None, **unused):
    return filled(size, fill_value, dtype or _inferred(fill_value))


@lowers(aten.full_like.default)
def full_like(self, fill_value, *, dtype=None, **unused):
    value = number(fill_value, XLA_DTYPE[dtype] if dtype else self.dtype)
    return jnp.broadcast_to(value, self.shape)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(s, *, dtype=None, **unused):
    return filled((), s, dtype or _float())


def _zeros(size, *layout, dtype=None, **unused):
    return filled(size, 0, dtype or _float())


rows(
    (aten.empty.memory_format, _zeros),
    (aten.empty_strided.default, _zeros),
    (aten.empty_permuted.default, _zeros),
    (aten._efficientzerotensor.default, _zeros),
)


@lowers(aten.new_empty_strided.default)
def new_empty_strided(self, size, stride, *, dtype=None, **unused):
    return jnp.zeros(tuple(size), XLA_DTYPE[dtype] if dtype else self.dtype)


@lowers(aten.arange.start_step)
def arange(start, end, step=1, *, dtype=None, **unused):
    dtype = dtype or (_inferred(start, end, step) if _any_float(start, end, step) else torch.int64)
    if dtype is torch.int64:  # exact beyond 2**53; torch, too, truncates floats first
        start, end, step = int(start), int(end), int(step)
    whole = not _any_float(start, end, step)
    count = -(-(end - start) // step) if whole else math.ceil((end - start) / step)
    if not (whole or dtype.is_floating_point):  # torch counts in floats and steps in integers
        start, step, whole = int(start), int(step), True
    return _ramp(start, step, count, "int64" if whole else "float64").astype(XLA_DTYPE[dtype])


def _any_float(*values) -> bool:
    return any(isinstance(v, float) for v in values)


def _ramp(start, step, count, dtype):
    index = lax.iota(dtype, count)
    return index * number(step, dtype) + number(start, dtype)


@lowers(prims.iota.default)
def iota(length, *, start, step, dtype, **unused):
    return _ramp(start, step, length, "int64").astype(XLA_DTYPE[dtype])


# Index pairs of a triangle, row by row. Row r of the lower one has min(max(r + 1 + offset, 0),
# columns) entries, so the rows' starts are a short known list and the rest is a search in it.


def _triangle_pairs(lengths, first, dtype):
    ends = jnp.asarray(np.cumsum(lengths, dtype=np.int64))
    position = jnp.arange(int(np.sum(lengths)))
    row = jnp.searchsorted(ends, position, side="right")
    begins = ends - jnp.asarray(lengths)
    column = position - begins[row] + jnp.asarray(first)[row]
    return jnp.stack([row, column]).astype(XLA_DTYPE[dtype])


@lowers(aten.tril_indices.default)
def tril_indices(row, col, offset=0, *, dtype=torch.int64, **unused):
    lengths = np.clip(np.arange(row, dtype=np.int64) + 1 + offset, 0, col)
    return _triangle_pairs(lengths, np.zeros(row, np.int64), dtype or torch.int64)


@lowers(aten.triu_indices.default)
def triu_indices(row, col, offset=0, *, dtype=torch.int64, **unused):
    first = np.clip(np.arange(row, dtype=np.int64) + offset, 0, col)
    return _triangle_pairs(col - first, first, dtype or torch.int64)
