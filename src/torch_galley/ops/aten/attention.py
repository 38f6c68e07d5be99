"""Scaled dot product attention, forward and backward, with whole score matrices.

The division by the row sums comes after the product with the values: it then touches head_dim
columns instead of as many as there are keys.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import Random, Reason
from torch_galley.ops.aten.matmul import product
from torch_galley.ops.half import wide, wide_dtype
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def _without_dropout(*args, dropout_p: float = 0.0, **kwargs) -> Reason | None:
    rate = args[3] if len(args) > 3 else dropout_p
    return Random("attention with dropout") if rate > 0 else None


def _without_dropout_backward(*args, **kwargs) -> Reason | None:
    return Random("attention with dropout") if args[6] > 0 else None


def _scores(query, key, mask, is_causal, scale):
    """Return the scores in the accumulation dtype, -inf where a key is masked."""
    keys = key.swapaxes(-1, -2)
    if wide_dtype(query.dtype) == query.dtype:
        scores = product(query * jnp.asarray(scale, query.dtype), keys)
    else:
        scores = product(query, keys) * scale
    if is_causal:
        row = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        column = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(column <= row, scores, -jnp.inf)
    if mask is not None:
        if mask.dtype == bool:
            scores = jnp.where(mask, scores, -jnp.inf)
        else:
            scores = scores + mask.astype(scores.dtype)
    return scores


def _repeated(x: jax.Array, heads: int) -> jax.Array:
    """Give each query head its key or value head."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


@lowers(aten._scaled_dot_product_flash_attention_for_cpu.default, when=_without_dropout)
def attention(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    heads = query.shape[1]
    key, value = _repeated(key, heads), _repeated(value, heads)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _scores(query, key, attn_mask, is_causal, scale)
    if scores.shape[-1] == 0:
        return jnp.zeros(query.shape, query.dtype), jnp.zeros(scores.shape[:-1], scores.dtype)
    top = scores.max(-1, keepdims=True)
    top = lax.optimization_barrier(jnp.where(top == -jnp.inf, 0, top))
    weights = lax.optimization_barrier(jnp.exp(scores - top))
    total = weights.sum(-1, keepdims=True)
    total = jnp.where(total == 0, 1, total)  # a fully masked row: 0, and 0 for its logsumexp
    out = product(weights, wide(value)) / total
    return out.astype(query.dtype), (top + jnp.log(total))[..., 0]


@lowers(
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    when=_without_dropout_backward,
)
def attention_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    dropout_p,
    is_causal,
    *,
    attn_mask=None,
    scale=None,
):
    heads = query.shape[1]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keys, values = _repeated(key, heads), _repeated(value, heads)
    scores = _scores(query, keys, attn_mask, is_causal, scale)
    weights = lax.optimization_barrier(jnp.exp(scores - logsumexp[..., None]))
    grad = wide(grad_out)
    grad_weights = product(grad, wide(values).swapaxes(-1, -2))
    dot = (grad * wide(out)).sum(-1, keepdims=True)
    grad_scores = lax.optimization_barrier(weights * (grad_weights - dot) * scale)
    grads = (
        product(grad_scores, wide(keys)),
        product(grad_scores.swapaxes(-1, -2), wide(query)),
        product(weights.swapaxes(-1, -2), grad),
    )
    return tuple(
        _summed(g, x.shape[1]).astype(x.dtype)
        for g, x in zip(grads, (query, key, value), strict=True)
    )


def _summed(grad: jax.Array, heads: int) -> jax.Array:
    """Undo `_repeated`: add up the gradients of query heads that shared a key head."""
    if grad.shape[1] == heads:
        return grad
    return grad.reshape(grad.shape[0], heads, grad.shape[1] // heads, *grad.shape[2:]).sum(2)
