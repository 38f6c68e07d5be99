"""Places for the boxes of a layered drawing: wires go down, cross little, and are short.

The method of Sugiyama, Tagawa and Toda (1981): a layer for each box, points for wires that pass a
layer, an order in each layer by the mean place of neighbours, then coordinates near that mean.
Everything is a function of the order in which boxes come, so equal graphs look equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 34
"""Between boxes of a layer."""
LANE = 18
"""Between layers besides what wires' labels need."""
_SWEEPS = 12


@dataclass(frozen=True)
class Layout:
    """A drawing."""

    centers: list[tuple[float, float]]
    """For each box, its middle."""
    routes: list[list[tuple[float, float]]]
    """For each wire, the points on which it passes layers, ends left out."""
    width: float
    height: float


def layout(sizes: Sequence[tuple[float, float]], wires: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes.

    Args:
        sizes: width and height of each box, in an order in which every wire goes forward.
        wires: pairs of boxes.

    Example:
        >>> layout([(10, 10), (10, 10)], [(0, 1)]).centers
        [(5.0, 5.0), (5.0, 91.0)]
    """
    layer = _layers(len(sizes), wires)
    widths = [w for w, _ in sizes]
    at = list(layer)
    links: list[tuple[int, int]] = []
    chains: list[list[int]] = []
    for source, target in wires:
        chain = [source]
        for between in range(layer[source] + 1, layer[target]):
            widths.append(6.0)
            at.append(between)
            links.append((chain[-1], len(at) - 1))
            chain.append(len(at) - 1)
        links.append((chain[-1], target))
        chains.append(chain[1:])
    rows: list[list[int]] = [[] for _ in range(max(at, default=-1) + 1)]
    for item, row in enumerate(at):
        rows[row].append(item)
    above: list[list[int]] = [[] for _ in at]
    below: list[list[int]] = [[] for _ in at]
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    x = [0.0] * len(at)
    for row in rows:
        _spread(row, [0.0] * len(row), widths, x)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else reversed(rows):
            wanted = {
                i: sum(x[j] for j in near[i]) / len(near[i]) if near[i] else x[i] for i in row
            }
            if sweep < _SWEEPS - 4:  # then only move, so that the last sweeps agree
                row.sort(key=lambda i: (wanted[i], i))
            _spread(row, [wanted[i] for i in row], widths, x)
    left = min((x[i] - widths[i] / 2 for i in range(len(at))), default=0.0)
    tops, y = [], 0.0
    for number, row in enumerate(rows):
        tall = max((sizes[i][1] for i in row if i < len(sizes)), default=0.0)
        tops.append((y, tall))
        fan = max((len(below[i]) for i in row), default=0)
        more = min(60, 8 * fan) if number + 1 < len(rows) else 0
        y += tall + (LANE + 50 + more if number + 1 < len(rows) else 0)
    centers = [
        (x[i] - left, tops[layer[i]][0] + sizes[i][1] / 2 + (tops[layer[i]][1] - sizes[i][1]) / 2)
        for i in range(len(sizes))
    ]
    routes = [
        [(x[i] - left, tops[at[i]][0] + side * tops[at[i]][1]) for i in chain for side in (0, 1)]
        for chain in chains
    ]
    wide = max((x[i] + widths[i] / 2 - left for i in range(len(at))), default=0.0)
    return Layout(centers, routes, wide, y)


def _layers(count: int, wires: Sequence[tuple[int, int]]) -> list[int]:
    """Return a layer for each box: after all that it reads, and near what reads it."""
    layer = [0] * count
    into: list[list[int]] = [[] for _ in range(count)]
    out: list[list[int]] = [[] for _ in range(count)]
    for source, target in wires:
        into[target].append(source)
        out[source].append(target)
    for box in range(count):
        layer[box] = max((layer[s] + 1 for s in into[box]), default=0)
    for box in reversed(range(count)):
        if out[box] and not into[box]:
            layer[box] = min(layer[t] for t in out[box]) - 1
    return layer


def _spread(
    row: Sequence[int], wanted: Sequence[float], widths: Sequence[float], x: list[float]
) -> None:
    """Place a layer's items in their order, as near to where they are wanted as gaps allow.

    That is a regression under the constraint that numbers rise; neighbours that would overlap are
    pooled and share the mean.
    """
    offsets, total = [], 0.0
    for n, item in enumerate(row):
        if n:
            before = row[n - 1]
            total += (widths[before] + widths[item]) / 2 + GAP
        offsets.append(total)
    pools: list[tuple[float, int]] = []  # mean, count
    for want, offset in zip(wanted, offsets, strict=True):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    places = [mean for mean, count in pools for _ in range(count)]
    for item, place, offset in zip(row, places, offsets, strict=True):
        x[item] = place + offset
