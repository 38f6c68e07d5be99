"""Functions of complex numbers, with the infinities, NaNs and signed zeros of C's Annex G.

XLA's own differ from eager's (the C library's) there, on branch cuts above all. Each function is
written with real ones. For complex64 these are of double precision: what would overflow or cancel
in single precision then does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Parts = tuple[jax.Array, jax.Array]
"""Real and imaginary part."""


def either(
    real: Callable[[jax.Array], jax.Array], of_complex: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array], jax.Array]:
    """Return a function that is `real` for real numbers and `of_complex` for complex ones."""

    @wraps(real)
    def function(x: jax.Array) -> jax.Array:
        return of_complex(x) if jnp.iscomplexobj(x) else real(x)

    return function


def _through_double(function: Callable[..., Parts]) -> Callable[..., jax.Array]:
    """Make a function of parts one of complex arrays, computed in double precision."""

    @wraps(function)
    def of_arrays(*arrays: jax.Array) -> jax.Array:
        parts: list[Any] = []
        for z in arrays:
            parts += [jnp.real(z).astype(jnp.float64), jnp.imag(z).astype(jnp.float64)]
        real, imag = function(*parts)
        part = jnp.real(arrays[0]).dtype
        return lax.complex(real.astype(part), imag.astype(part))

    return of_arrays


def _zero_like(x: jax.Array) -> jax.Array:
    """Return zero with the sign of x."""
    return jnp.copysign(jnp.zeros_like(x), x)


def _choose(value: Parts, *cases: tuple[jax.Array, Any, Any]) -> Parts:
    """Return the first case (condition, real, imag) that holds, else `value`."""
    real, imag = value
    for condition, a, b in reversed(cases):
        real, imag = jnp.where(condition, a, real), jnp.where(condition, b, imag)
    return real, imag


# Arithmetic


def scaled(z: jax.Array, factor: complex) -> jax.Array:
    """Return z * factor, also by the formula where the factor is 1 and XLA would leave it out:
    0 * infinity is NaN, and 0.0 - 0.0 is 0.0."""
    a, b, c, d = jnp.real(z), jnp.imag(z), complex(factor).real, complex(factor).imag
    return lax.complex(a * c - b * d, a * d + b * c)


def divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x / y by Smith's method, as eager does: in the numbers' own precision."""
    x, y = jnp.broadcast_arrays(x, y)
    a, b, c, d = jnp.real(x), jnp.imag(x), jnp.real(y), jnp.imag(y)
    wide = jnp.abs(c) >= jnp.abs(d)
    ratio = jnp.where(wide, d / c, c / d)
    scale = 1 / jnp.where(wide, c + d * ratio, d + c * ratio)
    real = jnp.where(wide, a + b * ratio, a * ratio + b) * scale
    imag = jnp.where(wide, b - a * ratio, b * ratio - a) * scale
    by_zero = (c == 0) & (d == 0)
    zero = jnp.zeros_like(c)
    return lax.complex(*_choose((real, imag), (by_zero, a / zero, b / zero)))


def reciprocal(z: jax.Array) -> jax.Array:
    """Return 1 / z. Behind a barrier, lest XLA leave out the addition of 0, which turns -0.0."""
    return divide(lax.optimization_barrier(jnp.ones((), z.dtype)), z)


def absolute(z: jax.Array) -> jax.Array:
    """Return the modulus; an infinite part makes it infinite, whatever the other is."""
    a, b = jnp.abs(jnp.real(z)), jnp.abs(jnp.imag(z))
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(large == 0, 1, large)
    value = jnp.where(large == small, large * math.sqrt(2), large * jnp.sqrt(1 + ratio * ratio))
    return jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.inf, value)


def sgn(z: jax.Array) -> jax.Array:
    """Return z / |z|, part by part; zero for zero."""
    size = absolute(z)
    real, imag = jnp.real(z) / size, jnp.imag(z) / size
    return lax.complex(*_choose((real, imag), (size == 0, 0.0, 0.0)))


# Roots


