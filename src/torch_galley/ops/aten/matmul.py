"""Matrix products: float32 at full precision, half types accumulated in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten.elementwise import without_sign
from torch_galley.ops.half import wide, wide_dtype
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the matrix product in the accumulation dtype, not yet rounded to the inputs' dtype."""
    result = jnp.matmul(
        a, b, precision=lax.Precision.HIGHEST, preferred_element_type=wide_dtype(a.dtype)
    )
    # XLA makes this case one multiplication, and a sum of none is 0.0.
    return without_sign(result) if a.shape[-1] == 1 else result


def _exact(a: jax.Array, b: jax.Array) -> jax.Array:
    return product(a, b).astype(a.dtype)


def _scaled_sum(self, value, beta, alpha):
    """Return beta * self + alpha * value, rounded once. A beta of 0 ignores NaN and inf in self."""
    dtype = self.dtype
    if dtype.name.startswith(("int", "uint")):
        beta, alpha = int(beta), int(alpha)
    if alpha != 1:
        value = value * jnp.asarray(alpha, value.dtype)
    if beta != 0:
        self = wide(self)
        value = value + (self if beta == 1 else self * jnp.asarray(beta, self.dtype))
    shape = jnp.broadcast_shapes(self.shape, value.shape)
    return jnp.broadcast_to(value, shape).astype(dtype)


rows(
    (aten.mm.default, _exact),
    (aten.bmm.default, _exact),
    (aten.mv.default, _exact),
    (aten.dot.default, _exact),
)


@lowers(aten.vdot.default)
def vdot(self, other):
    return _exact(jnp.conj(self), other)


@lowers(aten.mm.dtype)
def mm_dtype(self, mat2, out_dtype):
    return product(self, mat2).astype(XLA_DTYPE[out_dtype])


@lowers(aten.bmm.dtype)
def bmm_dtype(self, mat2, out_dtype):
    return product(self, mat2).astype(XLA_DTYPE[out_dtype])


@lowers(aten.addmm.default)
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    return _scaled_sum(self, product(mat1, mat2), beta, alpha)


@lowers(aten.baddbmm.default)
def baddbmm(self, batch1, batch2, *, beta=1, alpha=1):
    return _scaled_sum(self, product(batch1, batch2), beta, alpha)


@lowers(aten.addmv.default)
def addmv(self, mat, vec, *, beta=1, alpha=1):
    return _scaled_sum(self, product(mat, vec), beta, alpha)


@lowers(aten.addbmm.default)
def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    value = lax.dot_general(
        batch1,
        batch2,
        (((0, 2), (0, 1)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide_dtype(batch1.dtype),
    )
    return _scaled_sum(self, value, beta, alpha)


@lowers(aten._int_mm.default)
def int_mm(self, mat2):
    return jnp.matmul(self, mat2, preferred_element_type=jnp.int32)


@lowers(aten._trilinear.default)
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Multiply the three, each with dimensions of size 1 put in, and sum."""
    first, second, third = (
        jnp.expand_dims(wide(x), expand)
        for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3))
    )
    return (first * second * third).sum(tuple(sumdim)).astype(i1.dtype)
