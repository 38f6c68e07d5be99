"""Reductions and scans. Half precision accumulates in float32, small integers in int64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import BetterNatively, Reason
from torch_galley.core.spec import TORCH_DTYPE, XLA_DTYPE
from torch_galley.ops.aten.cast import cast
from torch_galley.ops.aten.elementwise import guarded, without_sign
from torch_galley.ops.half import is_half, rounded
from torch_galley.ops.registry import lowers, rows

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


def _count(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    return jnp.asarray(math.prod(x.shape[a] for a in axes), jnp.real(x).dtype)


def _mean(x, axes, keepdims=False):
    return without_sign(jnp.sum(x, axes, keepdims=keepdims)) / _count(x, axes)


def _sum(x, axes, keepdims=False):
    return without_sign(jnp.sum(x, axes, keepdims=keepdims))


def _prod(x, axes, keepdims=False):
    return guarded(jnp.prod(x, axes, keepdims=keepdims))


def _accumulated(reduce):
    """Return the lowering of a reduction, given one of arrays in the dtype of accumulation."""

    def lowering(self, dim=None, keepdim=False, *, dtype=None):
        x, name = _accumulating(self, dtype)
        return reduce(x, _axes(x, dim), keepdims=keepdim).astype(name)

    return lowering


rows(
    (aten.sum.default, _accumulated(_sum)),
    (aten.sum.dim_IntList, _accumulated(_sum)),
    (aten.mean.default, _accumulated(_mean)),
    (aten.mean.dim, _accumulated(_mean)),
    (aten.prod.default, _accumulated(_prod)),
    (aten.prod.dim_int, _accumulated(_prod)),
)


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


@lowers(aten.dist.default, promotes=True, halves=True)
def dist(self, other, p=2):
    apart = self - other
    if is_half(apart.dtype):  # eager's difference is a tensor of this type
        apart = rounded(_wide(self) - _wide(other), apart.dtype)
    return norm(apart, p, None, False, None)


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


def _extreme(reduce):
    def lowering(self, dim=(), keepdim=False):
        return reduce(self, _axes(self, dim), keepdims=keepdim)

    return lowering


def _place(find):
    def lowering(self, dim=None, keepdim=False):
        if self.ndim == 0:
            return jnp.zeros((), jnp.int64)
        axis = None if dim is None else axis_of(self, dim)
        return find(self, axis, keepdims=keepdim).astype(jnp.int64)

    return lowering


def _both(*lowerings):
    """Return the lowering of an operator that has several results of the same arguments."""
    return lambda *args, **kwargs: tuple(lower(*args, **kwargs) for lower in lowerings)


_amax, _amin = _extreme(jnp.max), _extreme(jnp.min)
_argmax, _argmin = _place(jnp.argmax), _place(jnp.argmin)

rows(
    (aten.amax.default, _amax),
    (aten.amin.default, _amin),
    (aten.aminmax.default, _both(_amin, _amax)),
    (aten.argmax.default, _argmax),
    (aten.argmin.default, _argmin),
    (aten.max.default, _amax),
    (aten.max.dim, _both(_amax, _argmax)),
    (aten.min.default, _amin),
    (aten.min.dim, _both(_amin, _argmin)),
)


# Logic


def _truth(reduce):
    def lowering(self, dim=None, keepdim=False):
        # No dimensions are all elsewhere, and none in any.dims and all.dims.
        axes = () if dim == [] else _axes(self, dim)
        found = reduce(self != 0, axes, keepdims=keepdim)
        return found.astype(jnp.uint8 if self.dtype == jnp.uint8 else jnp.bool_)

    return lowering


rows(
    (aten.any.default, _truth(jnp.any)),
    (aten.any.dim, _truth(jnp.any)),
    (aten.any.dims, _truth(jnp.any)),
    (aten.all.default, _truth(jnp.all)),
    (aten.all.dim, _truth(jnp.all)),
    (aten.all.dims, _truth(jnp.all)),
)


# Scans


def _scan(scan, hide):
    def lowering(self, dim, *, dtype=None):
        x, name = _accumulating(self, dtype)
        return hide(scan(x, axis_of(x, dim)) if x.ndim else x).astype(name)

    return lowering


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


def _running(beats):
    """The last of equal elements wins, and NaN wins over all."""

    def lowering(self, dim):
        if self.ndim == 0:
            return self, jnp.zeros((), jnp.int64)
        axis = axis_of(self, dim)

        def later(old, new):
            wins = beats(new[0], old[0])
            if jnp.issubdtype(self.dtype, jnp.floating):
                wins = jnp.isnan(new[0]) | (wins & ~jnp.isnan(old[0]))
            return jnp.where(wins, new[0], old[0]), jnp.where(wins, new[1], old[1])

        places = lax.broadcasted_iota(jnp.int64, self.shape, axis)
        return lax.associative_scan(later, (self, places), axis=axis)

    return lowering


rows(
    (aten.cumsum.default, _scan(jnp.cumsum, without_sign)),
    (aten.cumprod.default, _scan(jnp.cumprod, guarded)),
    (aten.cummax.default, _running(jnp.greater_equal)),
    (aten.cummin.default, _running(jnp.less_equal)),
)
