"""Arithmetic and functions of one element each. The driver promotes dtypes (lower.promote)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten

rows(
    (aten.neg.default, jnp.negative),
    (aten.relu.default, jax.nn.relu),
    (aten.sin.default, jnp.sin),
    (aten.exp.default, jnp.exp),
)


@lowers(aten.add.Tensor)
def add(self, other, *, alpha=1):
    return self + (other if alpha == 1 else other * alpha)


@lowers(aten.mul.Tensor)
def mul(self, other):
    return self * other
