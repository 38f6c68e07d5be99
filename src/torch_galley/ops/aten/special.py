"""Special functions: what jax has of those that torch has."""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.special as js
import torch
from jax import lax

from torch_galley.core.reasons import BetterNatively, Reason
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


def _order_zero(n, self) -> Reason | None:
    if n:
        return BetterNatively("aten.polygamma", "XLA's zeta function is wrong below zero")
    return None


@lowers(aten.polygamma.default, when=_order_zero)
def polygamma(n, self):
    return digamma(self)


@lowers(aten.igamma.default)
def igamma(self, other):
    return lax.igamma(*jnp.broadcast_arrays(self, other))


@lowers(aten.igammac.default)
def igammac(self, other):
    return lax.igammac(*jnp.broadcast_arrays(self, other))
