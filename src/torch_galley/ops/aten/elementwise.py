"""Arithmetic and functions of one element each. The driver promotes dtypes (lower.promote)."""

from __future__ import annotations

import math

import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten import complex_math
from torch_galley.ops.aten.cast import number
from torch_galley.ops.aten.complex_math import either
from torch_galley.ops.aten.special import tanh
from torch_galley.ops.check import require
from torch_galley.ops.half import is_half, rounded
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten
prims = torch.ops.prims


rows(
    (aten.neg.default, jnp.negative),
    (aten.abs.default, either(jnp.abs, complex_math.absolute)),
    (aten.reciprocal.default, either(jnp.reciprocal, complex_math.reciprocal)),
    (aten.sqrt.default, either(jnp.sqrt, complex_math.sqrt)),
    (aten.rsqrt.default, either(lax.rsqrt, complex_math.rsqrt)),
    (aten.exp.default, either(jnp.exp, complex_math.exp)),
    (aten.exp2.default, either(jnp.exp2, complex_math.exp2)),
    (aten.expm1.default, either(jnp.expm1, complex_math.expm1)),
    (aten.log.default, either(jnp.log, complex_math.log)),
    (aten.log2.default, either(jnp.log2, complex_math.log2)),
    (aten.log10.default, either(jnp.log10, complex_math.log10)),
    (aten.log1p.default, either(jnp.log1p, complex_math.log1p)),
    (aten.sin.default, either(jnp.sin, complex_math.sin)),
    (aten.cos.default, either(jnp.cos, complex_math.cos)),
    (aten.tan.default, either(jnp.tan, complex_math.tan)),
    (aten.asin.default, either(jnp.arcsin, complex_math.asin)),
    (aten.acos.default, either(jnp.arccos, complex_math.acos)),
    (aten.atan.default, either(jnp.arctan, complex_math.atan)),
    (aten.atan2.default, jnp.arctan2),
    (aten.sinh.default, either(jnp.sinh, complex_math.sinh)),
    (aten.cosh.default, either(jnp.cosh, complex_math.cosh)),
    (aten.tanh.default, either(tanh, complex_math.tanh)),
    (aten.asinh.default, either(jnp.arcsinh, complex_math.asinh)),
    (aten.acosh.default, either(jnp.arccosh, complex_math.acosh)),
    (aten.atanh.default, either(jnp.arctanh, complex_math.atanh)),
    (aten.ceil.default, jnp.ceil),
    (aten.floor.default, jnp.floor),
    (aten.trunc.default, jnp.trunc),
    (aten.hypot.default, jnp.hypot),
    (aten._conj_physical.default, jnp.conj),
)


# Arithmetic


def _scaled(x, alpha):
    if jnp.iscomplexobj(x):
        return complex_math.scaled(x, alpha)
    return x if alpha == 1 else product(x, number(alpha, x))


def add(self, other, alpha=1):
    other = _scaled(number(other, self), alpha)
    return self | other if self.dtype == jnp.bool_ else self + other


def sub(self, other, alpha=1):
    if jnp.iscomplexobj(self):  # a + (-alpha) * b: zeros have other signs in a - alpha * b
        return add(self, other, -alpha)
    return self - _scaled(number(other, self), alpha)


def rsub(self, other, alpha=1):
    return sub(number(other, self), self, alpha)


def without_sign(x):
    """Return the result of a summation with 0.0 for -0.0, since eager begins with 0.0.

    Note [Added zeros]. XLA takes x + 0.0 for x, but -0.0 + 0.0 is 0.0. A barrier hides the zero
    from it, here and, where an operand of a sum is constant, in lower.guard.
    """
    return x + lax.optimization_barrier(jnp.zeros((), x.dtype)) if _is_float(x) else x


def mul(self, other):
    return product(self, number(other, self))


