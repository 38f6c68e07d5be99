"""Reductions and scans. Half precision accumulates in float32, small integers in int64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import BetterNatively, Reason
from torch_galley.core.spec import TORCH_DTYPE, XLA_DTYPE
from torch_galley.ops.aten.cast import cast
from torch_galley.ops.aten.elementwise import guarded, without_sign
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def axis_of(x: jax.Array, dim: int) -> int:
    """Return a dimension as a non-negative number; a 0-dimensional tensor has dim 0 and -1."""
    return dim % max(x.ndim, 1)


def _axes(x: jax.Array, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the dimensions to reduce: all for None and [], none of a 0-dimensional tensor."""
    dims = [dim] if isinstance(dim, int) else dim
    if not dims or x.ndim == 0:
        return tuple(range(x.ndim))
    return tuple(axis_of(x, d) for d in dims)


def _wide(x: jax.Array) -> jax.Array:
    """Return `x` in the dtype that sums of it are accumulated in."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def _accumulating(x: jax.Array, dtype: torch.dtype | None) -> tuple[jax.Array, str]:
    """Return the input as the result's dtype asks for, and the name of that dtype."""
    if dtype is None:
        integral = not jnp.issubdtype(x.dtype, jnp.inexact)
        dtype = torch.int64 if integral else TORCH_DTYPE[x.dtype.name]
    return _wide(cast(x, dtype)), XLA_DTYPE[dtype]


# Sums and products


@lowers(aten.sum.dim_IntList)
def sum_dims(self, dim=None, keepdim=False, *, dtype=None):
    x, name = _accumulating(self, dtype)
    return without_sign(jnp.sum(x, _axes(x, dim), keepdims=keepdim)).astype(name)


@lowers(aten.sum.default)
def sum_all(self, *, dtype=None):
    return sum_dims(self, dtype=dtype)


@lowers(aten.mean.dim)
def mean_dims(self, dim=None, keepdim=False, *, dtype=None):
    x, name = _accumulating(self, dtype)
    axes = _axes(x, dim)
    total = without_sign(jnp.sum(x, axes, keepdims=keepdim))
    return (total / _count(x, axes)).astype(name)


@lowers(aten.mean.default)
def mean_all(self, *, dtype=None):
    return mean_dims(self, dtype=dtype)


