"""Normalisations. Statistics take two passes, in float32 for half types.

Each value is normalised from the input anew, behind a barrier on the statistics: else XLA:CPU
fuses statistics, normalisation and the matrix product that follows into one slow kernel.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.ops.half import wide, wide_dtype
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def _moments(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return mean and variance over `axes`, kept as dimensions of size 1."""
    mean = x.mean(axes, keepdims=True)
    return mean, jnp.square(x - mean).mean(axes, keepdims=True)


def _stats(x: jax.Array, axes: tuple[int, ...], eps: float) -> tuple[jax.Array, jax.Array]:
    mean, variance = _moments(x, axes)
    return lax.optimization_barrier((mean, lax.rsqrt(variance + eps)))


def _affine(x, weight, bias, shape=None):
    """Return x * weight + bias, the two given `shape` first."""
    if weight is not None:
        x = x * wide(weight).reshape(shape or weight.shape)
    if bias is not None:
        x = x + wide(bias).reshape(shape or bias.shape)
    return x


# Layer norm


@lowers(aten.native_layer_norm.default)
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = wide(input)
    mean, rstd = _stats(x, axes, eps)
    out = _affine((x - mean) * rstd, weight, bias)
    return out.astype(input.dtype), mean.astype(input.dtype), rstd.astype(input.dtype)


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
):
    first = input.ndim - len(normalized_shape)
    axes, batch = tuple(range(first, input.ndim)), tuple(range(first))
    grad, rstd = wide(grad_out), wide(rstd)
    normal = (wide(input) - wide(mean)) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * wide(weight)
        grad_input = _normal_backward(scaled, normal, rstd, axes).astype(input.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = (grad * normal).sum(batch).astype(weight.dtype)
    if output_mask[2] and bias is not None:
        grad_bias = grad.sum(batch).astype(bias.dtype)
    return grad_input, grad_weight, grad_bias


def _normal_backward(grad, normal, rstd, axes):
    """Return the gradient of x, given that of `normal` = (x - mean) * rstd over `axes`."""
    mean, slope = lax.optimization_barrier(
        (grad.mean(axes, keepdims=True), (grad * normal).mean(axes, keepdims=True))
    )
    return (grad - mean - normal * slope) * rstd


# RMS norm


@lowers(aten._fused_rms_norm.default)
def fused_rms_norm(input, normalized_shape, weight, eps):
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x = wide(input)
    if eps is None:
        eps = float(jnp.finfo(x.dtype).eps)
    rstd = lax.optimization_barrier(lax.rsqrt(jnp.square(x).mean(axes, keepdims=True) + eps))
    return _affine(x * rstd, weight, None).astype(input.dtype), rstd


@lowers(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    first = input.ndim - len(normalized_shape)
    axes, batch = tuple(range(first, input.ndim)), tuple(range(first))
    grad, rstd = wide(grad_out), wide(rstd)
    normal = wide(input) * rstd
    grad_input = grad_weight = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * wide(weight)
        slope = lax.optimization_barrier((scaled * normal).mean(axes, keepdims=True))
        grad_input = ((scaled - normal * slope) * rstd).astype(input.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = (grad * normal).sum(batch).astype(weight.dtype)
    return grad_input, grad_weight


# Batch norm


def _channel_shape(x: jax.Array) -> tuple[int, ...]:
    return (1, x.shape[1], *[1] * (x.ndim - 2))


def _channel_axes(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _eval_norm(input, weight, bias, running_mean, running_var, eps):
    """Normalise by the running statistics, with one multiply and one add an element."""
    scale = lax.rsqrt(wide(running_var) + eps)
    if weight is not None:
        scale = scale * wide(weight)
    shift = -wide(running_mean) * scale
    if bias is not None:
        shift = shift + wide(bias)
    shape = _channel_shape(input)
    out = (wide(input) * scale.reshape(shape) + shift.reshape(shape)).astype(input.dtype)
    nothing = jnp.zeros((0,), input.dtype)
    return out, nothing, nothing


def _train_norm(input, weight, bias, eps):
    """Return the normalised input and per channel mean, 1 / deviation, unbiased variance."""
    x, axes, shape = wide(input), _channel_axes(input), _channel_shape(input)
    mean, variance = _moments(x, axes)
    mean, rstd = lax.optimization_barrier((mean, lax.rsqrt(variance + eps)))
    out = _affine((x - mean) * rstd, weight, bias, shape).astype(input.dtype)
    count = input.size // max(input.shape[1], 1)
    # One element per channel: 0 / 0, as in eager, is NaN.
    unbiased = variance.ravel() * (count / (count - 1) if count > 1 else math.nan)
    return out, mean.ravel(), rstd.ravel(), unbiased


def _updated(running, value, momentum):
    if running is None:
        return None
    return momentum * value + (1 - momentum) * running


def _functional(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, variance = _train_norm(input, weight, bias, eps)
    return (
        out,
        mean.astype(input.dtype),
        rstd.astype(input.dtype),
        _updated(running_mean, mean, momentum),
        _updated(running_var, variance, momentum),
    )


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(input, weight, bias, running_mean, running_var, training, momentum, eps):
    if training:
        return _functional(input, weight, bias, running_mean, running_var, momentum, eps)
    out = _eval_norm(input, weight, bias, running_mean, running_var, eps)
    acc = wide_dtype(input.dtype)
    return *out, _at_least(running_mean, acc), _at_least(running_var, acc)


def _at_least(running: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return running.astype(jnp.promote_types(running.dtype, dtype))


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps):
    return _eval_norm(input, weight, bias, running_mean, running_var, eps)


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(input, weight, bias, training, momentum, eps):
    return _functional(input, weight, bias, None, None, momentum, eps)[:3]


@lowers(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, new_mean, new_var = _functional(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    return out, mean, rstd, jnp.zeros((0,), jnp.uint8), new_mean, new_var


@lowers(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_invstd,
    train,
    eps,
    output_mask,
):
    shape, axes = _channel_shape(input), _channel_axes(input)
    if train:
        mean, rstd = wide(save_mean), wide(save_invstd)
    else:
        mean, rstd = wide(running_mean), lax.rsqrt(wide(running_var) + eps)
    mean, rstd = mean.reshape(shape), rstd.reshape(shape)
    grad = wide(grad_out)
    normal = (wide(input) - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * wide(weight).reshape(shape)
        full = _normal_backward(scaled, normal, rstd, axes) if train else scaled * rstd
        grad_input = full.astype(input.dtype)
    dtype = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = (grad * normal).sum(axes).astype(dtype)
    if output_mask[2]:
        grad_bias = grad.sum(axes).astype(dtype)
    return grad_input, grad_weight, grad_bias


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_var,
    update,
    eps,
    output_mask,
    reserve,
):
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


# Group norm


@lowers(aten.native_group_norm.default)
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    x = wide(input).reshape(N, group, C // group * HxW)
    mean, rstd = _stats(x, (2,), eps)
    out = ((x - mean) * rstd).reshape(input.shape)
    out = _affine(out, weight, bias, _channel_shape(input)).astype(input.dtype)
    stats = (value.reshape(N, group).astype(input.dtype) for value in (mean, rstd))
    return out, *stats


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    shape, axes = _channel_shape(input), _channel_axes(input)
    x, rstd = wide(input).reshape(N, group, C // group * HxW), wide(rstd).reshape(N, group, 1)
    # Rounded to half precision, a mean far from zero would be off by more than the deviation.
    exact = mean.dtype == wide_dtype(mean.dtype)
    normal = (x - (mean.reshape(N, group, 1) if exact else x.mean(2, keepdims=True))) * rstd
    grad = wide(grad_out)
    dtype = input.dtype if weight is None else weight.dtype
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * wide(weight).reshape(shape)
        full = _normal_backward(scaled.reshape(normal.shape), normal, rstd, (2,))
        # Of a half and a single precision eager makes a half, but torch records a single.
        grad_input = full.reshape(input.shape).astype(jnp.promote_types(input.dtype, dtype))
    if output_mask[1]:
        grad_weight = (grad * normal.reshape(input.shape)).sum(axes).astype(dtype)
    if output_mask[2]:
        grad_bias = grad.sum(axes).astype(dtype)
    return grad_input, grad_weight, grad_bias