def _sqrt(a: jax.Array, b: jax.Array) -> Parts:
    size = jnp.maximum(jnp.abs(a), jnp.abs(b))
    # A power of four, so that its root is exact, and squares neither overflow nor vanish.
    down, up = size > 1e150, size < 1e-150
    factor = jnp.where(down, 2.0**-540, jnp.where(up, 2.0**540, 1.0))
    x, y = jnp.abs(a * factor), jnp.abs(b * factor)
    major = jnp.sqrt((x + jnp.sqrt(x * x + y * y)) / 2)
    minor = y / jnp.where(major == 0, 1, 2 * major)
    root = jnp.where(down, 2.0**270, jnp.where(up, 2.0**-270, 1.0))
    major, minor = major * root, minor * root
    positive = ~(a < 0)
    real, imag = jnp.where(positive, major, minor), jnp.where(positive, minor, major)
    return _choose(
        (real, jnp.copysign(imag, b)),
        (jnp.isinf(b), jnp.inf, b),
        (a == -jnp.inf, jnp.where(jnp.isnan(b), jnp.nan, 0), jnp.copysign(jnp.inf, b)),
        (a == jnp.inf, jnp.inf, jnp.where(jnp.isnan(b), jnp.nan, _zero_like(b))),
    )


sqrt = _through_double(_sqrt)


def rsqrt(z: jax.Array) -> jax.Array:
    return reciprocal(sqrt(z))


# Exponential and logarithm


def _exp(a: jax.Array, b: jax.Array) -> Parts:
    half = jnp.exp(a / 2)  # twice, for products that are finite although exp(a) is not
    real, imag = half * jnp.cos(b) * half, half * jnp.sin(b) * half
    lost = ~jnp.isfinite(b)
    return _choose(
        (real, jnp.where(b == 0, b, imag)),
        (lost & (a == jnp.inf), jnp.inf, jnp.nan),
        (lost & (a == -jnp.inf), 0.0, _zero_like(b)),
    )


exp = _through_double(_exp)


def sigmoid(z: jax.Array) -> jax.Array:
    return reciprocal(1 + exp(-z))


def exp2(z: jax.Array) -> jax.Array:
    return exp(_scaled(z, math.log(2)))


def _scaled(z: jax.Array, factor: float) -> jax.Array:
    return lax.complex(jnp.real(z) * factor, jnp.imag(z) * factor)


def expm1(z: jax.Array) -> jax.Array:
    """As eager, in the number's own precision and without Annex G."""
    a, b = jnp.real(z), jnp.imag(z)
    half = jnp.sin(b / 2)
    return lax.complex(jnp.expm1(a) * jnp.cos(b) - 2 * half * half, jnp.exp(a) * jnp.sin(b))


def _log(a: jax.Array, b: jax.Array) -> Parts:
    large = jnp.maximum(jnp.abs(a), jnp.abs(b))
    small = jnp.minimum(jnp.abs(a), jnp.abs(b))
    ratio = small / jnp.where(large == 0, 1, large)
    far = jnp.log(large) + jnp.log1p(ratio * ratio) / 2
    near = jnp.log1p((large - 1) * (large + 1) + small * small) / 2
    real = jnp.where((large > 0.5) & (large < 2), near, far)
    real = jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.inf, real)
    return real, jnp.arctan2(b, a)


log = _through_double(_log)


def log2(z: jax.Array) -> jax.Array:
    return _scaled(log(z), 1 / math.log(2))


def log10(z: jax.Array) -> jax.Array:
    return _scaled(log(z), 1 / math.log(10))


@_through_double
def log1p(a: jax.Array, b: jax.Array) -> Parts:
    """Not by adding 1, which would lose small numbers. A NaN takes all, as in eager."""
    near = jnp.log1p(a * (2 + a) + b * b) / 2
    far, angle = _log(a + 1, b)
    small = jnp.abs(a) + jnp.abs(b) < 0.5
    lost = jnp.isnan(a) | jnp.isnan(b)
    return _choose(
        (jnp.where(small, near, far), angle),
        (lost, jnp.nan, jnp.nan),
        ((a == 0) & (b == 0), a, b),
    )


