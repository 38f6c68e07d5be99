"""Distances between the rows of matrices."""

from __future__ import annotations

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


@lowers(aten._cdist_forward.default)
def cdist_forward(x1, x2, p, compute_mode):
    return _distances(x1, x2, p)


@lowers(aten._pdist_forward.default)
def pdist_forward(self, p=2):
    first, second = np.triu_indices(self.shape[0], 1)
    if not len(first):
        return jnp.zeros((0,), self.dtype)
    return _distances(self, self, p)[first, second]
