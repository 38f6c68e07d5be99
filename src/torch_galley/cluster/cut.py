"""Which supported vertices go together: several ways, of which the cheapest border is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch_galley.cluster.contract import UNLIMITED, Limits, contract
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
                problem.dag, problem.supported, order=name, weights=weights, limits=problem.limits
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
            found += [_joined(problem, clusters, rates) for clusters in contracted]
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


def _joined(problem: Problem, clusters: Sequence[Sequence[int]], rates: Rates) -> list[list[int]]:
    """Join clusters by level: the same program over the graph whose vertices are the clusters."""
    count = len(problem.dag.names)
    groups = [list(cluster) for cluster in clusters]
    groups += [[v] for v in range(count) if not problem.supported[v]]
    owner = [0] * count
    for number, group in enumerate(groups):
        for vertex in group:
            owner[vertex] = number
    edges = {
        (owner[a], owner[b])
        for a, targets in enumerate(problem.dag.successors)
        for b in targets
        if owner[a] != owner[b]
    }
    order = topological_order(len(groups), edges, [group[0] for group in groups])
    place = {number: rank for rank, number in enumerate(order)}
    dag = Dag.of([str(number) for number in order], {(place[a], place[b]) for a, b in edges})
    tensors = []
    for tensor in problem.tensors:
        if tensor.maker is not None:
            home = place[owner[tensor.maker]]
            readers = {place[owner[reader]] for reader in tensor.readers} - {home}
            tensors.append(Tensor(home, tuple(readers), tensor.nbytes, tensor.result))
    first = [groups[number][0] for number in order]
    limits = problem.limits
    scopes = (
        [next((s for v in groups[n] if (s := limits.scopes[v]) is not None), None) for n in order]
        if limits.scopes
        else ()
    )
    inner = Limits([limits.devices[v] for v in first] if limits.devices else (), scopes)
    supported = [problem.supported[v] for v in first]
    joined = by_level(dag, supported, tensors, inner, rates)
    return sorted(sorted(v for n in part for v in groups[order[n]]) for part in joined)
