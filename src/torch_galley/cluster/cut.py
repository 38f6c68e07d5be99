"""Which supported vertices go together: several ways, of which the cheapest border is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch_galley.cluster.contract import SEARCH_BUDGET, UNLIMITED, Limits, contract
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.cluster.level import by_level, grouped, levels
from torch_galley.cluster.price import Tensor, price
from torch_galley.cluster.rates import Rates

WHOLE = 4096
"""Up to so many vertices the linear program sees the graph itself, beyond only its clusters."""

BOTH = 20_000
"""Up to so many vertices order "auto" tries both; beyond, the heaviest tensors first takes long."""


@dataclass(frozen=True)
class Problem:
    """A graph to be cut, nothing of torch."""

    dag: Dag
    supported: Sequence[bool]
    tensors: Sequence[Tensor]
    limits: Limits = UNLIMITED
    budget: int = SEARCH_BUDGET
    """Vertices that the search for one merge may visit."""


def cut(
    problem: Problem, order: str = "auto", horizontal: bool = False, rates: Rates | None = None
) -> list[list[int]]:
    """Return the clusters, lists of ascending vertices; each supported vertex is in one.

    Args:
        problem: the graph.
        order: of contraction, see there; "auto" tries both and keeps the cheaper border.
        horizontal: also allow clusters that no edge holds together.
        rates: what a border costs.

    Example:
        >>> dag = Dag.of("ab", [])
        >>> problem = Problem(dag, [True, True], [])
        >>> cut(problem), cut(problem, horizontal=True)
        ([[0], [1]], [[0, 1]])
    """
    rates = rates or Rates()
    found = []
    both = ("topo", "bytes") if len(problem.dag.names) <= BOTH else ("topo",)
    for name in both if order == "auto" else (order,):
        weights = edge_weights(problem.tensors) if name == "bytes" else None
        found.append(
            contract(
                problem.dag,
                problem.supported,
                order=name,
                weights=weights,
                limits=problem.limits,
                budget=problem.budget,
            )
        )
        if len(found[0]) == 1:  # nothing is left to choose
            return found[0]
    if horizontal:
        limits, contracted = problem.limits, list(found)
        if len(problem.dag.names) <= WHOLE:
            found.append(by_level(problem.dag, problem.supported, problem.tensors, limits, rates))
        if not (limits.devices or limits.scopes):
            lowest = levels(problem.dag, problem.supported)
            found.append(grouped(lowest, problem.supported, limits))
        if not limits.largest:  # joining counts clusters, not what is in them
            found += [_joined_by_level(problem, clusters, rates) for clusters in contracted]
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda clusters: price(problem.tensors, clusters, rates=rates).seconds)


def edge_weights(tensors: Sequence[Tensor]) -> dict[tuple[int, int], int]:
    """Return the bytes that each edge carries."""
    weights: dict[tuple[int, int], int] = defaultdict(int)
    for tensor in tensors:
        if tensor.maker is not None:
            for reader in tensor.readers:
                weights[tensor.maker, reader] += tensor.nbytes
    return weights


def joined(problem: Problem, groups: Sequence[Collection[int]]) -> tuple[Problem, list[list[int]]]:
    """Return the graph in which each group is one vertex, and what its vertices stand for.

    A group counts as one for the largest cluster.
    """
    count = len(problem.dag.names)
    parts = [sorted(group) for group in groups]
    grouped = {v for group in groups for v in group}
    parts += [[v] for v in range(count) if v not in grouped]
    owner = [0] * count
    for number, part in enumerate(parts):
        for vertex in part:
            owner[vertex] = number
    edges = {
        (owner[a], owner[b])
        for a, targets in enumerate(problem.dag.successors)
        for b in targets
        if owner[a] != owner[b]
    }
    order = topological_order(len(parts), edges, [part[0] for part in parts])
    place = {number: rank for rank, number in enumerate(order)}
    names = [problem.dag.names[parts[number][0]] for number in order]
    dag = Dag.of(names, {(place[a], place[b]) for a, b in edges})
    tensors = []
    for tensor in problem.tensors:
        home = None if tensor.maker is None else place[owner[tensor.maker]]
        readers = {place[owner[reader]] for reader in tensor.readers} - {home}
        tensors.append(Tensor(home, tuple(sorted(readers)), tensor.nbytes, tensor.result))
    first = [parts[number][0] for number in order]
    limits = problem.limits
    scopes = (
        [next((s for v in parts[n] if (s := limits.scopes[v]) is not None), None) for n in order]
        if limits.scopes
        else ()
    )
    devices = [limits.devices[v] for v in first] if limits.devices else ()
    inner = Limits(devices, scopes, limits.largest)
    supported = [problem.supported[v] for v in first]
    return Problem(dag, supported, tensors, inner, problem.budget), [parts[n] for n in order]


def spread(clusters: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return clusters of a joined graph as clusters of the graph itself."""
    return sorted(sorted(v for n in cluster for v in parts[n]) for cluster in clusters)


def _joined_by_level(
    problem: Problem, clusters: Sequence[Sequence[int]], rates: Rates
) -> list[list[int]]:
    """Join clusters by level: the same program over the graph whose vertices are the clusters."""
    inner, parts = joined(problem, clusters)
    found = by_level(inner.dag, inner.supported, inner.tensors, inner.limits, rates)
    return spread(found, parts)
