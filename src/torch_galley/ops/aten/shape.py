"""Views, joins and rearrangements. On XLA a view is a value of its own; most of them fuse away.

Slices, reshapes and transposes are preferred to gathers throughout: XLA fuses them, and on CPU a
gather is a loop over elements.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.core.spec import TORCH_DTYPE, XLA_DTYPE
from torch_galley.ops.aten.cast import cast
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def axis_of(dim: int, ndim: int) -> int:
    """Return a dimension's number, negative ones wrapped; a 0-dim tensor counts as having one."""
    return dim % max(ndim, 1)


def slice_range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return torch's slice bounds: negative ones wrapped, both clamped, never end < start."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


def _same(self):
    return self


rows(
    (aten.alias.default, _same),
    (aten.alias_copy.default, _same),
    (aten.detach.default, _same),
    (aten.detach_copy.default, _same),
    (aten.lift.default, _same),
    (aten.lift_fresh.default, _same),
    (aten.lift_fresh_copy.default, _same),
    (aten._conj.default, jnp.conj),
    (aten._conj_copy.default, jnp.conj),
    (aten._neg_view.default, jnp.negative),
    (aten._neg_view_copy.default, jnp.negative),
    (aten.squeeze.default, jnp.squeeze),
    (aten.unsqueeze.default, jnp.expand_dims),
    (aten.view.default, jnp.reshape),
    (aten.view_copy.default, jnp.reshape),
    (aten._unsafe_view.default, jnp.reshape),
    (aten._reshape_copy.default, jnp.reshape),
    (aten.permute.default, jnp.transpose),
    (aten.permute_copy.default, jnp.transpose),
    (aten.repeat.default, jnp.tile),
    (aten.stack.default, jnp.stack),
)


@lowers(aten.clone.default, promotes=False)
def clone(self, *, memory_format=None):
    return self


@lowers(aten._reshape_alias.default)
def reshape_alias(self, size, stride):
    return jnp.reshape(self, size)


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(self, dim0, dim1):
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@lowers(aten.t.default)
def t(self):
    return self.T


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(self, size, *, implicit=False):
    lead = len(size) - self.ndim
    kept = [self.shape[d - lead] if s == -1 else s for d, s in enumerate(size)]
    return jnp.broadcast_to(self, kept)


@lowers(aten.squeeze.dim)
def squeeze_dim(self, dim):
    return squeeze_dims(self, [dim])


@lowers(aten.squeeze.dims)
def squeeze_dims(self, dim):
    gone = {axis_of(d, self.ndim) for d in dim}
    return jnp.reshape(self, [s for d, s in enumerate(self.shape) if d not in gone or s != 1])


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_tensor(self, dim=0, start=None, end=None, step=1):
    first, last = slice_range(self.shape[dim], start, end)
    return lax.slice_in_dim(self, first, last, step, axis_of(dim, self.ndim))


@lowers(aten.narrow_copy.default)
def narrow_copy(self, dim, start, length):
    start %= max(self.shape[dim], 1)
    return lax.slice_in_dim(self, start, start + length, axis=axis_of(dim, self.ndim))


@lowers(aten.select.int, aten.select_copy.int)
def select(self, dim, index):
    axis = axis_of(dim, self.ndim)
    return lax.index_in_dim(self, index % self.shape[axis], axis, keepdims=False)


@lowers(aten.split.Tensor, aten.split_copy.Tensor)
def split(self, split_size, dim=0):
    size = self.shape[dim]
    starts = range(0, size, split_size) if size else [0]
    return [slice_tensor(self, dim, i, i + split_size) for i in starts]


@lowers(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(self, split_sizes, dim=0):
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(slice_tensor(self, dim, start, start + size))
        start += size
    return pieces


@lowers(aten.unsafe_split.Tensor)
def unsafe_split(self, split_size, dim=0):
    return split(self, split_size, dim)


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(self, dim=0):
    return [select(self, dim, i) for i in range(self.shape[dim])]


@lowers(aten.cat.default)
def cat(tensors, dim=0):
    # Both torch and jax promote mixed dtypes here, and to the same type; all of them count,
    # also an empty 1-d tensor, which torch joins to anything for old times' sake.
    dtype = jnp.result_type(*(x.dtype for x in tensors))
    joined = [x.astype(dtype) for x in tensors if x.shape != (0,)] or [tensors[0].astype(dtype)]
    return lax.concatenate(joined, axis_of(dim, joined[0].ndim))


@lowers(aten.flip.default)
def flip(self, dims):
    return lax.rev(self, [axis_of(d, self.ndim) for d in dims]) if self.ndim else self


def _triangle(self, keep):
    rows, columns = self.shape[-2:]
    row = lax.broadcasted_iota("int64", (rows, columns), 0)
    column = lax.broadcasted_iota("int64", (rows, columns), 1)
    return jnp.where(keep(column - row), self, jnp.zeros((), self.dtype))


@lowers(aten.tril.default)
def tril(self, diagonal=0):
    return _triangle(self, lambda offset: offset <= diagonal)


@lowers(aten.triu.default)
def triu(self, diagonal=0):
    return _triangle(self, lambda offset: offset >= diagonal)


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(self):
    return jnp.stack([jnp.real(self), jnp.imag(self)], axis=-1)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(self):
    return lax.complex(self[..., 0], self[..., 1])


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(self, dtype):
    """Reinterpret the bits; XLA does so between real types of equal or dividing width."""
    target = jnp.dtype(XLA_DTYPE[dtype])
    if self.dtype == target:
        return self
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return view_dtype(_merge_last(view_as_real(self)), dtype)
    if jnp.issubdtype(self.dtype, jnp.bool_):
        return view_dtype(self.astype("uint8"), dtype)
    if dtype is torch.bool:
        return view_dtype(self, torch.uint8) != 0
    if jnp.issubdtype(target, jnp.complexfloating):
        half = torch.float32 if dtype is torch.complex64 else torch.float64
        return view_as_complex(_split_last(view_dtype(self, half), 2))
    ratio = target.itemsize // self.dtype.itemsize
    if ratio > 1:
        return lax.bitcast_convert_type(_split_last(self, ratio), target)
    bits = lax.bitcast_convert_type(self, target)
    return bits if ratio == 1 else _merge_last(bits)


def _merge_last(array):
    *lead, outer, inner = array.shape if array.ndim > 1 else (1, *array.shape)
    return jnp.reshape(array, (*lead, outer * inner))


def _split_last(array, parts):
    *lead, last = array.shape
    return jnp.reshape(array, (*lead, last // parts, parts))


@lowers(aten.copy.default)
def copy(self, src, non_blocking=False):
    return jnp.broadcast_to(cast(src, TORCH_DTYPE[self.dtype.name]), self.shape)


def _dense(self, size, *, memory_format=None) -> Reason | None:
    if not self.is_contiguous() or memory_format not in (None, torch.contiguous_format):
        return ArgumentForm("aten.resize", "the memory is not row-major")
    return None


@lowers(aten.resize.default, when=_dense)
def resize(self, size, *, memory_format=None):
    """Keep the first elements; what torch leaves open is zero."""
    flat, count = jnp.ravel(self), math.prod(size)
    flat = lax.pad(flat, jnp.zeros((), flat.dtype), [(0, count - flat.size, 0)])
    return jnp.reshape(flat, size)
