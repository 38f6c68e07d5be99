"""Negative log likelihood, of rows and of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_galley.ops.check import require
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2


def _target_weight(x, target, weight, ignore_index):
    """Return each target, 0 where ignored, and the weight of its loss, 0 where ignored."""
    classes = x.shape[min(x.ndim - 1, 1)]
    counts = target != ignore_index
    good = ~counts | ((target >= 0) & (target < classes))
    require(good, target, IndexError, f"target {{value}} is out of bounds for {classes} classes")
    target = jnp.where(counts, target, 0)
    if weight is None:
        return target, counts.astype(x.dtype)
    return target, jnp.where(counts, wide(weight).at[target].get(mode="clip"), 0)


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(self, target, weight, reduction, ignore_index):
    x, axis = wide(self), min(self.ndim - 1, 1)
    target, w = _target_weight(x, target, weight, ignore_index)
    picked = jnp.take_along_axis(x, jnp.expand_dims(target, axis), axis).squeeze(axis)
    # An ignored element counts as 0 even where its log likelihood is -inf.
    loss = jnp.where(w == 0, 0, -picked * w) if weight is None else -picked * w
    total = jnp.zeros((), x.dtype)
    if reduction != _NONE:
        loss, total = loss.sum(), w.sum()
    if reduction == _MEAN:
        loss = loss / total
    return loss.astype(self.dtype), total.astype(self.dtype)


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight):
    x, axis = wide(self), min(self.ndim - 1, 1)
    target, w = _target_weight(x, target, weight, ignore_index)
    grad = wide(grad_output)
    if reduction == _MEAN:
        grad = grad / wide(total_weight)
    grad = jnp.where(w == 0, 0, -w * grad)
    classes = jax.lax.broadcasted_iota(target.dtype, x.shape, axis)
    chosen = classes == jnp.expand_dims(target, axis)
    return jnp.where(chosen, jnp.expand_dims(grad, axis), 0).astype(self.dtype)
