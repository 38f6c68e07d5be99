"""Sampling of images and volumes at the points of a grid, and its gradients.

A point lies between a few elements along each dimension, its taps: the result is a sum over all
combinations of taps, weights multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import torch

from torch_galley.core.reasons import ArgumentForm, Reason
from torch_galley.ops.aten import cubic
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _interpolates(input, grid, interpolation_mode, padding_mode, align_corners) -> Reason | None:
    if interpolation_mode not in (_BILINEAR, _NEAREST):
        return ArgumentForm("aten.grid_sampler_3d", "bicubic, which eager refuses")
    return None


def _interpolates_backward(grad_output, *forward) -> Reason | None:
    return _interpolates(*forward[:5])


@dataclass(frozen=True)
class _Tap:
    """What each point of the grid takes from one element along one dimension."""

    place: jax.Array
    """A whole number, which may lie outside."""
    weight: jax.Array
    slope: jax.Array
    """The weight's derivative by the grid's coordinate."""


def _taps(x: jax.Array, size: int, mode: int, padding_mode: int, align_corners: bool) -> list[_Tap]:
    """Return the taps for coordinates that go from -1 to 1 from edge to edge."""
    step = (size - 1) / 2 if align_corners else size / 2
    x = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if mode == _BICUBIC:
        first, part = jnp.floor(x) - 1, x - jnp.floor(x)
        taps = []
        for number, side in enumerate((1, 1, -1, -1)):
            weight, slope = _cubic(jnp.abs(part + 1 - number), outer=number in (0, 3))
            place, _ = _padded(first + number, size, padding_mode, align_corners)
            taps.append(_Tap(place, weight, side * slope * step))
        return taps
    x, slope = _padded(x, size, padding_mode, align_corners)
    slope = slope * step
    if mode == _NEAREST:
        return [_Tap(jnp.round(x), jnp.ones_like(x), jnp.zeros_like(x))]
    low = jnp.floor(x)
    return [_Tap(low, low + 1 - x, -slope), _Tap(low + 1, x - low, slope)]


def _cubic(x: jax.Array, outer: bool) -> tuple[jax.Array, jax.Array]:
    """Return the weight of what is x away, and its derivative."""
    a = cubic.INTERPOLATING
    if outer:
        return cubic.outer(x, a), a * ((3 * x - 10) * x + 8)
    return cubic.inner(x, a), (3 * (a + 2) * x - 2 * (a + 3)) * x


def _padded(
    x: jax.Array, size: int, padding_mode: int, align_corners: bool
) -> tuple[jax.Array, jax.Array]:
    """Return places as the padding moves them inside, and the derivative of that."""
    slope = jnp.ones_like(x)
    if padding_mode == _ZEROS:
        return x, slope
    if padding_mode == _REFLECTION:
        ends = (0, size - 1) if align_corners else (-0.5, size - 0.5)
        x, slope = _mirrored(x, *ends)
    slope = jnp.where((x <= 0) | (x >= size - 1), 0, slope)
    return jnp.clip(x, 0, size - 1), slope


def _mirrored(x: jax.Array, low: float, high: float) -> tuple[jax.Array, jax.Array]:
    """Fold the line at low and high, back and forth; return the derivative as well."""
    span = high - low
    if span == 0:
        return jnp.zeros_like(x), jnp.zeros_like(x)
    away = jnp.abs(x - low)
    rest = jax.lax.rem(away, jnp.full_like(away, span))
    even = jnp.floor(away / span) % 2 == 0
    slope = jnp.where(even == (x >= low), 1, -1).astype(x.dtype)
    return jnp.where(even, rest, span - rest) + low, slope


@dataclass(frozen=True)
class _Corners:
    """All combinations of taps: arrays of [batch, combinations, points...]."""

    flat: jax.Array
    """Places in the flattened image, 0 for those outside."""
    inside: jax.Array
    weight: jax.Array
    slopes: list[jax.Array]
    """For each dimension, the weight's derivative by its coordinate."""


def _corners(input: jax.Array, grid: jax.Array, *modes) -> _Corners:
    sizes = input.shape[2:]
    # The grid names the last dimension first.
    coordinates = [wide(grid[..., len(sizes) - 1 - dim]) for dim in range(len(sizes))]
    taps = [_taps(x, size, *modes) for x, size in zip(coordinates, sizes, strict=True)]
    flat, inside, weights, slopes = [], [], [], [[] for _ in sizes]
    for corner in product(*taps):
        at, within = jnp.zeros((), jnp.int64), jnp.ones((), bool)
        for dim, (tap, size) in enumerate(zip(corner, sizes, strict=True)):
            within = within & (tap.place >= 0) & (tap.place <= size - 1)
            at = at * size + jnp.clip(tap.place, 0, size - 1).astype(jnp.int64)
            others = math.prod(other.weight for other in corner if other is not tap)
            slopes[dim].append(tap.slope * others)
        flat.append(jnp.where(within, at, 0))
        inside.append(within)
        weights.append(math.prod(tap.weight for tap in corner))
    at, within, weight = (jnp.stack(parts, 1) for parts in (flat, inside, weights))
    return _Corners(at, within, weight, [jnp.stack(parts, 1) for parts in slopes])


def _values(x: jax.Array, corners: _Corners) -> jax.Array:
    """Return x at the corners, as [batch, channels, combinations, points...]; 0 outside."""
    flat = corners.flat.reshape(x.shape[0], 1, math.prod(corners.flat.shape[1:]))
    pixels = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    taken = jnp.take_along_axis(pixels, flat, -1, mode="clip")
    taken = taken.reshape(*x.shape[:2], *corners.flat.shape[1:])
    return jnp.where(corners.inside[:, None], taken, 0)


@lowers(aten.grid_sampler_3d.default, when=_interpolates)
@lowers(aten.grid_sampler_2d.default)
def grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    corners = _corners(input, grid, interpolation_mode, padding_mode, align_corners)
    terms = _values(wide(input), corners) * corners.weight[:, None]
    return terms.sum(2).astype(input.dtype)


@lowers(aten.grid_sampler_3d_backward.default, when=_interpolates_backward)
@lowers(aten.grid_sampler_2d_backward.default)
def grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask
):
    x, grad = wide(input), wide(grad_output)[:, :, None]
    corners = _corners(input, grid, interpolation_mode, padding_mode, align_corners)
    dot = (_values(x, corners) * grad).sum(1)
    slopes = [(dot * slope).sum(1) for slope in corners.slopes]
    points = jnp.stack(slopes[::-1], -1).astype(grid.dtype)
    if not output_mask[0]:
        return None, points
    batch, channels, *sizes = x.shape
    parts = jnp.where(corners.inside[:, None], grad * corners.weight[:, None], 0)
    places = math.prod(corners.flat.shape[1:])
    rows = jnp.arange(batch)[:, None], corners.flat.reshape(batch, places)
    pixels = jnp.zeros((batch, math.prod(sizes), channels), x.dtype)
    pixels = pixels.at[rows].add(jnp.moveaxis(parts.reshape(batch, channels, places), 1, -1))
    return jnp.moveaxis(pixels, -1, 1).reshape(x.shape).astype(input.dtype), points
