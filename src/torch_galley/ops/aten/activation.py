"""Activation functions and their gradients. The driver promotes the pointwise ones."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.spec import XLA_DTYPE
from torch_galley.ops.aten import complex_math
from torch_galley.ops.aten.reduce import axis_of
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


@lowers(aten.relu.default)
def relu(self):
    return jnp.where(self < 0, 0, self)  # keeps NaN and -0.0


@lowers(aten.sigmoid.default)
def sigmoid(self):
    if jnp.iscomplexobj(self):
        return complex_math.reciprocal(1 + complex_math.exp(-self))
    return lax.logistic(self)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(grad_output, output):
    return grad_output * jnp.conj((1 - output) * output)


@lowers(aten.tanh_backward.default)
def tanh_backward(grad_output, output):
    return grad_output * jnp.conj(1 - output * output)


@lowers(aten.silu.default)
def silu(self):
    return self * lax.logistic(self)


@lowers(aten.silu_backward.default)
def silu_backward(grad_output, self):
    gate = lax.logistic(self)
    return grad_output * gate * (1 + self * (1 - gate))


@lowers(aten.leaky_relu.default)
def leaky_relu(self, negative_slope=0.01):
    return jnp.where(self > 0, self, self * negative_slope)


@lowers(aten.leaky_relu_backward.default, promotes=True)
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lowers(aten.elu.default)
def elu(self, alpha=1, scale=1, input_scale=1):
    return jnp.where(self > 0, self * scale, jnp.expm1(self * input_scale) * (alpha * scale))


@lowers(aten.threshold.default)
def threshold(self, threshold, value):
    return jnp.where(self <= threshold, jnp.asarray(value, self.dtype), self)


@lowers(aten.threshold_backward.default)
def threshold_backward(grad_output, self, threshold):
    return jnp.where(self <= threshold, 0, grad_output)


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


@lowers(aten._softmax.default)
def softmax(self, dim, half_to_float):
    axis = axis_of(self, dim) if self.ndim else None
    powers = jnp.exp(_shifted(_opened(self), axis))
    result = powers / jnp.sum(powers, axis, keepdims=True)
    return result.astype(jnp.float32 if half_to_float else self.dtype)


@lowers(aten._log_softmax.default)
def log_softmax(self, dim, half_to_float):
    axis = axis_of(self, dim) if self.ndim else None
    shifted = _shifted(_opened(self), axis)
    result = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis, keepdims=True))
    return result.astype(jnp.float32 if half_to_float else self.dtype)


@lowers(aten._softmax_backward_data.default)
def softmax_backward(grad_output, output, dim, input_dtype):
    axis = axis_of(output, dim) if output.ndim else None
    grad, result = _opened(grad_output), _opened(output)
    weighted = grad * result
    found = weighted - result * jnp.sum(weighted, axis, keepdims=True)
    return found.astype(XLA_DTYPE[input_dtype])


@lowers(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad_output, output, dim, input_dtype):
    axis = axis_of(output, dim) if output.ndim else None
    grad, result = _opened(grad_output), _opened(output)
    found = grad - jnp.exp(result) * jnp.sum(grad, axis, keepdims=True)
    return found.astype(XLA_DTYPE[input_dtype])
