"""Comparisons, logic and tests: the result is bool, the arguments have one common dtype."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from torch_galley.ops.registry import rows

aten = torch.ops.aten


rows(
    (aten.eq.Tensor, jnp.equal),
    (aten.eq.Scalar, jnp.equal),
    (aten.ne.Tensor, jnp.not_equal),
    (aten.ne.Scalar, jnp.not_equal),
    (aten.lt.Tensor, jnp.less),
    (aten.lt.Scalar, jnp.less),
    (aten.le.Tensor, jnp.less_equal),
    (aten.le.Scalar, jnp.less_equal),
    (aten.gt.Tensor, jnp.greater),
    (aten.gt.Scalar, jnp.greater),
    (aten.ge.Tensor, jnp.greater_equal),
    (aten.ge.Scalar, jnp.greater_equal),
    (aten.logical_not.default, jnp.logical_not),  # NaN is true
    (aten.logical_and.default, jnp.logical_and),
    (aten.logical_or.default, jnp.logical_or),
    (aten.logical_xor.default, jnp.logical_xor),
    (aten.isnan.default, jnp.isnan),
    (aten.isinf.default, jnp.isinf),
    (aten.isfinite.default, jnp.isfinite),
    (aten.signbit.default, jnp.signbit),
)
