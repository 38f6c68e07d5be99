"""Orthogonal polynomials, each element with a degree of its own.

All follow a recurrence over the degree, p(k + 1) from p(k) and p(k - 1), which runs until the
last element has its degree. Chebyshev's have a closed form inside (-1, 1), which is as long for
every degree. A negative degree gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.ops.aten.cast import cast, number
from torch_galley.ops.registry import rows

aten = torch.ops.aten

Step = Callable[[Any, Any, Any, Any], Any]
"""Takes k, x, p(k) and p(k - 1), returns p(k + 1)."""


def _recur(x: jax.Array, degree: jax.Array, first: jax.Array, step: Step, wanted: Any) -> jax.Array:
    """Return p(degree), from p(0) = 1 and p(1) = `first`, for the elements that are `wanted`."""

    def active(state):
        k, _, now, _ = state
        return jnp.any(wanted & (degree > k) & ~jnp.isnan(now))

    def advance(state):
        k, before, now, found = state
        before, now = now, step(k.astype(x.dtype), x, now, before)
        return k + 1, before, now, jnp.where(degree > k, now, found)

    one = jnp.ones_like(x)
    start = jnp.where(degree <= 0, (degree == 0).astype(x.dtype), first)
    return lax.while_loop(active, advance, (jnp.ones((), jnp.int64), one, first, start))[3]


def _plain(first: Callable[[Any], Any], step: Step, most: dict[str, int] | None = None):
    """Return the lowering of a family that is its recurrence; NaN for degrees above `most`."""

    def lowering(x, n):
        x, n = _operands(x, n)
        degree = cast(n, torch.int64)
        found = _recur(x, degree, first(x), step, True)
        return found if most is None else jnp.where(degree > most[x.dtype.name], jnp.nan, found)

    return lowering


def _operands(x, n):
    """Return both as arrays of one shape: either may be a number."""
    like = x if isinstance(x, jax.Array) else n
    return jnp.broadcast_arrays(number(x, like), number(n, like))


@dataclass(frozen=True)
class _Chebyshev:
    """What tells the four kinds apart. Theta is the angle whose cosine is x."""

    first: Callable[[Any], Any]
    """p(1)."""
    closed: Callable[[Any, Any], Any]
    """p(n), from n and theta."""
    high: Callable[[Any], Any]
    """p(n) where x is 1."""
    low: Callable[[Any], Any]
    """p(n) where x is -1, up to the sign of an odd n."""


def _one(n):
    return jnp.ones_like(n)


_CHEBYSHEV = {
    "t": _Chebyshev(lambda x: x, lambda n, theta: jnp.cos(n * theta), _one, _one),
    "u": _Chebyshev(
        lambda x: x + x,
        lambda n, theta: jnp.sin((n + 1) * theta) / jnp.sin(theta),
        lambda n: n + 1,
        lambda n: n + 1,
    ),
    "v": _Chebyshev(
        lambda x: x + x - 1,
        lambda n, theta: jnp.cos((n + 0.5) * theta) / jnp.cos(theta / 2),
        _one,
        lambda n: n + n + 1,
    ),
    "w": _Chebyshev(
        lambda x: x + x + 1,
        lambda n, theta: jnp.sin((n + 0.5) * theta) / jnp.sin(theta / 2),
        lambda n: n + n + 1,
        _one,
    ),
}


def _chebyshev(kind: _Chebyshev, recurred: int, shifted: bool):
    """Return the lowering of a kind; up to degree `recurred` it recurs everywhere, as eager."""

    def lowering(x, n):
        x, n = _operands(x, n)
        if shifted:
            x = x + x - 1
        degree = cast(n, torch.int64)
        n = degree.astype(x.dtype)
        inner = (jnp.abs(x) < 1) & (degree > recurred)
        edge = jnp.abs(x) == 1
        found = _recur(x, degree, kind.first(x), _double, ~(inner | edge))
        found = jnp.where(inner, kind.closed(n, jnp.arccos(x)), found)
        lowest = jnp.where(degree % 2 == 0, kind.low(n), -kind.low(n))
        found = jnp.where(edge, jnp.where(x > 0, kind.high(n), lowest), found)
        return jnp.where(degree < 0, 0, found)

    return lowering


def _double(k, x, now, before):
    return (x + x) * now - before


_MOST = {"float32": 128, "float64": 512}
"""The highest degree of Hermite's that eager computes."""

_PLAIN = {
    "hermite_polynomial_h": _plain(
        lambda x: x + x, lambda k, x, now, before: (x + x) * now - (k + k) * before, _MOST
    ),
    "hermite_polynomial_he": _plain(
        lambda x: x, lambda k, x, now, before: x * now - k * before, _MOST
    ),
    "laguerre_polynomial_l": _plain(
        lambda x: 1 - x,
        lambda k, x, now, before: ((k + k + (1 - x)) * now - k * before) / (k + 1),
    ),
    "legendre_polynomial_p": _plain(
        lambda x: x,
        lambda k, x, now, before: ((k + k + 1) * x * now - k * before) / (k + 1),
    ),
}
_RECURRED = {"t": (6, 6), "u": (8, 6), "v": (8, 6), "w": (8, 4)}
_FAMILIES = _PLAIN | {
    f"{'shifted_' * shifted}chebyshev_polynomial_{name}": _chebyshev(
        kind, _RECURRED[name][shifted], shifted
    )
    for name, kind in _CHEBYSHEV.items()
    for shifted in (False, True)
}

for _name, _lowering in _FAMILIES.items():
    _packet = getattr(aten, f"special_{_name}")
    rows(
        (_packet.default, _lowering),
        (_packet.x_scalar, _lowering),
        (_packet.n_scalar, _lowering),
    )
