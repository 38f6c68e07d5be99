"""Fourier transforms with torch's three normalisations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_galley.ops.registry import lowers

aten = torch.ops.aten

# torch: 0 none, 1 by the root of the element count, 2 by the count. jax names the direction in
# which it divides.
_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


@lowers(aten._fft_c2c.default)
def fft_c2c(self, dim, normalization, forward):
    for axis in dim:  # one at a time: XLA knows three dimensions at most
        if forward:
            self = jnp.fft.fft(self, axis=axis, norm=_FORWARD[normalization])
        else:
            self = jnp.fft.ifft(self, axis=axis, norm=_INVERSE[normalization])
    return self


@lowers(aten._fft_r2c.default)
def fft_r2c(self, dim, normalization, onesided):
    if not onesided:
        return fft_c2c(_complex(self), dim, normalization, True)
    half = jnp.fft.rfft(self, axis=dim[-1], norm=_FORWARD[normalization])
    return fft_c2c(half, dim[:-1], normalization, True)


@lowers(aten._fft_c2r.default)
def fft_c2r(self, dim, normalization, last_dim_size):
    self = fft_c2c(self, dim[:-1], normalization, False)
    norm = _INVERSE[normalization]
    return jnp.fft.irfft(self, n=last_dim_size, axis=dim[-1], norm=norm)


def _complex(x: jax.Array) -> jax.Array:
    return x.astype(jnp.complex128 if x.dtype == jnp.float64 else jnp.complex64)
