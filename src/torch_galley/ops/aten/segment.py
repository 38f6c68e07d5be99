"""Reductions over neighbouring runs of a dimension."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.check import require
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_REDUCTIONS = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "prod": ("multiply", 1.0),
    "max": ("max", -math.inf),
    "min": ("min", math.inf),
}
"""The method that writes, and what a run begins with."""


def _by_length(
    data, reduce, *, lengths=None, indices=None, offsets=None, **unused
) -> Reason | None:
    if lengths is None and offsets is None:
        return ArgumentForm("aten.segment_reduce", "eager wants lengths or offsets")
    return None


@lowers(aten.segment_reduce.default, when=_by_length)
def segment_reduce(
    data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    method, first = _REDUCTIONS[reduce]
    batch, size, rest = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    if offsets is None:
        ends = jnp.cumsum(lengths, -1)
        if not unsafe:
            total = lengths.sum(-1)
            message = f"the lengths add up to {{value}}, not to {size}"
            require(total == size, total, RuntimeError, message)
    else:
        lengths, ends = jnp.diff(offsets, axis=-1), offsets[..., 1:]
    runs = lengths.shape[-1]
    rows = math.prod(batch)
    x = wide(data).reshape(rows, size, -1)
    flat_ends = ends.reshape(rows, runs)
    run = jax.vmap(lambda e: jnp.searchsorted(e, jnp.arange(size), side="right"))(flat_ends)
    start = jnp.asarray(first if initial is None else initial, x.dtype)
    found = jnp.full((rows, runs, x.shape[-1]), start)
    key = jnp.arange(rows)[:, None], run
    found = getattr(found.at[key], method)(x, mode="drop").reshape(*batch, runs, *rest)
    if reduce == "mean":
        count = lengths.reshape(*batch, runs, *[1] * len(rest))
        nothing = math.nan if initial is None else start
        found = jnp.where(count == 0, nothing, found / jnp.maximum(count, 1).astype(x.dtype))
    return found.astype(data.dtype)
