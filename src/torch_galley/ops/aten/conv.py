"""Convolutions in one, two or three dimensions, plain, grouped, dilated or transposed.

Values travel channels-last: XLA:CPU convolves in that order anyway, and neighbouring transposes
then meet and cancel. A 1x1 convolution is a matrix product; a depthwise one is a sum of shifted
products, since XLA:CPU's grouped convolution is many times slower.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_galley.ops.aten.matmul import product
from torch_galley.ops.aten.shape import joined
from torch_galley.ops.half import wide, wide_dtype
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_MOST_TAPS = 64
"""Largest depthwise kernel, in elements, that is written out as shifted products."""


@lowers(aten.convolution.default)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    rank = input.ndim - 2
    stride, padding = _each(stride, rank), _each(padding, rank)
    dilation, output_padding = _each(dilation, rank), _each(output_padding, rank)
    out = _convolve(input, weight, stride, padding, dilation, output_padding, transposed, groups)
    if bias is not None:
        out = out + wide(bias).reshape(-1, *[1] * rank)
    return out.astype(input.dtype)


def _each(value, rank):
    """Return one number per spatial dimension: torch takes one for all, too."""
    return list(value) * rank if len(value) == 1 else list(value)


def _convolve(x, w, stride, padding, dilation, output_padding, transposed, groups):
    """Return the convolution without bias, in the accumulation dtype."""
    kernel = w.shape[2:]
    if 0 in (*x.shape, *w.shape):
        return _empty_sum(x, w, stride, padding, dilation, output_padding, transposed, groups)
    if transposed:
        pads = [
            (d * (k - 1) - p, d * (k - 1) - p + o)
            for k, p, d, o in zip(kernel, padding, dilation, output_padding, strict=True)
        ]
        w = _transposed_weight(w, groups)
        return _general(x, w, [1] * len(kernel), pads, stride, dilation, groups)
    pads = [(p, p) for p in padding]
    if groups == 1 and math.prod(kernel) == 1 and not any(padding):
        return _pointwise(x, w, stride)
    if groups > 1 and w.shape[:2] == (groups, 1) and math.prod(kernel) <= _MOST_TAPS:
        return _depthwise(x, w, stride, pads, dilation)
    return _general(x, w, stride, pads, [1] * len(kernel), dilation, groups)


def _general(x, w, stride, pads, lhs_dilation, dilation, groups):
    spatial = "DHW"[3 - len(stride) :]
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=pads,
        lhs_dilation=lhs_dilation,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide_dtype(x.dtype),
    )


def _transposed_weight(w, groups):
    """Turn [in, out/groups, kernel] into the [out, in/groups, flipped kernel] of a plain one."""
    per_group, out = w.shape[0] // groups, w.shape[1]
    kernel = w.shape[2:]
    w = w.reshape(groups, per_group, out, *kernel).swapaxes(1, 2)
    w = w.reshape(groups * out, per_group, *kernel)
    return jnp.flip(w, range(2, w.ndim))


def _pointwise(x, w, stride):
    rows = _strided(jnp.moveaxis(x, 1, -1), [0] * len(stride), [None] * len(stride), stride)
    out = product(joined(rows, 1), w.reshape(w.shape[:2]).T)
    return jnp.moveaxis(out.reshape(*rows.shape[:-1], out.shape[1]), -1, 1)


def _depthwise(x, w, stride, pads, dilation):
    """Return the sum over kernel elements of a shifted input times that element, per channel."""
    kernel, dtype = w.shape[2:], wide_dtype(x.dtype)
    x = jnp.moveaxis(x, 1, -1)
    x = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    # XLA would otherwise turn each slice of the padded value into a pad of its own.
    x = lax.optimization_barrier(x).astype(dtype)
    w = w.reshape(w.shape[0], math.prod(kernel)).T.astype(dtype)  # [taps, channels]
    reach = [
        n - d * (k - 1) for n, k, d in zip(x.shape[1:-1], kernel, dilation, strict=True)
    ]  # first positions run over [0, reach)
    out = None
    for number, offset in enumerate(np.ndindex(*kernel)):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [s + r for s, r in zip(start, reach, strict=True)]
        term = _strided(x, start, stop, stride) * lax.index_in_dim(w, number, keepdims=False)
        out = term if out is None else out + term
    assert out is not None
    return jnp.moveaxis(out, -1, 1)


def _strided(x, start, stop, stride):
    """Slice the dimensions between the first and the last."""
    stop = [n if end is None else end for n, end in zip(x.shape[1:-1], stop, strict=True)]
    return lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *stride, 1))


def _empty_sum(x, w, stride, padding, dilation, output_padding, transposed, groups):
    """Return the zeros (or nothing) that come of an empty batch or no input channels."""
    sizes = []
    for n, k, s, p, d, o in zip(
        x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True
    ):
        span = d * (k - 1)
        sizes.append(
            (n - 1) * s - 2 * p + span + o + 1 if transposed else (n + 2 * p - span - 1) // s + 1
        )
    channels = w.shape[1] * groups if transposed else w.shape[0]
    return jnp.zeros((x.shape[0], channels, *sizes), wide_dtype(x.dtype))


@lowers(aten.convolution_backward.default)
def convolution_backward(
    grad_output,
    input,
    weight,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
):
    rank = input.ndim - 2
    stride, padding = _each(stride, rank), _each(padding, rank)
    dilation, output_padding = _each(dilation, rank), _each(output_padding, rank)
    grad = wide(grad_output)
    grad_input = grad_weight = grad_bias = None

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        return _convolve(x, w, stride, padding, dilation, output_padding, transposed, groups)

    x, w = wide(input), wide(weight)
    if output_mask[0]:
        _, pull = jax.vjp(lambda x: forward(x, w), x)
        grad_input = _conj(pull(_conj(grad))[0]).astype(input.dtype)
    if output_mask[1]:
        _, pull = jax.vjp(lambda w: forward(x, w), w)
        grad_weight = _conj(pull(_conj(grad))[0]).astype(weight.dtype)
    if output_mask[2]:
        grad_bias = grad.sum((0, *range(2, grad.ndim))).astype(weight.dtype)
    return grad_input, grad_weight, grad_bias


def _conj(x: jax.Array) -> jax.Array:
    """torch's gradients are the conjugates of jax's cotangents."""
    return jnp.conj(x) if jnp.iscomplexobj(x) else x