def product(x, y):
    """Multiply; see V2 in the note below.

    Note [Integer products]. XLA takes the sign of an integer x*x for known (non-negative) and so
    gets abs(x*x) and x*x < 0 wrong once it overflows (tensorflow#118178). A barrier behind the
    product hides from it where the value comes from. Powers and reductions do the same.
    """
    return guarded(x & y if x.dtype == jnp.bool_ else x * y)


def guarded(x):
    """Hide the origin of a signed integer from XLA; see Note [Integer products]."""
    return lax.optimization_barrier(x) if jnp.issubdtype(x.dtype, jnp.signedinteger) else x


def div(self, other):
    """Divide by each divisor: XLA would multiply by the inverse of one that is spread, or of a
    root, which is not always the nearest number: floor(147 / 49) might be 2.
    """
    x, y = jnp.broadcast_arrays(self, number(other, self))
    return _quotient(x, lax.optimization_barrier(y))


def _quotient(x, y):
    return complex_math.divide(x, y) if jnp.iscomplexobj(x) else x / y


def div_mode(self, other, rounding_mode):
    x, y, step = _opened(self, number(other, self))
    if rounding_mode is None:
        return div(x, y)
    return _floor_divide(x, y, step) if rounding_mode == "floor" else _trunc_divide(x, y, step)


def floor_divide(self, other):
    return _floor_divide(*_opened(self, number(other, self)))


def _opened(x, y):
    """Return half types in float32, and what eager does to such a number after each step.

    It rounds it, unless the divisor is a single number.
    """
    if not is_half(x.dtype):
        return x, y, lambda value: value
    dtype = x.dtype
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return x, y, (lambda value: value) if y.size == 1 else (lambda value: rounded(value, dtype))


def _nonzero(divisor):
    require(divisor != 0, divisor, RuntimeError, "ZeroDivisionError: division by zero")


def _is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def _trunc_divide(x, y, step):
    x, y = jnp.broadcast_arrays(x, y)
    if _is_float(x):
        # Else XLA multiplies by the reciprocal of one number: an ulp, but one that trunc can show.
        return jnp.trunc(step(x / lax.optimization_barrier(y)))
    _nonzero(y)
    return lax.div(x, y)


def _floor_divide(x, y, step):
    x, y = jnp.broadcast_arrays(x, y)
    rest = lax.rem(x, y)
    crosses = (rest != 0) & ((rest < 0) != (y < 0))
    if not _is_float(x):
        _nonzero(y)
        return lax.div(x, y) - crosses.astype(x.dtype)
    # As Python and torch do: exact where x / y rounds up to a whole number.
    quotient = step(step(step(x - rest) / y) - crosses.astype(x.dtype))
    whole = jnp.floor(quotient)
    whole = step(whole + (step(quotient - whole) > 0.5).astype(x.dtype))
    whole = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(x), x / y), whole)
    return jnp.where(y == 0, x / y, whole)


def remainder(x, y):
    """The sign is the divisor's."""
    x, y = jnp.broadcast_arrays(x, y)
    if not _is_float(x):
        _nonzero(y)
    rest = lax.rem(x, y)
    return jnp.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def fmod(x, y):
    """The sign is the dividend's."""
    x, y = jnp.broadcast_arrays(x, y)
    if not _is_float(x):
        _nonzero(y)
    return lax.rem(x, y)


rows(
    (aten.add.Tensor, add),
    (aten.add.Scalar, add),
    (aten.sub.Tensor, sub),
    (aten.sub.Scalar, sub),
    (aten.mul.Tensor, mul),
    (aten.mul.Scalar, mul),
    (aten.square.default, lambda self: product(self, self)),
    (aten.div.Tensor, div),
    (aten.div.Scalar, div),
    (aten.remainder.Tensor, remainder),
    (aten.remainder.Scalar, remainder),
    (aten.remainder.Scalar_Tensor, remainder),
    (aten.fmod.Tensor, fmod),
    (aten.fmod.Scalar, fmod),
    (aten.copysign.Tensor, jnp.copysign),
    (aten.copysign.Scalar, jnp.copysign),
)
rows(
    (aten.rsub.Tensor, rsub),
    (aten.rsub.Scalar, rsub),
    promotes=True,
)
rows(
    (aten.div.Tensor_mode, div_mode),
    (aten.div.Scalar_mode, div_mode),
    (aten.floor_divide.default, floor_divide),
    (aten.floor_divide.Scalar, floor_divide),
    promotes=True,
    halves=True,
)


