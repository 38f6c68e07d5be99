"""The half-precision rules: compute wide and round once, or, for a few, round after each step.

torch's CPU kernels accumulate float16 and bfloat16 in float32. Pointwise operators get the same
from the driver (lower.promote); the others ask here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_HALF = ("float16", "bfloat16")


def is_half(dtype: Any) -> bool:
    """Whether a dtype is float16 or bfloat16."""
    return jnp.dtype(dtype).name in _HALF


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """Return `x`, rounded to what a half type can hold, in float32.

    Not a cast there and back: XLA leaves out such a pair.
    """
    info = jnp.finfo(dtype)
    return lax.reduce_precision(x.astype(jnp.float32), info.nexp, info.nmant)


def kept_rounded(x: jax.Array) -> jax.Array:
    """Return float16 results such that they are rounded before they are used.

    XLA's code generator would else add to a product in float32. What stands between the two must
    not be seen through: here a choice that always falls the same way.
    """
    return jnp.where(x == x, x, jnp.nan)


def wide_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype to accumulate `dtype` in.

    Example: bfloat16 -> float32, float64 -> float64, int8 -> int8.
    """
    return jnp.dtype("float32") if dtype.name in _HALF else jnp.dtype(dtype)


def wide(x: jax.Array) -> jax.Array:
    """Return `x` in its accumulation dtype."""
    return x.astype(wide_dtype(x.dtype))
