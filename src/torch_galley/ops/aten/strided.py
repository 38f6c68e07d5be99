"""Views that step through memory (as_strided, unfold, diagonal), and writes into views.

A write into a view is a functional operator: a new tensor, `src` in the place the view selects.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_galley.core import reasons
from torch_galley.ops.aten.shape import axis_of, slice_range
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


# as_strided


def _owns_memory(op, self, size, stride, storage_offset):
    """Take as_strided only where the tensor is its whole memory, in row-major order.

    It addresses the memory behind the tensor, and XLA sees the tensor's elements only.
    """
    dense, step = [self.storage_offset() == 0], 1
    for length, by in zip(reversed(self.shape), reversed(self.stride()), strict=True):
        dense.append((by == step) | (length == 1))
        step = step * length
    reach = storage_offset or 0
    for length, by in zip(size, stride, strict=True):
        reach = reach + (length - 1) * by
    if all(map(statically_known_true, [*dense, reach < step])):
        return None
    return reasons.ArgumentForm(op, "the tensor is a view of other memory, or has gaps")


def _as_strided_when(self, size, stride, storage_offset=None):
    return _owns_memory("aten.as_strided.default", self, size, stride, storage_offset)


def _as_strided_scatter_when(self, src, size, stride, storage_offset=None):
    op = "aten.as_strided_scatter.default"
    if any(by == 0 and length != 1 for length, by in zip(size, stride, strict=True)):
        return reasons.ArgumentForm(op, "several elements lie in one place, which eager refuses")
    return _owns_memory(op, self, size, stride, storage_offset)


def _permutation(size, stride):
    """Return dimensions outermost first if they tile a run of memory without gaps, else None."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d]))
    step = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != step:
            return None
        step *= size[d]
    return order


def _positions(size, stride, offset):
    index = jnp.full(size, offset, "int64")
    for d, by in enumerate(stride):
        index += by * lax.broadcasted_iota("int64", size, d)
    return index


@lowers(aten.as_strided.default, aten.as_strided_copy.default, when=_as_strided_when)
def as_strided(self, size, stride, storage_offset=None):
    offset, flat = storage_offset or 0, jnp.ravel(self)
    repeated = [d for d, by in enumerate(stride) if by == 0]
    stored = [1 if d in repeated else s for d, s in enumerate(size)]
    order = _permutation(stored, stride)
    if 0 in size:
        return jnp.zeros(size, self.dtype)
    if order is None:  # gaps or overlaps
        return jnp.take(flat, _positions(size, stride, offset), mode="clip")
    count = 1
    for s in stored:
        count *= s
    run = lax.slice_in_dim(flat, offset, offset + count)
    dense = jnp.reshape(run, [stored[d] for d in order])
    inverse = [order.index(d) for d in range(len(size))]
    return jnp.broadcast_to(jnp.transpose(dense, inverse), size)


@lowers(aten.as_strided_scatter.default, when=_as_strided_scatter_when)
def as_strided_scatter(self, src, size, stride, storage_offset=None):
    """Write a view back. Where windows overlap, what was written in one stands in all of them:
    only what differs from before is written."""
    offset, flat = storage_offset or 0, jnp.ravel(self)
    src = src.astype(self.dtype)
    order = _permutation(size, stride)
    if 0 in size:
        return self
    if order is None:
        index = _positions(size, stride, offset)
        before = jnp.take(flat, index, mode="clip")
        same = (src == before) | ((src != src) & (before != before))
        changed = jnp.where(same, flat.size, index)
        return jnp.reshape(flat.at[changed].set(src, mode="drop"), self.shape)
    run = jnp.ravel(jnp.transpose(src, order))
    return jnp.reshape(_update(flat, run, offset, 0), self.shape)


# unfold: result[..., i, ..., j] = self[..., i * step + j, ...]


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(self, dimension, size, step):
    if self.ndim == 0:
        self, axis = jnp.reshape(self, (1,)), 0
        return jnp.reshape(self[:size], (size,)) if size <= 1 else self
    axis = axis_of(dimension, self.ndim)
    count = (self.shape[axis] - size) // step + 1
    if size <= step:  # windows apart: cut rows of `step`, keep `size` of each
        self = _resize(self, axis, count * step)
        rows = jnp.reshape(self, (*self.shape[:axis], count, step, *self.shape[axis + 1 :]))
        rows = lax.slice_in_dim(rows, 0, size, axis=axis + 1)
        return jnp.moveaxis(rows, axis + 1, -1)
    if size <= 16:  # few slices are cheaper than a gather
        starts = range(size)
        windows = [
            lax.slice_in_dim(self, j, j + (count - 1) * step + 1, step, axis) for j in starts
        ]
        return jnp.stack(windows, axis=-1)
    index = step * jnp.arange(count)[:, None] + jnp.arange(size)
    return jnp.moveaxis(jnp.take(self, index, axis=axis, mode="clip"), axis + 1, -1)


