"""Special functions: what jax has of those that torch has."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.special as js
import torch
from jax import lax

from torch_galley.ops.aten.cast import number
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten

rows(
    (aten.erf.default, lax.erf),
    (aten.erfc.default, lax.erfc),
    (aten.erfinv.default, lax.erf_inv),
    (aten.lgamma.default, lax.lgamma),
    (aten.i0.default, js.i0),
    (aten.special_i0e.default, js.i0e),
    (aten.special_i1.default, js.i1),
    (aten.special_i1e.default, js.i1e),
    (aten.special_modified_bessel_i0.default, js.i0),
    (aten.special_modified_bessel_i1.default, js.i1),
    (aten.special_ndtri.default, js.ndtri),
)


@lowers(aten.digamma.default)
def digamma(self):
    """torch has the pole at 0 as an infinity of the opposite sign."""
    return jnp.where(self == 0, jnp.copysign(jnp.inf, -self), lax.digamma(self))


@lowers(aten.polygamma.default)
def polygamma(n, self):
    return digamma(self) if n == 0 else js.polygamma(n, self)


@lowers(aten.special_zeta.default, aten.special_zeta.other_scalar)
def zeta(self, other):
    return lax.zeta(*jnp.broadcast_arrays(self, number(other, self)))


@lowers(aten.special_zeta.self_scalar)
def zeta_of_scalar(self, other):
    return lax.zeta(*jnp.broadcast_arrays(number(self, other), other))


@lowers(aten.igamma.default)
def igamma(self, other):
    return lax.igamma(*jnp.broadcast_arrays(self, other))


@lowers(aten.igammac.default)
def igammac(self, other):
    return lax.igammac(*jnp.broadcast_arrays(self, other))
