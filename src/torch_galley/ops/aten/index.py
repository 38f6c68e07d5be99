"""Reading at indices. Every index is checked (ops.check), since XLA would clamp it silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core import reasons
from torch_galley.ops.aten.cast import number
from torch_galley.ops.aten.shape import axis_of
from torch_galley.ops.check import in_range
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def is_mask(index: torch.Tensor | None) -> bool:
    """Whether an entry of an index list selects by truth: bool, or uint8 as in old programs."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def no_masks(op: str, indices: Sequence[Any]) -> reasons.Reason | None:
    """Refuse masks: how many elements they select, so the result's shape, is data."""
    return reasons.DataDependentShape(op) if any(map(is_mask, indices)) else None


class Place:
    """Where an index list such as [None, i, j] points, in torch's reading of it.

    The tensors are broadcast together; if they are neighbours, their shape takes their place in
    the result, else it comes first. numpy reads lists alike, except for 0-dim tensors: those are
    given one dimension here, and `shape` has it taken away again.
    """

    def __init__(self, operand: jax.Array, indices: Sequence[jax.Array | None]):
        found = {
            d: in_range(index, operand.shape[d], d)
            for d, index in enumerate(indices)
            if index is not None
        }
        block = jnp.broadcast_shapes(*(index.shape for index in found.values()))
        spread = {d: jnp.broadcast_to(i, block or (1,)) for d, i in found.items()}
        self.key = tuple(spread.get(d, slice(None)) for d in range(operand.ndim))
        dims = sorted(found)
        adjacent = dims[-1] - dims[0] + 1 == len(dims)
        rest = [s for d, s in enumerate(operand.shape) if d not in found]
        lead = dims[0] if adjacent else 0
        self.shape = (*rest[:lead], *block, *rest[lead:])
        self.indexed_shape = (*rest[:lead], *(block or (1,)), *rest[lead:])


def _index_when(self, indices):
    return no_masks("aten.index.Tensor", indices)


@lowers(aten.index.Tensor, when=_index_when)
def index(self, indices):
    if all(entry is None for entry in indices):
        return self
    place = Place(self, indices)
    if 0 in place.shape:
        return jnp.zeros(place.shape, self.dtype)
    return jnp.reshape(self.at[place.key].get(mode="clip"), place.shape)


@lowers(aten.gather.default)
def gather(self, dim, index, *, sparse_grad=False):
    shape = index.shape
    self, index = jnp.atleast_1d(self), jnp.atleast_1d(index)
    axis = axis_of(dim, self.ndim)
    if index.size == 0:
        return jnp.zeros(shape, self.dtype)
    index = in_range(index, self.shape[axis], axis, negative=False)
    # Dimensions other than `dim` may be shorter in index: cut self to it.
    for d in range(self.ndim):
        if d != axis:
            self = lax.slice_in_dim(self, 0, index.shape[d], axis=d)
    taken = jnp.take_along_axis(self, index, axis=axis, mode="clip")
    return jnp.reshape(taken, shape)


@lowers(aten.index_select.default)
def index_select(self, dim, index):
    axis = axis_of(dim, self.ndim)
    shape = (*self.shape[:axis], index.size, *self.shape[axis + 1 :])
    if self.ndim == 0:
        self, shape = jnp.reshape(self, (1,)), ()
    index = in_range(jnp.ravel(index), self.shape[axis], axis, negative=False)
    if 0 in shape:
        return jnp.zeros(shape, self.dtype)
    return jnp.reshape(jnp.take(self, index, axis=axis, mode="clip"), shape)


@lowers(aten.take.default)
def take(self, index):
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    index = in_range(index, self.size, 0)
    return jnp.take(jnp.ravel(self), index, mode="clip")


# Selection by mask, without a change of shape


@lowers(aten.where.self)
def where(condition, self, other):
    return jnp.where(condition != 0, self, other)


@lowers(aten.masked_fill.Scalar, promotes=False)
def masked_fill(self, mask, value):
    return jnp.where(mask, number(value, self.dtype), self)


@lowers(aten.masked_fill.Tensor)
def masked_fill_tensor(self, mask, value):
    return jnp.where(mask, value.astype(self.dtype), self)


@lowers(aten.nonzero_static.default)
def nonzero_static(self, *, size, fill_value=-1):
    if self.ndim == 0:
        return jnp.zeros((size, 0), "int64")
    if not self.size:  # jnp.nonzero gives zeros
        return jnp.full((size, self.ndim), fill_value, "int64")
    found = jnp.nonzero(self, size=size, fill_value=fill_value)
    return jnp.stack(found, axis=-1).astype("int64")