# Powers


@_through_double
def _pow(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Parts:
    return _exp(*_times(_log(a, b), (c, d)))


def _times(x: Parts, y: Parts) -> Parts:
    """Multiply as C does: infinite if a factor is, where the plain formula gives NaN + NaN i."""
    (a, b), (c, d) = x, y
    real, imag = a * c - b * d, a * d + b * c
    endless = (jnp.isinf(a) | jnp.isinf(b)), (jnp.isinf(c) | jnp.isinf(d))
    lost = jnp.isnan(real) & jnp.isnan(imag) & (endless[0] | endless[1])

    def boxed(part: jax.Array, infinite: jax.Array) -> jax.Array:
        kept = jnp.where(infinite, jnp.isinf(part).astype(part.dtype), part)
        return jnp.copysign(jnp.where(jnp.isnan(kept), 0.0, kept), part)

    a, b = boxed(a, endless[0]), boxed(b, endless[0])
    c, d = boxed(c, endless[1]), boxed(d, endless[1])
    whole = jnp.inf * (a * c - b * d), jnp.inf * (a * d + b * c)
    return _choose((real, imag), (lost, *whole))


def power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    return _pow(*jnp.broadcast_arrays(base, exponent))


# Hyperbolic functions; the circular ones are those of i * z


def _sinh(a: jax.Array, b: jax.Array) -> Parts:
    real, imag = _halves(a, b, jnp.sinh, jnp.cos), _halves(a, b, jnp.cosh, jnp.sin)
    lost = ~jnp.isfinite(b)
    return _choose(
        (real, jnp.where(b == 0, b, imag)),
        (lost & (a == 0), a, jnp.nan),
        (lost & jnp.isinf(a), jnp.inf, jnp.nan),
    )


def _cosh(a: jax.Array, b: jax.Array) -> Parts:
    real, imag = _halves(a, b, jnp.cosh, jnp.cos), _halves(a, b, jnp.sinh, jnp.sin)
    lost = ~jnp.isfinite(b)
    return _choose(
        (real, jnp.where(b == 0, jnp.where(jnp.isnan(a), b, b * jnp.copysign(1.0, a)), imag)),
        (lost & (a == 0), jnp.nan, 0.0),
        (lost & jnp.isinf(a), jnp.inf, jnp.nan),
    )


def _halves(a, b, hyperbolic, circular):
    """Return hyperbolic(a) * circular(b), finite where the product is."""
    large = jnp.exp(jnp.abs(a) / 2)
    sign = jnp.copysign(1.0, a) if hyperbolic is jnp.sinh else 1.0
    value = sign * large * circular(b) * large / 2
    return jnp.where(jnp.abs(a) > 700, value, hyperbolic(a) * circular(b))


def _tanh(a: jax.Array, b: jax.Array) -> Parts:
    sine, cosine = jnp.sin(b), jnp.cos(b)
    sinh = jnp.sinh(jnp.clip(a, -350, 350))
    below = sinh * sinh + cosine * cosine
    real, imag = sinh * jnp.cosh(jnp.clip(a, -350, 350)) / below, sine * cosine / below
    far = jnp.abs(a) > 25
    decay = jnp.exp(-2 * jnp.abs(a))
    lost = ~jnp.isfinite(b)
    return _choose(
        (real, jnp.where(b == 0, b, imag)),
        (jnp.isinf(a), jnp.copysign(1.0, a), _zero_like(jnp.where(lost, b, sine * cosine))),
        (lost & (a == 0), a, jnp.nan),
        (far & ~lost, jnp.copysign(1.0, a), jnp.where(b == 0, b, 4 * sine * cosine * decay)),
    )


def _turned(function: Callable[..., Parts]) -> Callable[..., Parts]:
    """Return f with f(z) = function(i z) / i."""

    def turned(a: jax.Array, b: jax.Array) -> Parts:
        real, imag = function(-b, a)
        return imag, -real

    return turned


@_through_double
def cos(a: jax.Array, b: jax.Array) -> Parts:
    return _cosh(-b, a)


@_through_double
def sin(a: jax.Array, b: jax.Array) -> Parts:
    """C leaves open which sign an infinity beside a NaN has; its libraries take the positive."""
    lost = ~jnp.isfinite(a)
    return _choose(_turned(_sinh)(a, b), (lost & jnp.isinf(b), jnp.nan, jnp.inf))


sinh, cosh, tanh = map(_through_double, (_sinh, _cosh, _tanh))
tan = _through_double(_turned(_tanh))


# Inverse functions, by Kahan's formulas: real functions of the roots of 1 - z and 1 + z


def _asinh(a: jax.Array, b: jax.Array) -> Parts:
    (p, q), (r, s) = _sqrt(1 + b, -a), _sqrt(1 - b, a)
    value = jnp.arcsinh(p * s - q * r), jnp.arctan(b / (p * r - q * s))
    endless, angle = _at_infinity(jnp.abs(a), b)
    return _choose(
        value,
        (endless, jnp.copysign(jnp.inf, a), angle),
        (jnp.isnan(a) & (b == 0), jnp.nan, b),
    )


def _acos(a: jax.Array, b: jax.Array) -> Parts:
    (p, q), (r, s) = _sqrt(1 - a, -b), _sqrt(1 + a, b)
    value = 2 * jnp.arctan2(p, r), jnp.arcsinh(r * q - s * p)
    endless, angle = _at_infinity(a, b)
    return _choose(
        value,
        (endless, jnp.abs(angle), -jnp.copysign(jnp.inf, b)),
        ((a == 0) & jnp.isnan(b), math.pi / 2, jnp.nan),
    )


def _acosh(a: jax.Array, b: jax.Array) -> Parts:
    (p, q), (r, s) = _sqrt(a - 1, b), _sqrt(a + 1, b)
    value = jnp.arcsinh(p * r + q * s), 2 * jnp.arctan2(q, r)
    endless, angle = _at_infinity(a, b)
    return _choose(
        value,
        (endless, jnp.inf, angle),
        ((a == 0) & jnp.isnan(b), jnp.nan, math.pi / 2),
    )


def _at_infinity(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return which numbers have an infinite part, and their angles: NaN beside a NaN."""
    endless = jnp.isinf(a) | jnp.isinf(b)
    x = jnp.copysign(jnp.where(jnp.isinf(a), 1.0, 0.0), a)
    y = jnp.copysign(jnp.where(jnp.isinf(b), 1.0, 0.0), b)
    return endless, jnp.where(jnp.isnan(a) | jnp.isnan(b), jnp.nan, jnp.arctan2(y, x))


def _atanh(a: jax.Array, b: jax.Array) -> Parts:
    size = jnp.abs(a)
    square = (1 - size) * (1 - size) + b * b
    real = jnp.copysign(jnp.log1p(4 * size / square) / 4, a)
    imag = jnp.arctan2(2 * b, (1 - a) * (1 + a) - b * b) / 2
    large = jnp.maximum(size, jnp.abs(b))
    ratio = jnp.minimum(size, jnp.abs(b)) / large
    share = jnp.copysign(jnp.where(size == large, 1.0, ratio), a)
    far = share / (large * (1 + ratio * ratio))
    at_pole = (math.log(2) - jnp.log(jnp.abs(b))) / 2
    quarter = jnp.where(jnp.isnan(b), jnp.nan, jnp.copysign(math.pi / 2, b))
    return _choose(
        (real, imag),
        (jnp.isinf(a) | jnp.isinf(b), _zero_like(a), quarter),
        ((a == 0) & jnp.isnan(b), a, jnp.nan),
        (large > 1e150, far, imag),
        ((size == 1) & (jnp.abs(b) < 1e-150), jnp.copysign(at_pole, a), imag),
    )


asinh, acos, acosh, atanh = map(_through_double, (_asinh, _acos, _acosh, _atanh))
asin, atan = map(_through_double, map(_turned, (_asinh, _atanh)))
