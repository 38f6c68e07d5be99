"""Views, joins and rearrangements. On XLA a view is a value of its own; most of them fuse away.

Slices, reshapes and transposes are preferred to gathers throughout: XLA fuses them, and on CPU a
gather is a loop over elements.
"""

from __future__ import annotations

import math
from itertools import accumulate

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.core.spec import TORCH_DTYPE, XLA_DTYPE
from torch_galley.ops.aten.cast import cast
from torch_galley.ops.check import in_range
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def joined(x: jax.Array, kept: int) -> jax.Array:
    """Return an array, all dimensions but the last ones joined, of which there may be none.

    Not by a size of -1, which jax can't find where another size is 0.

    Example: of [2, 3, 0], with one kept, [6, 0]
    """
    rest = x.shape[x.ndim - kept :]
    return x.reshape(math.prod(x.shape[: x.ndim - kept]), *rest)


def axis_of(dim: int, ndim: int) -> int:
    """Return a dimension's number, negative ones wrapped; a 0-dim tensor counts as having one."""
    return dim % max(ndim, 1)


def slice_range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return torch's slice bounds: negative ones wrapped, both clamped, never end < start."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


def _same(self, **unused):
    return self


def _transpose(self, dim0, dim1):
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


def _expand(self, size, **unused):
    lead = len(size) - self.ndim
    kept = [self.shape[d - lead] if s == -1 else s for d, s in enumerate(size)]
    return jnp.broadcast_to(self, kept)


def _squeeze(self, dims):
    gone = {axis_of(d, self.ndim) for d in dims}
    return jnp.reshape(self, [s for d, s in enumerate(self.shape) if d not in gone or s != 1])


def _slice(self, dim=0, start=None, end=None, step=1):
    first, last = slice_range(self.shape[dim], start, end)
    return lax.slice_in_dim(self, first, last, step, axis_of(dim, self.ndim))


def _select(self, dim, index):
    axis = axis_of(dim, self.ndim)
    if isinstance(index, jax.Array):  # in a loop's body
        place = in_range(index, self.shape[axis], axis)
        return lax.dynamic_index_in_dim(self, place, axis, keepdims=False)
    return lax.index_in_dim(self, index % self.shape[axis], axis, keepdims=False)


def _unbind(self, dim=0):
    return [_select(self, dim, i) for i in range(self.shape[dim])]


def _split(self, size, dim=0):
    starts = range(0, self.shape[dim], size) if self.shape[dim] else [0]
    return [_slice(self, dim, start, start + size) for start in starts]


def _split_by(self, sizes, dim=0):
    ends = accumulate(sizes)
    return [_slice(self, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _parts(self):
    return jnp.stack([jnp.real(self), jnp.imag(self)], axis=-1)


def _of_parts(self):
    return lax.complex(self[..., 0], self[..., 1])


rows(
    (aten.alias.default, _same),
    (aten.alias_copy.default, _same),
    (aten.clone.default, _same),
    (aten.detach.default, _same),
    (aten.detach_copy.default, _same),
    (aten.lift.default, _same),
    (aten.lift_fresh.default, _same),
    (aten.lift_fresh_copy.default, _same),
    (aten._conj.default, jnp.conj),
    (aten._conj_copy.default, jnp.conj),
    (aten._neg_view.default, jnp.negative),
    (aten._neg_view_copy.default, jnp.negative),
    (aten.expand.default, _expand),
    (aten.expand_copy.default, _expand),
    (aten.squeeze.default, jnp.squeeze),
    (aten.squeeze.dim, lambda self, dim: _squeeze(self, [dim])),
    (aten.squeeze.dims, _squeeze),
    (aten.unsqueeze.default, jnp.expand_dims),
    (aten.view.default, jnp.reshape),
    (aten.view_copy.default, jnp.reshape),
    (aten._unsafe_view.default, jnp.reshape),
    (aten._reshape_copy.default, jnp.reshape),
    (aten._reshape_alias.default, lambda self, size, stride: jnp.reshape(self, size)),
    (aten.view_as_real.default, _parts),
    (aten.view_as_real_copy.default, _parts),
    (aten.view_as_complex.default, _of_parts),
    (aten.view_as_complex_copy.default, _of_parts),
    (aten.permute.default, jnp.transpose),
    (aten.permute_copy.default, jnp.transpose),
    (aten.t.default, jnp.transpose),
    (aten.transpose.int, _transpose),
    (aten.transpose_copy.int, _transpose),
    (aten.slice.Tensor, _slice),
    (aten.slice_copy.Tensor, _slice),
    (aten.select.int, _select),
    (aten.select_copy.int, _select),
    (aten.unbind.int, _unbind),
    (aten.unbind_copy.int, _unbind),
    (aten.split.Tensor, _split),
    (aten.split_copy.Tensor, _split),
    (aten.unsafe_split.Tensor, _split),
    (aten.split_with_sizes.default, _split_by),
    (aten.split_with_sizes_copy.default, _split_by),
    (aten.unsafe_split_with_sizes.default, _split_by),
    (aten.repeat.default, jnp.tile),
    (aten.stack.default, jnp.stack),
    (aten.tril.default, jnp.tril),
    (aten.triu.default, jnp.triu),
    promotes=False,
)


@lowers(aten.narrow_copy.default)
def narrow_copy(self, dim, start, length):
    start %= max(self.shape[dim], 1)
    return lax.slice_in_dim(self, start, start + length, axis=axis_of(dim, self.ndim))


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


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(self, dtype):
    """Reinterpret the bits; XLA does so between real types of equal or dividing width."""
    target = jnp.dtype(XLA_DTYPE[dtype])
    if self.dtype == target:
        return self
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return view_dtype(_merge_last(_parts(self)), dtype)
    if jnp.issubdtype(self.dtype, jnp.bool_):
        return view_dtype(self.astype("uint8"), dtype)
    if dtype is torch.bool:
        return view_dtype(self, torch.uint8) != 0
    if jnp.issubdtype(target, jnp.complexfloating):
        half = torch.float32 if dtype is torch.complex64 else torch.float64
        return _of_parts(_split_last(view_dtype(self, half), 2))
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
