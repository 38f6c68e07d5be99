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


def _ends(lengths, offsets):
    """Return where runs end. One of the two is given, as `_by_length` asks."""
    return jnp.cumsum(lengths, -1) if offsets is None else offsets[..., 1:]


def _runs(ends: jax.Array, size: int) -> jax.Array:
    """Return the run of each position, [rows, size], from where runs end, [rows, runs]."""
    return jax.vmap(lambda e: jnp.searchsorted(e, jnp.arange(size), side="right"))(ends)


@lowers(aten.segment_reduce.default, when=_by_length)
def segment_reduce(
    data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    method, first = _REDUCTIONS[reduce]
    batch, size, rest = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    ends = _ends(lengths, offsets)
    if offsets is not None:
        lengths = jnp.diff(offsets, axis=-1)
    assert lengths is not None  # by `_by_length`
    if offsets is None and not unsafe:
        total = lengths.sum(-1)
        message = f"the lengths add up to {{value}}, not to {size}"
        require(total == size, total, RuntimeError, message)
    runs = lengths.shape[-1]
    rows = math.prod(batch)
    x = wide(data).reshape(rows, size, math.prod(rest))
    run = _runs(ends.reshape(rows, runs), size)
    start = jnp.asarray(first if initial is None else initial, x.dtype)
    found = jnp.full((rows, runs, x.shape[-1]), start)
    key = jnp.arange(rows)[:, None], run
    found = getattr(found.at[key], method)(x, mode="drop").reshape(*batch, runs, *rest)
    if reduce == "mean":
        count = lengths.reshape(*batch, runs, *[1] * len(rest))
        nothing = math.nan if initial is None else start
        found = jnp.where(count == 0, nothing, found / jnp.maximum(count, 1).astype(x.dtype))
    return found.astype(data.dtype)


def _by_length_backward(
    grad, output, data, reduce, *, lengths=None, offsets=None, **unused
) -> Reason | None:
    return _by_length(data, reduce, lengths=lengths, offsets=offsets)


@lowers(aten._segment_reduce_backward.default, when=_by_length_backward)
def segment_reduce_backward(
    grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None
):
    batch, size = math.prod(data.shape[:axis]), data.shape[axis]
    rest = math.prod(data.shape[axis + 1 :])
    ends = _ends(lengths, offsets)
    count = ends.shape[-1]
    run = _runs(ends.reshape(batch, count), size)
    row = jnp.arange(batch)[:, None]
    x = wide(data).reshape(batch, size, rest)

    def spread(of_runs):
        """Give each position what belongs to its run, 0 behind the last."""
        return of_runs.at[row, run].get(mode="fill", fill_value=0)

    def total(values):
        """Give each position the sum over its run."""
        nothing = jnp.zeros((batch, count, values.shape[-1]), values.dtype)
        return spread(nothing.at[row, run].add(values, mode="drop"))

    given = spread(wide(grad).reshape(batch, count, rest))
    made = spread(wide(output).reshape(batch, count, rest))
    if reduce == "mean":
        given = given / total(jnp.ones_like(x))
    elif reduce in ("max", "min"):  # equal ones share
        chosen = (x == made) | jnp.isnan(x)
        given = jnp.where(chosen, given / jnp.maximum(total(chosen.astype(x.dtype)), 1), 0)
    elif reduce == "prod":
        first = 1.0 if initial is None else initial
        given = given * jnp.where(x == 0, _product_of_others(x, row, run, count, first), made / x)
    return given.reshape(data.shape).astype(data.dtype)


def _product_of_others(x, row, run, count, first):
    """Return, for an element that is 0, the product of the others of its run."""
    zero = x == 0
    ones = jnp.full((x.shape[0], count, x.shape[-1]), first, x.dtype)
    rest = ones.at[row, run].multiply(jnp.where(zero, 1, x), mode="drop")
    zeros = jnp.zeros(ones.shape, jnp.int32).at[row, run].add(zero.astype(jnp.int32), mode="drop")
    return jnp.where(zeros == 1, rest, 0).at[row, run].get(mode="clip")