def _count(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    return jnp.asarray(math.prod(x.shape[a] for a in axes), jnp.real(x).dtype)


@lowers(aten.prod.default)
def prod_all(self, *, dtype=None):
    x, name = _accumulating(self, dtype)
    return guarded(jnp.prod(x)).astype(name)


@lowers(aten.prod.dim_int)
def prod_dim(self, dim, keepdim=False, *, dtype=None):
    x, name = _accumulating(self, dtype)
    return guarded(jnp.prod(x, _axes(x, dim), keepdims=keepdim)).astype(name)


@lowers(aten.var.correction)
def var(self, dim=None, *, correction=None, keepdim=False):
    return _variance(self, dim, correction, keepdim)[0]


@lowers(aten.var_mean.correction)
def var_mean(self, dim=None, *, correction=None, keepdim=False):
    return _variance(self, dim, correction, keepdim)


def _variance(self, dim, correction, keepdim):
    """In two passes, as stable as eager's single one; too few elements give NaN or inf."""
    x = _wide(self)
    axes = _axes(x, dim)
    count = _count(x, axes)
    mean = jnp.sum(x, axes, keepdims=True) / count
    away = x - mean
    square = jnp.real(away) ** 2 + jnp.imag(away) ** 2 if jnp.iscomplexobj(x) else away * away
    free = jnp.maximum(count - (1 if correction is None else correction), 0)
    result = jnp.sum(square, axes, keepdims=keepdim) / free
    mean = mean if keepdim else jnp.squeeze(mean, axes)
    return result.astype(jnp.real(self).dtype), mean.astype(self.dtype)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    return norm(self, ord, dim, keepdim, dtype)


@lowers(aten.dist.default)
def dist(self, other, p=2):
    dtype = jnp.result_type(self, other)
    return norm(self.astype(dtype) - other.astype(dtype), p, None, False, None)


def norm(self, ord, dim, keepdim, dtype):
    """Return the vector norm of an order over dimensions."""
    x = self if dtype is None else cast(self, dtype)
    name = jnp.real(x).dtype
    x = jnp.abs(_wide(x))
    axes = _axes(x, dim)
    if ord != 0 and all(x.shape[a] == 1 for a in axes):  # no square that could overflow
        result = x if keepdim else jnp.squeeze(x, axes)
    elif ord == math.inf:
        result = jnp.max(x, axes, keepdims=keepdim, initial=0)
    elif ord == -math.inf:
        result = jnp.min(x, axes, keepdims=keepdim)
    elif ord == 0:
        result = jnp.sum((x != 0).astype(x.dtype), axes, keepdims=keepdim)
    elif ord == 1:
        result = jnp.sum(x, axes, keepdims=keepdim)
    elif ord == 2:
        result = jnp.sqrt(jnp.sum(x * x, axes, keepdims=keepdim))
    else:
        result = jnp.sum(x**ord, axes, keepdims=keepdim) ** (1.0 / ord)
    return result.astype(name)


# Extrema. jnp's carry NaN and find the first of equal elements, as torch's do.


@lowers(aten.amax.default)
def amax(self, dim=(), keepdim=False):
    return jnp.max(self, _axes(self, dim), keepdims=keepdim)


@lowers(aten.amin.default)
def amin(self, dim=(), keepdim=False):
    return jnp.min(self, _axes(self, dim), keepdims=keepdim)


@lowers(aten.max.default)
def max_all(self):
    return jnp.max(self)


@lowers(aten.min.default)
def min_all(self):
    return jnp.min(self)


@lowers(aten.aminmax.default)
def aminmax(self, *, dim=None, keepdim=False):
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


@lowers(aten.argmax.default)
def argmax(self, dim=None, keepdim=False):
    return _position(jnp.argmax, self, dim, keepdim)


@lowers(aten.argmin.default)
def argmin(self, dim=None, keepdim=False):
    return _position(jnp.argmin, self, dim, keepdim)


@lowers(aten.max.dim)
def max_dim(self, dim, keepdim=False):
    return amax(self, dim, keepdim), _position(jnp.argmax, self, dim, keepdim)


@lowers(aten.min.dim)
def min_dim(self, dim, keepdim=False):
    return amin(self, dim, keepdim), _position(jnp.argmin, self, dim, keepdim)


def _position(find: Callable[..., Any], x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
    if x.ndim == 0:
        return jnp.zeros((), jnp.int64)
    if dim is not None:
        dim = axis_of(x, dim)
    return find(x, dim, keepdims=keepdim).astype(jnp.int64)


# Logic


def _any(x: jax.Array, axes: tuple[int, ...], keepdim: bool) -> jax.Array:
    found = jnp.any(x != 0 if x.dtype != jnp.bool_ else x, axes, keepdims=keepdim)
    return found.astype(jnp.uint8 if x.dtype == jnp.uint8 else jnp.bool_)


def _all(x: jax.Array, axes: tuple[int, ...], keepdim: bool) -> jax.Array:
    held = jnp.all(x != 0 if x.dtype != jnp.bool_ else x, axes, keepdims=keepdim)
    return held.astype(jnp.uint8 if x.dtype == jnp.uint8 else jnp.bool_)


@lowers(aten.any.default)
def any_all(self):
    return _any(self, _axes(self, None), False)


@lowers(aten.any.dim)
def any_dim(self, dim, keepdim=False):
    return _any(self, _axes(self, dim), keepdim)


@lowers(aten.any.dims)
def any_dims(self, dim=None, keepdim=False):
    """Unlike everywhere else, no dimensions here means none and not all."""
    return _any(self, () if dim == [] else _axes(self, dim), keepdim)


@lowers(aten.all.default)
def all_all(self):
    return _all(self, _axes(self, None), False)


@lowers(aten.all.dim)
def all_dim(self, dim, keepdim=False):
    return _all(self, _axes(self, dim), keepdim)


@lowers(aten.all.dims)
def all_dims(self, dim=None, keepdim=False):
    return _all(self, () if dim == [] else _axes(self, dim), keepdim)


# Scans


@lowers(aten.cumsum.default)
def cumsum(self, dim, *, dtype=None):
    x, name = _accumulating(self, dtype)
    return without_sign(jnp.cumsum(x, axis_of(x, dim)) if x.ndim else x).astype(name)


@lowers(aten.cumprod.default)
def cumprod(self, dim, *, dtype=None):
    x, name = _accumulating(self, dtype)
    return guarded(jnp.cumprod(x, axis_of(x, dim)) if x.ndim else x).astype(name)


def _real_only(self, dim) -> Reason | None:
    if self.dtype.is_complex:
        return BetterNatively("aten.logcumsumexp", "XLA has no complex one")
    return None


@lowers(aten.logcumsumexp.default, when=_real_only)
def logcumsumexp(self, dim):
    if self.ndim == 0:
        return self
    scanned = lax.associative_scan(jnp.logaddexp, _wide(self), axis=axis_of(self, dim))
    return scanned.astype(self.dtype)


@lowers(aten.cummax.default)
def cummax(self, dim):
    return _running(self, dim, jnp.greater_equal)


@lowers(aten.cummin.default)
def cummin(self, dim):
    return _running(self, dim, jnp.less_equal)


def _running(x, dim, beats):
    """The last of equal elements wins, and NaN wins over all."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    axis = axis_of(x, dim)

    def later(old, new):
        wins = beats(new[0], old[0])
        if jnp.issubdtype(x.dtype, jnp.floating):
            wins = jnp.isnan(new[0]) | (wins & ~jnp.isnan(old[0]))
        return jnp.where(wins, new[0], old[0]), jnp.where(wins, new[1], old[1])

    places = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    return lax.associative_scan(later, (x, places), axis=axis)
