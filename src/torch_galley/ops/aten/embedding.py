"""Look-up of rows by number, their gradient, and bags of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten.reduce import norm
from torch_galley.ops.check import in_range
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


def _rows(weight: jax.Array, indices: jax.Array) -> jax.Array:
    return weight.at[in_range(indices, weight.shape[0], 0, negative=False)].get(mode="clip")


def _dense_only(*args, sparse: bool = False, **kwargs) -> Reason | None:
    sparse = args[4] if len(args) > 4 else sparse
    return ArgumentForm("embedding", "its gradient is sparse") if sparse else None


@lowers(aten.embedding.default, when=_dense_only)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return _rows(weight, indices)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    flat = indices.ravel()
    grad = wide(grad_output).reshape(flat.size, grad_output.shape[-1])
    if padding_idx >= 0:  # past the end: dropped
        flat = jnp.where(flat == padding_idx, num_weights, flat)
    if scale_grad_by_freq:
        count = jnp.zeros(num_weights, grad.dtype).at[flat].add(1, mode="drop")
        grad = grad / count.at[flat].get(mode="clip")[:, None]
    zeros = jnp.zeros((num_weights, grad_output.shape[-1]), grad.dtype)
    return zeros.at[flat].add(grad, mode="drop").astype(grad_output.dtype)


def _bag_form(weight, indices, offsets, *rest, **kwargs) -> Reason | None:
    if weight.stride(1) != 1:
        return ArgumentForm("embedding_bag", "rows of the weight are not contiguous")
    return None


@lowers(aten._embedding_bag.default, when=_bag_form)
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    bags = offsets.shape[0] - include_last_offset
    starts = offsets[:bags]
    count = indices.shape[0]
    # The last offset at or before a position: positions of an empty bag are none.
    bag = jnp.searchsorted(starts, jnp.arange(count, dtype=starts.dtype), side="right") - 1
    kept = indices != padding_idx if padding_idx >= 0 else jnp.ones(count, bool)
    target = jnp.where(kept, bag, bags)  # past the end: dropped
    rows = wide(_rows(weight, indices))
    sizes = jnp.zeros(bags, starts.dtype).at[target].add(1, mode="drop")
    aux = jnp.zeros(bags, starts.dtype)
    if mode == _MAX:
        out, aux = _greatest(rows, indices, target, bags)
        aux = aux.astype(starts.dtype)
    else:
        if per_sample_weights is not None:
            rows = rows * wide(per_sample_weights)[:, None]
        out = jnp.zeros((bags, weight.shape[1]), rows.dtype).at[target].add(rows, mode="drop")
        if mode == _MEAN:
            out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    # Eager's fast path does not keep the bag of each position, and its gradient knows.
    fast = mode == _SUM and weight.dtype.name in ("float32", "float16") and padding_idx < 0
    bag = jnp.zeros(0, starts.dtype) if fast else bag.astype(starts.dtype)
    return out.astype(weight.dtype), bag, sizes, aux


@lowers(aten._embedding_bag_forward_only.default, when=_bag_form)
def embedding_bag_forward_only(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    out, bag, sizes, aux = embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    # Sizes have the offsets' shape here; nobody reads them.
    return out, bag, jnp.pad(sizes, (0, offsets.shape[0] - sizes.shape[0])), aux


# The gradients of bags.


def _dense_bags(*args, **kwargs) -> Reason | None:
    return ArgumentForm("embedding_bag", "its gradient is sparse") if args[9] else None


def _bag_backward(
    grad, indices, offsets, offset2bag, sizes, maxima, count, by_freq, mode, sparse, weights, pad=-1
):
    bags = _bags(indices, offsets, offset2bag)
    return embedding_bag_dense_backward(
        grad, indices, bags, sizes, maxima, count, by_freq, mode, weights, pad
    )


rows((aten._embedding_bag_backward.default, _bag_backward), when=_dense_bags)


def _bags(indices, offsets, offset2bag):
    """Return the bag of each position, which eager's fast path has not kept."""
    if offset2bag.size:
        return offset2bag
    places = jnp.arange(indices.shape[0], dtype=offsets.dtype)
    return jnp.searchsorted(offsets, places, side="right") - 1


@lowers(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    given = wide(grad)
    found = jnp.zeros((num_weights, grad.shape[1]), given.dtype)
    if mode == _MAX:  # past the end: dropped
        source = jnp.where(bag_size[:, None] == 0, num_weights, maximum_indices)
        columns = jnp.arange(grad.shape[1])[None]
        return found.at[source, columns].add(given, mode="drop").astype(grad.dtype)
    rows = given.at[offset2bag].get(mode="clip")
    if per_sample_weights is not None:
        rows = rows * wide(per_sample_weights)[:, None]
    if scale_grad_by_freq:
        count = jnp.zeros(num_weights, rows.dtype).at[indices].add(1, mode="drop")
        rows = rows / count.at[indices].get(mode="clip")[:, None]
    if mode == _MEAN:
        rows = rows / bag_size.at[offset2bag].get(mode="clip")[:, None].astype(rows.dtype)
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, num_weights, indices)
    return found.at[indices].add(rows, mode="drop").astype(grad.dtype)


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1
):
    bags = _bags(indices, offsets, offset2bag)
    dot = (wide(grad).at[bags].get(mode="clip") * wide(_rows(weight, indices))).sum(1)
    return jnp.where((indices == padding_idx) & (padding_idx >= 0), 0, dot).astype(grad.dtype)


def _greatest(rows, indices, target, bags):
    """Return each bag's column-wise maximum (0 for an empty one) and the row it came from."""
    lowest = jnp.full((bags, rows.shape[1]), -jnp.inf, rows.dtype)
    out = lowest.at[target].max(rows, mode="drop")
    mine = rows == out.at[target].get(mode="clip")
    count = rows.shape[0]
    position = jnp.where(mine, jnp.arange(count)[:, None], count)
    first = jnp.full(out.shape, count, position.dtype).at[target].min(position, mode="drop")
    found = first < count
    source = indices.at[first].get(mode="clip") if count else first
    return jnp.where(found, out, 0), jnp.where(found, source, -1)


@lowers(aten.embedding_renorm.default)
def embedding_renorm(self, indices, max_norm, norm_type):
    """Shorten the rows that are looked up and longer than `max_norm`."""
    size = norm(wide(self), norm_type, -1, True, None)
    asked = jnp.zeros((self.shape[0], 1), bool).at[indices.ravel()].set(True, mode="drop")
    factor = jnp.where(asked & (size > max_norm), max_norm / (size + 1e-7), 1)
    return (wide(self) * factor).astype(self.dtype)