def _resize(array, axis, length):
    """Cut or zero-pad at the end."""
    return lax.pad(
        array, jnp.zeros((), array.dtype), _pads(array.ndim, axis, 0, length - array.shape[axis])
    )


def _pads(ndim, axis, low, high, inner=0):
    return [(low, high, inner) if d == axis else (0, 0, 0) for d in range(ndim)]


# Diagonals: in the flattened matrix they are a slice of step columns + 1.


def _diagonal_run(rows, columns, offset):
    """Return start and length of a diagonal in the flattened matrix."""
    start = offset if offset >= 0 else -offset * columns
    length = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    return start, max(length, 0)


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(self, offset=0, dim1=0, dim2=1):
    matrix = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    *lead, rows, columns = matrix.shape
    start, length = _diagonal_run(rows, columns, offset)
    if length == 0:
        return jnp.zeros((*lead, 0), self.dtype)
    flat = jnp.reshape(matrix, (*lead, rows * columns))
    last = start + (length - 1) * (columns + 1) + 1
    return lax.slice_in_dim(flat, start, last, columns + 1, axis=len(lead))


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    matrix = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    *lead, rows, columns = matrix.shape
    _, length = _diagonal_run(rows, columns, offset)
    if length == 0:
        return self
    # Spread src along the side on which the diagonal starts at 0, and choose.
    side, axis = (rows, -1) if offset >= 0 else (columns, -2)
    spread = jnp.expand_dims(_resize(src.astype(self.dtype), len(lead), side), axis)
    row = lax.broadcasted_iota("int64", (rows, columns), 0)
    column = lax.broadcasted_iota("int64", (rows, columns), 1)
    chosen = jnp.where(column - row == offset, spread, matrix)
    return jnp.moveaxis(chosen, (-2, -1), (dim1, dim2))


# Writes into slices


def _update(self, src, first, axis):
    """Write `src` into a run of `self`.

    Not by dynamic_update_slice: XLA's CPU backend does that in place and fuses the computation
    of `src` into it, which may read elements that are overwritten by then (`a[0] = a[0].flip(0)`
    behind another write was wrong in jaxlib 0.10.2, optimization barrier or not).
    """
    last = first + src.shape[axis]
    before = lax.slice_in_dim(self, 0, first, axis=axis)
    after = lax.slice_in_dim(self, last, self.shape[axis], axis=axis)
    return lax.concatenate([before, src, after], axis)


@lowers(aten.slice_scatter.default)
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    axis, src = axis_of(dim, self.ndim), src.astype(self.dtype)
    first, last = slice_range(self.shape[axis], start, end)
    count = -(-(last - first) // step)
    src = jnp.broadcast_to(src, (*self.shape[:axis], count, *self.shape[axis + 1 :]))
    if step == 1 or src.size == 0:
        return _update(self, src, first, axis) if src.size else self
    spread = slice_backward(src, self.shape, dim, start, end, step)
    place = lax.broadcasted_iota("int64", self.shape, axis) - first
    inside = (place >= 0) & (place < count * step) & (place % step == 0)
    return jnp.where(inside, spread, self)


@lowers(aten.select_scatter.default)
def select_scatter(self, src, dim, index):
    axis = axis_of(dim, self.ndim)
    shape = (*self.shape[:axis], *self.shape[axis + 1 :])
    row = jnp.expand_dims(jnp.broadcast_to(src.astype(self.dtype), shape), axis)
    return _update(self, row, index % self.shape[axis], axis)


@lowers(aten.slice_backward.default)
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    axis = axis_of(dim, grad_output.ndim)
    count, size = grad_output.shape[axis], input_sizes[axis]
    zero = jnp.zeros((), grad_output.dtype)
    if count == 0:
        return jnp.broadcast_to(zero, input_sizes)
    first, _ = slice_range(size, start, end)
    behind = size - first - (count - 1) * step - 1
    return lax.pad(grad_output, zero, _pads(grad_output.ndim, axis, first, behind, step - 1))


@lowers(aten.select_backward.default)
def select_backward(grad_output, input_sizes, dim, index):
    axis = axis_of(dim, len(input_sizes))
    index %= input_sizes[axis]
    row = jnp.expand_dims(grad_output, axis)
    pads = _pads(row.ndim, axis, index, input_sizes[axis] - index - 1)
    return lax.pad(row, jnp.zeros((), row.dtype), pads)
