"""Sampling of volumes at the points of a grid. (Of images: torch rewrites that.)"""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _interpolates(input, grid, interpolation_mode, padding_mode, align_corners) -> Reason | None:
    if interpolation_mode not in (_BILINEAR, _NEAREST):
        return ArgumentForm("aten.grid_sampler_3d", "bicubic, which eager refuses")
    return None


def _places(x: jax.Array, size: int, padding_mode: int, align_corners: bool) -> jax.Array:
    """Turn coordinates, -1 to 1 from edge to edge, into places 0 to size - 1."""
    x = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if padding_mode == _ZEROS:
        return x
    if padding_mode == _REFLECTION:
        x = _mirrored(x, 0, size - 1) if align_corners else _mirrored(x, -0.5, size - 0.5)
    return jnp.clip(x, 0, size - 1)


def _mirrored(x: jax.Array, low: float, high: float) -> jax.Array:
    """Fold the line at low and high, back and forth."""
    span = high - low
    if span == 0:
        return jnp.zeros_like(x)
    away = jnp.abs(x - low)
    rest = jax.lax.rem(away, jnp.full_like(away, span))
    even = jnp.floor(away / span) % 2 == 0
    return jnp.where(even, rest, span - rest) + low


@lowers(aten.grid_sampler_3d.default, when=_interpolates)
def grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners):
    x, sizes = wide(input), input.shape[2:]
    # The grid names the last dimension first.
    places = [
        _places(wide(grid[..., 2 - d]), size, padding_mode, align_corners)
        for d, size in enumerate(sizes)
    ]
    if interpolation_mode == _NEAREST:
        return _values(x, [jnp.round(p) for p in places]).astype(input.dtype)
    total = None
    for corner in product((0, 1), repeat=3):
        points = [jnp.floor(p) + step for p, step in zip(places, corner, strict=True)]
        weight = jnp.ones((), x.dtype)
        for point, place in zip(points, places, strict=True):
            weight = weight * (1 - jnp.abs(place - point))
        term = _values(x, points) * weight[:, None]
        total = term if total is None else total + term
    assert total is not None
    return total.astype(input.dtype)


def _values(x: jax.Array, points: list[jax.Array]) -> jax.Array:
    """Return x at whole-numbered points, as [batch, channels, points...]; 0 outside."""
    flat, inside = jnp.zeros((), jnp.int64), True
    for point, size in zip(points, x.shape[2:], strict=True):
        inside = inside & (point >= 0) & (point <= size - 1)
        flat = flat * size + jnp.clip(point, 0, size - 1).astype(jnp.int64)
    flat = jnp.where(inside, flat, 0)
    rows = x.reshape(*x.shape[:2], -1)
    taken = jnp.take_along_axis(rows, flat.reshape(flat.shape[0], 1, -1), -1, mode="clip")
    return jnp.where(inside[:, None], taken.reshape(*x.shape[:2], *flat.shape[1:]), 0)