# Powers


_COMPLEX_POWERS = {
    0.5: complex_math.sqrt,
    -0.5: complex_math.rsqrt,
    -1: complex_math.reciprocal,
    -2: lambda z: complex_math.reciprocal(z * z),
}
"""What eager does not compute through the logarithm."""


def _no_negative_power(self, exponent) -> Reason | None:
    if self.dtype is torch.bool and isinstance(exponent, bool):
        return ArgumentForm("aten.pow", "of booleans, which eager computes in another dtype")
    exact = not (self.dtype.is_floating_point or self.dtype.is_complex)
    if exact and isinstance(exponent, int) and exponent < 0:
        return ArgumentForm("aten.pow", "eager refuses negative powers of integers")
    return None


@lowers(aten.pow.Tensor_Scalar, when=_no_negative_power)
def pow_scalar(self, exponent):
    if jnp.issubdtype(self.dtype, jnp.integer):
        return _integer_power(self, number(exponent, self))
    if jnp.iscomplexobj(self) and exponent in _COMPLEX_POWERS:
        return _COMPLEX_POWERS[exponent](self)
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -0.5 and _is_float(self):
        return lax.rsqrt(self)
    if exponent in (-2, -1, 0, 1, 2, 3):
        return lax.integer_pow(self, int(exponent))
    return _power(self, number(exponent, self))


def _power(base, exponent):
    base, exponent = jnp.broadcast_arrays(base, exponent)
    if jnp.issubdtype(base.dtype, jnp.integer):
        return _integer_power(base, exponent)
    if base.dtype == jnp.bool_:
        return base | ~exponent
    if jnp.iscomplexobj(base):
        return complex_math.power(base, exponent)
    return lax.pow(base, exponent)


def _integer_power(base, exponent):
    """Square and multiply, wrapping; a negative exponent gives 0 unless the base is 1 or -1."""
    base, exponent = jnp.broadcast_arrays(base, exponent)

    def step(state):
        result, square, left = state
        result = jnp.where(left & 1 == 1, result * square, result)
        return result, square * square, left >> 1

    start = (jnp.ones_like(base), base, jnp.maximum(exponent, 0))
    result, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)
    odd = exponent & 1 == 1
    unit = jnp.where(base == -1, jnp.where(odd, base, -base), (base == 1).astype(base.dtype))
    return guarded(jnp.where(exponent < 0, unit, result))


rows(
    (aten.pow.Tensor_Tensor, _power),
    (aten.pow.Scalar, lambda self, exponent: _power(number(self, exponent), exponent)),
)


# Rounding, signs, parts


@lowers(aten.round.decimals)
def round_decimals(self, *, decimals):
    power = jnp.asarray(10.0 ** abs(decimals), self.dtype)
    if decimals < 0:
        return jnp.round(self / power) * power
    return jnp.round(self * power) / power


def sign(x):
    """The sign of NaN is 0, and that of -0.0 is 0.0."""
    if x.dtype == jnp.bool_:
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _angle(x):
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, math.pi, 0.0))


rows(
    (aten.round.default, jnp.round),
    (aten.sign.default, sign),
    (aten.sgn.default, either(sign, complex_math.sgn)),
    (aten.angle.default, either(_angle, jnp.angle)),
)
rows((aten.nextafter.default, jnp.nextafter), promotes=False)


@lowers(aten.complex.default, promotes=False)
def complex_(real, imag):
    if real.dtype == jnp.float16:  # complex32 is no XLA type; the recorded dtype says so
        real, imag = real.astype(jnp.float32), imag.astype(jnp.float32)
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@lowers(aten.polar.default, promotes=False)
def polar(abs, angle):
    return lax.complex(*jnp.broadcast_arrays(abs * jnp.cos(angle), abs * jnp.sin(angle)))


