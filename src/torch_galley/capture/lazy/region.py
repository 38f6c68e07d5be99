"""Which part of a storage a tensor shows, as slices and permutations of the storage's value.

A strided view of dense memory is nearly always a box: some dimensions split, some sliced, some
dropped, then reordered and broadcast. `region` finds that form, so that reading a view is a few
view operators and writing through one a few slice_scatters, all of which XLA understands. What
is no box (a diagonal, overlapping windows) falls back to as_strided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """Elements start, start + step, ... (stop excluded) of one dimension."""

    dim: int
    start: int
    stop: int
    step: int


@dataclass(frozen=True)
class Region:
    """A box of a dense value.

    To read it: permute(to_physical), reshape(split), the slices, reshape(kept), permute(order),
    reshape(spread), expand(sizes). Writing goes the other way.
    """

    to_physical: Sizes
    """The permutation of the value's dimensions that lists them as they lie in memory."""
    split: Sizes
    """The sizes in memory order, cut where the view needs a border."""
    slices: tuple[Slice, ...]
    kept: Sizes
    """The sizes of the dimensions that the view shows, in memory order."""
    order: Sizes
    """The permutation into the view's order."""
    spread: Sizes
    """The view's sizes with 1 for broadcast dimensions."""
    sizes: Sizes
    """The view's sizes."""


def extent(sizes: Sizes, strides: Sizes, offset: int = 0) -> int:
    """Return how many elements of storage a view reaches.

    Example:
        >>> extent((2, 3), (3, 1), 1)
        7
    """
    if 0 in sizes:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def contiguous(sizes: Sizes) -> Sizes:
    """Return the strides of dense memory in the order of the dimensions.

    Example:
        >>> contiguous((2, 3, 4))
        (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(sizes):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def memory_order(sizes: Sizes, strides: Sizes) -> Sizes:
    """Return the permutation that lists dimensions from the farthest apart to the nearest."""
    return tuple(sorted(range(len(sizes)), key=lambda i: (-strides[i], sizes[i] != 1)))


def is_dense(sizes: Sizes, strides: Sizes) -> bool:
    """Whether a view from offset 0 covers its extent with no gap and no overlap."""
    step = 1
    for i in reversed(memory_order(sizes, strides)):
        if sizes[i] != 1:
            if strides[i] != step:
                return False
            step *= sizes[i]
    return True


def same_layout(sizes: Sizes, a: Sizes, b: Sizes) -> bool:
    """Whether two strides mean the same memory; those of dimensions of size 1 mean nothing."""
    return a == b or all(n == 1 or x == y for n, x, y in zip(sizes, a, b, strict=True))


@lru_cache(maxsize=4096)
def region(
    base_sizes: Sizes, base_strides: Sizes, sizes: Sizes, strides: Sizes, offset: int
) -> Region | None:
    """Return the box of a dense base that a view shows, or None if it is no box."""
    to_physical = memory_order(base_sizes, base_strides)
    physical = tuple(base_sizes[i] for i in to_physical)
    found = _box(_split(physical, sizes, strides), sizes, strides, offset)
    if found is None and is_dense(sizes, strides):
        found = _chunk(math.prod(base_sizes), sizes, strides, offset)
    if found is None:
        return None
    split, slices, kept, order = found
    spread = tuple(1 if s == 0 else n for n, s in zip(sizes, strides, strict=True))
    return Region(to_physical, split, slices, kept, order, spread, sizes)


_Found = tuple[Sizes, tuple[Slice, ...], Sizes, Sizes]


def _split(physical: Sizes, sizes: Sizes, strides: Sizes) -> Sizes:
    """Cut dense dimensions wherever one of the view's strides lies inside."""
    wanted = sorted({s for n, s in zip(sizes, strides, strict=True) if n > 1 and s > 0})
    split: list[int] = []
    for n, step in zip(physical, contiguous(physical), strict=True):
        cuts = [step]
        for s in wanted:
            if cuts[-1] < s < n * step and s % cuts[-1] == 0 and (n * step) % s == 0:
                cuts.append(s)
        borders = [*cuts, n * step]
        split += [high // low for low, high in zip(cuts, borders[1:], strict=True)][::-1]
    return tuple(split)


def _box(split: Sizes, sizes: Sizes, strides: Sizes, offset: int) -> _Found | None:
    steps = contiguous(split)
    starts, rest = [], offset
    for step in steps:
        starts.append(rest // step)
        rest %= step
    shown: dict[int, int] = {}  # dimension of the base -> dimension of the view
    slices: list[Slice] = []
    for i, (n, s) in enumerate(zip(sizes, strides, strict=True)):
        if n == 1 or s == 0:
            continue
        dim = next((d for d, step in enumerate(steps) if step <= s and split[d] > 1), None)
        if dim is None or dim in shown or s % steps[dim]:
            return None
        step = s // steps[dim]
        stop = starts[dim] + (n - 1) * step + 1
        if stop > split[dim]:
            return None
        shown[dim] = i
        if n != split[dim]:
            slices.append(Slice(dim, starts[dim], stop, step))
    for dim, n in enumerate(split):
        if dim not in shown and n > 1:
            if starts[dim] >= n:
                return None
            slices.append(Slice(dim, starts[dim], starts[dim] + 1, 1))
    in_memory = [shown[dim] for dim in sorted(shown)]
    order = tuple(in_memory.index(i) for i in sorted(in_memory))
    return split, tuple(slices), tuple(sizes[i] for i in in_memory), order


def _chunk(count: int, sizes: Sizes, strides: Sizes, offset: int) -> _Found:
    """A dense view that is one run of memory, whatever the base's dimensions are."""
    in_memory = [i for i in memory_order(sizes, strides) if sizes[i] != 1]
    total = math.prod(sizes)
    slices = () if total == count else (Slice(0, offset, offset + total, 1),)
    order = tuple(in_memory.index(i) for i in sorted(in_memory))
    return (count,), slices, tuple(sizes[i] for i in in_memory), order
