"""Distances between the rows of matrices."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_galley.ops.aten.reduce import norm
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def _distances(x: jax.Array, y: jax.Array, p: float) -> jax.Array:
    """Return the p-norm of each row of x less each row of y: [..., rows of x, rows of y]."""
    if x.shape[-1] == 0:
        batch = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return jnp.zeros((*batch, x.shape[-2], y.shape[-2]), x.dtype)
    return norm(x[..., :, None, :] - y[..., None, :, :], p, -1, False, None)


def _gradient(grad, x, y, p, distance):
    """Return the gradient of x for one of the distances [..., rows of x, rows of y].

    That of a distance of 0 is 0, where the norm has no derivative.
    """
    apart = x[..., :, None, :] - y[..., None, :, :]
    size, sign = jnp.abs(apart), jnp.sign(apart)
    grad, distance = grad[..., None], distance[..., None]
    if p == 0:
        slope = jnp.zeros_like(apart)
    elif p == 1:
        slope = sign
    elif p == math.inf:
        slope = jnp.where(size == distance, sign, 0)
    else:
        ratio = size / jnp.where(distance == 0, 1, distance)
        slope = sign * (ratio if p == 2 else ratio ** (p - 1))
        slope = jnp.where((distance == 0) | ((size == 0) & (p < 1)), 0, slope)
    return (grad * slope).sum(-2)


@lowers(aten._cdist_backward.default)
def cdist_backward(grad, x1, x2, p, cdist):
    if 0 in (x1.size, x2.size, grad.size):
        return jnp.zeros_like(x1)
    return _gradient(grad, x1, x2, p, cdist)


@lowers(aten._pdist_backward.default)
def pdist_backward(grad, self, p, pdist):
    places = np.triu_indices(self.shape[0], 1)

    def square(rows):
        half = jnp.zeros((self.shape[0],) * 2, rows.dtype).at[places].set(rows)
        return half + half.T

    return _gradient(square(grad), self, self, p, square(pdist)).astype(self.dtype)


@lowers(aten._cdist_forward.default)
def cdist_forward(x1, x2, p, compute_mode):
    return _distances(x1, x2, p)


@lowers(aten._pdist_forward.default)
def pdist_forward(self, p=2):
    first, second = np.triu_indices(self.shape[0], 1)
    if not len(first):
        return jnp.zeros((0,), self.dtype)
    return _distances(self, self, p)[first, second]
