"""Comparisons, logic and tests: the result is bool, the arguments have one common dtype."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from torch_galley.ops.aten.cast import number
from torch_galley.ops.registry import lowers, rows

aten = torch.ops.aten


@lowers(aten.eq.Tensor, aten.eq.Scalar)
def eq(self, other):
    return self == number(other, self)


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(self, other):
    return self != number(other, self)


@lowers(aten.lt.Tensor, aten.lt.Scalar)
def lt(self, other):
    return self < number(other, self)


@lowers(aten.le.Tensor, aten.le.Scalar)
def le(self, other):
    return self <= number(other, self)


@lowers(aten.gt.Tensor, aten.gt.Scalar)
def gt(self, other):
    return self > number(other, self)


@lowers(aten.ge.Tensor, aten.ge.Scalar)
def ge(self, other):
    return self >= number(other, self)


def _truth(x):
    return x if x.dtype == jnp.bool_ else x != 0  # NaN is true


@lowers(aten.logical_not.default)
def logical_not(self):
    return ~_truth(self)


@lowers(aten.logical_and.default)
def logical_and(self, other):
    return _truth(self) & _truth(other)


@lowers(aten.logical_or.default)
def logical_or(self, other):
    return _truth(self) | _truth(other)


@lowers(aten.logical_xor.default)
def logical_xor(self, other):
    return _truth(self) ^ _truth(other)


rows(
    (aten.isnan.default, jnp.isnan),
    (aten.isinf.default, jnp.isinf),
    (aten.isfinite.default, jnp.isfinite),
)


@lowers(aten.signbit.default)
def signbit(self):
    return jnp.signbit(self) if jnp.issubdtype(self.dtype, jnp.floating) else self < 0
