"""Divisors and multiples of integers, by Euclid's steps as eager takes them.

jax.numpy's own turn round for ever where the least integer is among them, which is its own
absolute value.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.ops.registry import rows

aten = torch.ops.aten


def gcd(self, other):
    """Return the greatest common divisors; that of the least integer with itself is itself."""

    def step(pair):
        small, large = pair
        rest = lax.rem(large, jnp.where(small == 0, 1, small))
        return jnp.where(small == 0, 0, rest), jnp.where(small == 0, large, small)

    pair = jnp.broadcast_arrays(jnp.abs(self), jnp.abs(other))
    return lax.while_loop(lambda pair: jnp.any(pair[0] != 0), step, tuple(pair))[1]


def lcm(self, other):
    """Return the least common multiples, 0 where one of the two is 0."""
    divisor = gcd(self, other)
    quotient = lax.div(*jnp.broadcast_arrays(self, jnp.where(divisor == 0, 1, divisor)))
    if self.dtype.itemsize < 4:  # C multiplies these as integers of 32 bits
        quotient = quotient.astype(jnp.int32)
    return jnp.where(divisor == 0, 0, jnp.abs(quotient * other)).astype(self.dtype)


rows((aten.gcd.default, gcd), (aten.lcm.default, lcm))
