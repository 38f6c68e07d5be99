"""Activation functions and their gradients. The driver promotes the pointwise ones."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten import complex_math
from torch_galley.ops.aten.cast import number
from torch_galley.ops.aten.complex_math import either
from torch_galley.ops.aten.reduce import axis_of
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


def _outside(grad, x, limit):
    return jnp.where((x >= -limit) & (x <= limit), 0, grad)


_SIXTH = float(np.float32(1 / 6))
"""What eager's gradient of hardsigmoid multiplies with, in double precision too."""


rows(
    (aten.relu.default, lambda self: jnp.where(self < 0, 0, self)),  # keeps NaN and -0.0
    (aten.sigmoid.default, either(lax.logistic, complex_math.sigmoid)),
    (aten.sigmoid_backward.default, lambda grad, out: grad * jnp.conj((1 - out) * out)),
    (aten.tanh_backward.default, lambda grad, out: grad * jnp.conj(1 - out * out)),
    (aten.silu.default, jax.nn.silu),
    (aten.leaky_relu.default, lambda x, slope=0.01: jnp.where(x > 0, x, x * slope)),
    (aten.threshold.default, lambda x, limit, value: jnp.where(x <= limit, number(value, x), x)),
    (aten.hardshrink_backward.default, _outside),
    (aten.softshrink_backward.default, _outside),
    (aten.hardsigmoid_backward.default, lambda grad, x: jnp.where(abs(x) < 3, grad * _SIXTH, 0)),
    (aten.threshold_backward.default, lambda grad, x, limit: jnp.where(x <= limit, 0, grad)),
)


@lowers(aten.leaky_relu_backward.default, promotes=True)
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lowers(aten.rrelu_with_noise_backward.default, promotes=True)
def rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return grad_output * noise
    return leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)


@lowers(aten.silu_backward.default)
def silu_backward(grad_output, self):
    gate = lax.logistic(self)
    return grad_output * gate * (1 + self * (1 - gate))


@lowers(aten.elu.default)
def elu(self, alpha=1, scale=1, input_scale=1):
    return jnp.where(self > 0, self * scale, jnp.expm1(self * input_scale) * (alpha * scale))


_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@lowers(aten.gelu.default)
def gelu(self, *, approximate="none"):
    if approximate == "tanh":
        return 0.5 * self * (1 + jnp.tanh(_TANH_SCALE * (self + _TANH_CUBE * self**3)))
    return 0.5 * self * (1 + lax.erf(self * math.sqrt(0.5)))


@lowers(aten.gelu_backward.default)
def gelu_backward(grad_output, self, *, approximate="none"):
    if approximate == "tanh":
        bent = jnp.tanh(_TANH_SCALE * (self + _TANH_CUBE * self**3))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * self * self)
        return grad_output * (0.5 * (1 + bent) + 0.5 * self * (1 - bent * bent) * slope)
    share = 0.5 * (1 + lax.erf(self * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * self * self) / math.sqrt(2 * math.pi)
    return grad_output * (share + self * density)


# Softmax: not pointwise, so the casts are here.


def _opened(x: jax.Array) -> jax.Array:
    """Return half precision as float32, other dtypes as they are."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def _shifted(x: jax.Array, axis: int | None) -> jax.Array:
    """Subtract the largest. It is a constant to XLA's eyes as to torch's: no gradient here."""
    return x - jnp.max(x, axis, keepdims=True) if x.size else x


def _softmax(x, axis):
    powers = jnp.exp(_shifted(x, axis))
    return powers / jnp.sum(powers, axis, keepdims=True)


def _log_softmax(x, axis):
    shifted = _shifted(x, axis)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis, keepdims=True))


def _forward(function):
    def forward(self, dim, half_to_float):
        axis = axis_of(self, dim) if self.ndim else None
        return function(_opened(self), axis).astype(jnp.float32 if half_to_float else self.dtype)

    return forward


def _softmax_gradient(grad, result, axis):
    weighted = grad * result
    return weighted - result * jnp.sum(weighted, axis, keepdims=True)


def _log_softmax_gradient(grad, result, axis):
    return grad - jnp.exp(result) * jnp.sum(grad, axis, keepdims=True)


def _backward(function):
    def backward(grad_output, output, dim, input_dtype):
        axis = axis_of(output, dim) if output.ndim else None
        found = function(_opened(grad_output), _opened(output), axis)
        return found.astype(XLA_DTYPE[input_dtype])

    return backward


rows(
    (aten._softmax.default, _forward(_softmax)),
    (aten._log_softmax.default, _forward(_log_softmax)),
    (aten._softmax_backward_data.default, _backward(_softmax_gradient)),
    (aten._log_softmax_backward_data.default, _backward(_log_softmax_gradient)),
)
