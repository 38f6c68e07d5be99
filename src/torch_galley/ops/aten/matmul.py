"""Matrix products: float32 at full precision, half types accumulated in float32."""

from __future__ import annotations

from functools import partial

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


def _batch_sum(a, b):
    """Return the sum of the products of two batches of matrices."""
    return lax.dot_general(
        a,
        b,
        (((0, 2), (0, 1)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide_dtype(a.dtype),
    )


def _added(multiply):
    """Return beta * self + alpha * multiply(a, b), rounded once."""

    def added(self, a, b, *, beta=1, alpha=1):
        return _scaled_sum(self, multiply(a, b), beta, alpha)

    return added


def _given(a, b, dtype):
    return product(a, b).astype(XLA_DTYPE[dtype])


rows(
    (aten.mm.default, _exact),
    (aten.mm.dtype, _given),
    (aten.bmm.default, _exact),
    (aten.bmm.dtype, _given),
    (aten.mv.default, _exact),
    (aten.dot.default, _exact),
    (aten.vdot.default, lambda a, b: _exact(jnp.conj(a), b)),
    (aten.addmm.default, _added(product)),
    (aten.baddbmm.default, _added(product)),
    (aten.addmv.default, _added(product)),
    (aten.addbmm.default, _added(_batch_sum)),
    (aten._int_mm.default, partial(jnp.matmul, preferred_element_type=jnp.int32)),
)


@lowers(aten._trilinear.default)
def trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Multiply the three, each with dimensions of size 1 put in, and sum."""
    first, second, third = (
        jnp.expand_dims(wide(x), expand)
        for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3))
    )
    return (first * second * third).sum(tuple(sumdim)).astype(i1.dtype)
