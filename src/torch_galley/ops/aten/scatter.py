"""Writing at indices. Repeated indices: the last write wins, as on torch's CPU; sums add up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core import reasons
from torch_galley.ops.aten.cast import number
from torch_galley.ops.aten.index import Place, is_mask, no_masks
from torch_galley.ops.aten.shape import axis_of
from torch_galley.ops.check import OutOfRange, in_range, require
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten

_HALF = ("float16", "bfloat16")
_MODES = {
    "sum": "add",
    "add": "add",
    "prod": "multiply",
    "multiply": "multiply",
    "amax": "max",
    "amin": "min",
}
"""torch's names of reductions, old and new, and jax's."""
_OF_BOOL = {"add": "max", "multiply": "min"}


def _reduce_at(operand, key, source, reduce, include_self=True):
    """Reduce `source` into `operand` at `key`; without `include_self`, only where written."""
    if reduce == "mean":
        return _mean_at(operand, key, source, include_self)
    method = _MODES[reduce]
    if operand.dtype == bool:
        method = _OF_BOOL.get(method, method)
    if not include_self:
        neutral = _neutral(method, operand.dtype)
        operand = operand.at[key].set(jnp.broadcast_to(neutral, source.shape), mode="drop")
    return _wide(lambda x, s: getattr(x.at[key], method)(s, mode="drop"), operand, source)


def _wide(write, operand, source):
    """Accumulate half-precision numbers in float32 and round once."""
    dtype = operand.dtype
    if dtype.name in _HALF:
        operand, source = operand.astype("float32"), source.astype("float32")
    return write(operand, source.astype(operand.dtype)).astype(dtype)


def _mean_at(operand, key, source, include_self):
    start = jnp.ones if include_self else jnp.zeros
    count = start(operand.shape, "int64").at[key].add(1, mode="drop")
    count = jnp.maximum(count, 1)

    def write(x, s):
        total = _reduce_at(x, key, s, "sum", include_self)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return total / count.astype(x.dtype)
        return jnp.floor_divide(total, count.astype(x.dtype))

    return _wide(write, operand, source)


def _neutral(method, dtype):
    if method == "add":
        return jnp.zeros((), dtype)
    if method == "multiply":
        return jnp.ones((), dtype)
    low = method == "max"
    if dtype.name == "bool":
        return jnp.asarray(not low)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if low else jnp.inf, dtype)
    limits = jnp.iinfo(dtype)
    return jnp.asarray(limits.min if low else limits.max, dtype)


# scatter: self[i][index[i][j]] = src[i][j] for dim=1


def _scattered(write):
    """Return the lowering of an operator that applies `write(operand, key, source, *how)`."""

    def lowering(self, dim, index, src, *how, **named):
        shape, self = self.shape, jnp.atleast_1d(self)
        index = jnp.atleast_1d(index)
        axis = axis_of(dim, self.ndim)
        if index.size == 0:
            return jnp.reshape(self, shape)
        index = in_range(index, self.shape[axis], axis, negative=False)
        key = tuple(
            index if d == axis else lax.broadcasted_iota(index.dtype, index.shape, d)
            for d in range(self.ndim)
        )
        if isinstance(src, jax.Array):  # index may cover a part of it
            src = jnp.atleast_1d(src)[tuple(slice(length) for length in index.shape)]
        else:
            src = jnp.broadcast_to(number(src, self.dtype), index.shape)
        return jnp.reshape(write(self, key, src, *how, **named), shape)

    return lowering


# index_*: whole slices, at the entries of a 1-d index


def _sliced(write, negative=False):
    """Likewise; 0-dim tensors are seen as 1-d ones, `negative` indices taken or not."""

    def lowering(self, dim, index, source, *how, **named):
        shape, self = self.shape, jnp.atleast_1d(self)
        axis = axis_of(dim, self.ndim)
        index = in_range(jnp.ravel(index), self.shape[axis], axis, negative)
        slab = (*self.shape[:axis], index.size, *self.shape[axis + 1 :])
        if 0 in slab:
            return jnp.reshape(self, shape)
        # A single slice may come without its dimension; a number stands for all.
        source = number(source, self.dtype)
        source = (
            jnp.reshape(source, slab)
            if source.size > 1
            else jnp.broadcast_to(jnp.reshape(source, ()), slab)
        )
        key = (*[slice(None)] * axis, index)
        return jnp.reshape(write(self, key, source, *how, **named), shape)

    return lowering


def _set(operand, key, source):
    return operand.at[key].set(source.astype(operand.dtype), mode="drop")


def _add(operand, key, source, alpha=1):
    if alpha != 1:
        source = source * number(alpha, source.dtype)
    return _reduce_at(operand, key, source, "sum")


rows(
    (aten.scatter.src, _scattered(_set)),
    (aten.scatter.value, _scattered(_set)),
    (aten.scatter.reduce, _scattered(_reduce_at)),
    (aten.scatter.value_reduce, _scattered(_reduce_at)),
    (aten.scatter_add.default, _scattered(_add)),
    (aten.scatter_reduce.two, _scattered(_reduce_at)),
    (aten.index_copy.default, _sliced(_set)),
    (aten.index_fill.int_Scalar, _sliced(_set, negative=True)),
    (aten.index_fill.int_Tensor, _sliced(_set, negative=True)),
    (aten.index_add.default, _sliced(_add)),
    (aten.index_reduce.default, _sliced(_reduce_at)),
)


@lowers(aten.put.default)
def put(self, index, source, accumulate=False):
    if index.size == 0:
        return self
    flat, source = jnp.ravel(self), jnp.ravel(source)
    key = in_range(jnp.ravel(index), self.size, 0)
    flat = _reduce_at(flat, key, source, "sum") if accumulate else _set(flat, key, source)
    return jnp.reshape(flat, self.shape)


# index_put: with tensors of indices, or with one mask


def _index_put_when(self, indices, values, accumulate=False):
    op = "aten.index_put.default"
    if sum(map(is_mask, indices)) == 0:
        return None
    if len([entry for entry in indices if entry is not None]) > 1:
        return no_masks(op, indices)
    if any(isinstance(size, torch.SymInt) for size in values.shape):
        return reasons.DataDependentShape(op)
    return None


@lowers(aten.index_put.default, when=_index_put_when)
def index_put(self, indices, values, accumulate=False):
    values = values.astype(self.dtype)
    if all(entry is None for entry in indices):
        values = jnp.broadcast_to(values, self.shape)
        return self + values if accumulate else values
    before = next(d for d, entry in enumerate(indices) if entry is not None)
    first = indices[before]
    assert first is not None
    if first.dtype in (jnp.bool_, jnp.uint8):
        return _mask_put(self, before, first != 0, values, accumulate)
    place = Place(self, indices)
    if 0 in place.shape:
        return self
    values = jnp.reshape(jnp.broadcast_to(values, place.shape), place.indexed_shape)
    if accumulate:
        return _reduce_at(self, place.key, values, "sum")
    return self.at[place.key].set(values, mode="drop")


def _mask_put(self, before, mask, values, accumulate):
    """Write at a mask over dimensions [before, before + mask.ndim): a choice, no scatter."""
    behind = self.ndim - before - mask.ndim
    selected = values.shape[-behind - 1] if values.ndim > behind else 1
    if selected == 1:
        lead = values.shape[: -behind - 1] if values.ndim > behind else ()
        trail = values.shape[values.ndim - behind :] if values.ndim > behind else values.shape
        values = jnp.reshape(values, (*lead, *[1] * mask.ndim, *trail))
    else:
        # As many values as the mask has True elements, in order: the n-th goes to the n-th.
        count = jnp.sum(mask, dtype="int64")
        message = f"{selected} values for a mask that selects {{value}}"
        require(count == selected, count, OutOfRange, message)
        if selected == 0:
            return self
        order = jnp.reshape(jnp.cumsum(jnp.ravel(mask), dtype="int64") - 1, mask.shape)
        values = jnp.take(values, order, axis=values.ndim - behind - 1, mode="clip")
    mask = jnp.reshape(mask, (*mask.shape, *[1] * behind))
    written = _plus(self, values) if accumulate else values
    return jnp.where(mask, written, self)


def _plus(self, values):
    return self | values if self.dtype == bool else self + values


def _boolean(self, mask, source):
    """Leave another mask to eager, which refuses it; tracing does not."""
    if mask.dtype is torch.bool:
        return None
    return reasons.ArgumentForm("aten.masked_scatter.default", "the mask is not bool")


@lowers(aten.masked_scatter.default, when=_boolean)
def masked_scatter(self, mask, source):
    """The n-th True element, in row-major order, takes the n-th of source."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    count = jnp.sum(mask, dtype="int64")
    message = f"{{value}} elements to write, and source has {source.size}"
    require(count <= source.size, count, OutOfRange, message)
    if source.size == 0 or self.size == 0:
        return self
    order = jnp.reshape(jnp.cumsum(jnp.ravel(mask), dtype="int64") - 1, shape)
    return jnp.where(mask, jnp.take(jnp.ravel(source), order, mode="clip").astype(self.dtype), self)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output, mask, sizes):
    """The inverse: gather the True elements to the front, zeros behind them."""
    size = 1
    for length in sizes:
        size *= length
    mask = jnp.ravel(jnp.broadcast_to(mask, grad_output.shape))
    target = jnp.where(mask, jnp.cumsum(mask, dtype="int64") - 1, size)
    front = jnp.zeros(size, grad_output.dtype).at[target].set(jnp.ravel(grad_output), mode="drop")
    return jnp.reshape(front, sizes)