@lowers(aten.frexp.Tensor, promotes=False)
def frexp(self):
    wide = self.astype(jnp.float32) if self.dtype.itemsize == 2 else self
    mantissa, exponent = jnp.frexp(wide)
    odd = ~jnp.isfinite(self)
    return jnp.where(odd, self, mantissa.astype(self.dtype)), jnp.where(odd, 0, exponent)


# Bits


def left_shift(x, count):
    return x * jnp.exp2(count) if _is_float(x) else _shift_left(x, count)


def right_shift(x, count):
    return x / jnp.exp2(count) if _is_float(x) else _shift_right(x, count)


rows(
    (aten.bitwise_not.default, jnp.invert),
    (aten.bitwise_and.Tensor, jnp.bitwise_and),
    (aten.bitwise_and.Scalar, jnp.bitwise_and),
    (aten.bitwise_and.Scalar_Tensor, jnp.bitwise_and),
    (aten.bitwise_or.Tensor, jnp.bitwise_or),
    (aten.bitwise_or.Scalar, jnp.bitwise_or),
    (aten.bitwise_or.Scalar_Tensor, jnp.bitwise_or),
    (aten.bitwise_xor.Tensor, jnp.bitwise_xor),
    (aten.bitwise_xor.Scalar, jnp.bitwise_xor),
    (aten.bitwise_xor.Scalar_Tensor, jnp.bitwise_xor),
    (aten.bitwise_left_shift.Tensor, left_shift),
    (aten.bitwise_left_shift.Tensor_Scalar, left_shift),
    (aten.bitwise_left_shift.Scalar_Tensor, left_shift),
    (aten.__lshift__.Tensor, left_shift),
    (aten.__lshift__.Scalar, left_shift),
    (aten.bitwise_right_shift.Tensor, right_shift),
    (aten.bitwise_right_shift.Tensor_Scalar, right_shift),
    (aten.bitwise_right_shift.Scalar_Tensor, right_shift),
    (aten.__rshift__.Tensor, right_shift),
    (aten.__rshift__.Scalar, right_shift),
)


def _shift_left(x, count):
    """Zero for a count that is negative or beyond the width; XLA leaves that undefined."""
    x, count = jnp.broadcast_arrays(x, count)
    fits = (count >= 0) & (count < 8 * x.dtype.itemsize)
    return jnp.where(fits, lax.shift_left(x, jnp.where(fits, count, 0)), 0)


def _shift_right(x, count):
    """The sign (zero if unsigned) for a count that is negative or beyond the width."""
    x, count = jnp.broadcast_arrays(x, count)
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    last = 8 * x.dtype.itemsize - 1
    fits = (count >= 0) & (count <= last)
    shift = lax.shift_right_arithmetic if signed else lax.shift_right_logical
    kept = shift(x, jnp.where(fits, count, jnp.asarray(last, x.dtype)))
    return kept if signed else jnp.where(fits, kept, 0)


# Choices


@lowers(aten.clamp.default)
def clamp(self, min=None, max=None):
    """NaN stays, in the value and in the bounds, and so does -0.0; min > max gives max."""
    if any(bound is not None and math.isnan(bound) for bound in (min, max)):
        return jnp.full_like(self, math.nan)
    if min is not None:
        self = jnp.where(self < min, number(min, self), self)
    return self if max is None else jnp.where(self > max, number(max, self), self)


@lowers(aten.clamp.Tensor)
def clamp_tensor(self, min=None, max=None):
    if min is not None:
        self = jnp.maximum(self, min)
    return self if max is None else jnp.minimum(self, max)


rows(
    (aten.hardtanh.default, lambda self, min_val=-1, max_val=1: clamp(self, min_val, max_val)),
    (prims.where.default, jnp.where),
    (aten.maximum.default, jnp.maximum),
    (aten.minimum.default, jnp.minimum),
    (aten.fmax.default, jnp.fmax),
    (aten.fmin.default, jnp.fmin),
)
