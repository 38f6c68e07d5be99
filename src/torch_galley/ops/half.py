"""The half-precision rule of operators that are not pointwise: compute wide, round once.

torch's CPU kernels accumulate float16 and bfloat16 in float32. Pointwise operators get the same
from the driver (lower.promote); the others ask here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_HALF = ("float16", "bfloat16")


def wide_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the dtype to accumulate `dtype` in.

    Example: bfloat16 -> float32, float64 -> float64, int8 -> int8.
    """
    return jnp.dtype("float32") if dtype.name in _HALF else jnp.dtype(dtype)


def wide(x: jax.Array) -> jax.Array:
    """Return `x` in its accumulation dtype."""
    return x.astype(wide_dtype(x.dtype))
