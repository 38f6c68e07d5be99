"""Negative log likelihood, of rows and of images, and the gradients of losses with a margin."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_galley.ops.aten.shape import joined
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


def _share(grad_output, reduction, x):
    """Return each row's gradient, a column: that of a mean over the elements of a row."""
    grad = wide(grad_output) / max(x.shape[1], 1)
    if reduction == _MEAN:
        grad = grad / max(x.shape[0], 1)
    return jnp.broadcast_to(grad, x.shape[:1])[:, None]


@lowers(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=_MEAN):
    x = wide(joined(self, 1))
    target = target.reshape(-1)
    classes = x.shape[1]
    good = (target >= 0) & (target < classes)
    require(good, target, RuntimeError, f"target {{value}} is out of bounds for {classes} classes")
    target = target[:, None]
    mine = jax.lax.broadcasted_iota(target.dtype, x.shape, 1) == target
    over = margin - jnp.take_along_axis(x, target, 1, mode="clip") + x
    slope = jnp.ones_like(x) if p == 1 else 2 * over
    if weight is not None:
        slope = slope * wide(weight).at[target].get(mode="clip")
    slope = jnp.where((over > 0) & ~mine, slope * _share(grad_output, reduction, x), 0)
    slope = jnp.where(mine, -slope.sum(1, keepdims=True), slope)
    return slope.reshape(self.shape).astype(self.dtype)


@lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    x = wide(joined(self, 1))
    target = target.reshape(x.shape)
    counts = jnp.cumsum(target < 0, 1) == 0  # up to the first -1
    place = jnp.where(counts, target, 0)
    over = 1 - jnp.take_along_axis(x, place, 1, mode="clip")[:, :, None] + x[:, None, :]
    other = (is_target.reshape(x.shape) == 0)[:, None, :] & counts[:, :, None]
    share = _share(grad_output, reduction, x)
    slope = jnp.where((over > 0) & other, share[:, :, None], 0)  # rows, labels, classes
    rows = jnp.arange(x.shape[0])[:, None]
    found = slope.sum(1).at[rows, place].add(-slope.sum(2), mode="drop")
    return found.reshape(self.shape).astype(self.dtype)
