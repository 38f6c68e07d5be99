"""Levels: how often XLA has to hand over to a native operation before a vertex can run.

A level is a number for each vertex that never falls along an edge, and rises where a supported
vertex feeds a native one. Supported vertices of one level can share a cluster: native operations
of level 0, the cluster of level 0, native operations of level 1, ... is an order in which
everything runs. So as many clusters as levels are enough; and on a path with the highest level of
all, its supported vertices before and after each hand-over need clusters of their own, so that
fewer are not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from torch_galley.cluster.contract import Limits
from torch_galley.cluster.dag import Dag
from torch_galley.cluster.price import Tensor, crossing
from torch_galley.cluster.rates import Rates


def levels(dag: Dag, supported: Sequence[bool]) -> list[int]:
    """Return the lowest level of each vertex.

    Example:
        >>> levels(Dag.of("aNb", [(0, 1), (1, 2), (0, 2)]), [True, False, True])
        [0, 1, 1]
    """
    level = [0] * len(dag.names)
    for vertex, targets in enumerate(dag.successors):
        for target in targets:
            step = supported[vertex] and not supported[target]
            level[target] = max(level[target], level[vertex] + step)
    return level


def unavoidable(dag: Dag, supported: Sequence[bool]) -> int:
    """Return the fewest clusters that all supported vertices can share: a lower bound.

    Example:
        >>> unavoidable(Dag.of("aNb", [(0, 1), (1, 2)]), [True, False, True])
        2
    """
    return len({n for n, ours in zip(levels(dag, supported), supported, strict=True) if ours})


def by_level(
    dag: Dag, supported: Sequence[bool], tensors: Sequence[Tensor], limits: Limits, rates: Rates
) -> list[list[int]]:
    """Return clusters that need not be connected: one a level, levels chosen for a cheap border.

    The sum over tensors of their cost times the levels that they cross is least. That is a linear
    program whose matrix is totally unimodular (it is the retiming of Leiserson and Saxe, 1991),
    so its solution is whole numbers.
    """
    return grouped(_retimed(dag, supported, tensors, limits, rates), supported, limits)


def grouped(level: Sequence[int], supported: Sequence[bool], limits: Limits) -> list[list[int]]:
    """Return the clusters of supported vertices of equal level, parted as the limits ask."""
    groups: dict[Hashable, list[int]] = {}
    for vertex, at in enumerate(level):
        if supported[vertex]:
            groups.setdefault((at, _kind(limits, vertex)), []).append(vertex)
    largest = limits.largest or len(supported)
    parts = [g[at : at + largest] for g in groups.values() for at in range(0, len(g), largest)]
    return sorted(parts)


def _kind(limits: Limits, vertex: int) -> Hashable:
    """Return what vertices of one level must have in common to share a cluster."""
    kinds = (limits.devices, limits.scopes)
    return tuple(kind[vertex] for kind in kinds if kind)


def _retimed(
    dag: Dag, supported: Sequence[bool], tensors: Sequence[Tensor], limits: Limits, rates: Rates
) -> list[int]:
    # jax brings scipy along; it is heavy, and only this needs it.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    count = len(dag.names)
    costly = [
        t
        for t in tensors
        if t.maker is not None
        and t.readers
        and (supported[t.maker] or any(supported[r] for r in t.readers))
    ]
    # Unknowns: a level for each vertex, and for each tensor the highest level of a reader.
    rows = [
        (source, target, _step(supported, limits, source, target))
        for source, targets in enumerate(dag.successors)
        for target in targets
    ]
    rows += [(r, count + n, 0) for n, tensor in enumerate(costly) for r in tensor.readers]
    if not rows:
        return levels(dag, supported)
    cost = np.zeros(count + len(costly))
    cost[:count] = 1e-6 * rates.tensor  # of equals the lowest, which are the fewest
    for number, tensor in enumerate(costly):
        assert tensor.maker is not None
        cost[count + number] += crossing(tensor, rates)
        cost[tensor.maker] -= crossing(tensor, rates)
    place = np.arange(len(rows))
    ones = np.ones(len(rows))
    lower, upper, step = (np.array(column) for column in zip(*rows, strict=True))
    matrix = coo_array(
        (np.concatenate([ones, -ones]), (np.tile(place, 2), np.concatenate([lower, upper]))),
        shape=(len(rows), len(cost)),
    ).tocsr()
    most = max(levels(dag, supported), default=0) if not (limits.devices or limits.scopes) else None
    solved = linprog(cost / cost.max(), matrix, -step, bounds=(0, most), method="highs")
    if not solved.success:  # never seen; the lowest levels are always right
        return levels(dag, supported)
    return [round(level) for level in solved.x[:count]]


def _step(supported: Sequence[bool], limits: Limits, source: int, target: int) -> int:
    """Return by how much the level has to rise along an edge."""
    if not supported[source]:
        return 0
    return int(not supported[target] or _kind(limits, source) != _kind(limits, target))
