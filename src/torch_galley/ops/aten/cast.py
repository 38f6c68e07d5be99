"""Conversion between dtypes as torch does it on x86, which is not how XLA does it.

XLA saturates a float that is out of an integer's range and makes NaN zero. torch's CPU kernels use
x86's conversion to a 32-bit integer (64-bit for int64 and uint8), which gives its minimum
for whatever does not fit, and then drop the upper bits: 300. is 44 as int8.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.registry import lowers

aten = torch.ops.aten
prims = torch.ops.prims

_INTERMEDIATE = {
    "int8": jnp.int32,
    "int16": jnp.int32,
    "int32": jnp.int32,
    "int64": jnp.int64,
    "uint8": jnp.int64,
}


def cast(x: jax.Array, dtype: torch.dtype) -> jax.Array:
    """Return `x` as a torch dtype."""
    name = XLA_DTYPE[dtype]
    if x.dtype.name == name:
        return x
    if jnp.iscomplexobj(x) and not dtype.is_complex and dtype != torch.bool:
        x = jnp.real(x)
    if jnp.issubdtype(x.dtype, jnp.floating) and name in _INTERMEDIATE:
        wide = _INTERMEDIATE[name]
        low = float(jnp.iinfo(wide).min)
        if x.dtype.itemsize < 4:  # a float16's range ends below 2**31
            x = x.astype(jnp.float32)
        fits = (x >= low) & (x < -low)
        x = jnp.where(fits, x, low).astype(wide)
    return x.astype(name)


def number(value: Any, like: Any) -> Any:
    """Return a Python number as a 0-dim array of a dtype, or of an array's dtype, as torch does.

    Integers wrap (int8: 300 is 44), a float becomes an integer by truncation and a bool by asking
    whether it is zero. An array comes back as it is.
    """
    if isinstance(value, jax.Array):
        return value
    dtype = jnp.dtype(getattr(like, "dtype", like))
    if jnp.issubdtype(dtype, jnp.integer):
        value = np.array([int(value) % 2 ** (8 * dtype.itemsize)], np.uint64).astype(dtype)[0]
    elif dtype == jnp.bool_:
        value = value != 0
    return jnp.asarray(value, dtype)


@lowers(aten._to_copy.default, promotes=False)
def _to_copy(self, *, dtype=None, **_rest):
    return self if dtype is None else cast(self, dtype)


@lowers(prims.convert_element_type.default, promotes=False)
def _convert_element_type(a, dtype):
    return cast(a, dtype)
