"""The graph that clustering works on: integers and edges, nothing of torch.

Vertices are 0..n-1 in a topological order. Built from a captured graph by cluster.partition, or
from a list of named operations by cluster.seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_galley.core.errors import ClusterError


@dataclass(frozen=True)
class Dag:
    """A directed acyclic graph with a name per vertex.

    Example:
        >>> Dag.of(["a", "b", "c"], [(0, 1), (1, 2)]).successors
        ({1}, {2}, set())
    """

    names: tuple[str, ...]
    predecessors: tuple[set[int], ...]
    successors: tuple[set[int], ...]

    @staticmethod
    def of(names: Sequence[str], edges: Iterable[tuple[int, int]]) -> Dag:
        """Build a graph whose edges go from lower to higher vertices.

        Raises:
            ClusterError: an edge that does not (the vertices are not in topological order).
        """
        predecessors: list[set[int]] = [set() for _ in names]
        successors: list[set[int]] = [set() for _ in names]
        for source, target in edges:
            if source >= target:
                raise ClusterError(f"edge {names[source]} -> {names[target]} goes backwards")
            predecessors[target].add(source)
            successors[source].add(target)
        return Dag(tuple(names), tuple(predecessors), tuple(successors))

    def without_edges_from(self, chosen: Sequence[bool]) -> Dag:
        """Return the graph without what leaves some vertices."""
        if not any(chosen):
            return self
        pairs = ((v, target) for v, targets in enumerate(self.successors) for target in targets)
        return Dag.of(self.names, (pair for pair in pairs if not chosen[pair[0]]))


def topological_order(
    count: int, edges: Iterable[tuple[int, int]], priority: Sequence[int]
) -> list[int]:
    """Return 0..count-1 so that every edge goes forward, smallest priority first among the ready.

    A shorter result than `count` means a cycle: the vertices left out lie on one or behind one.
    Kahn's algorithm, O((V+E) log V).
    """
    waiting = [0] * count
    successors: list[list[int]] = [[] for _ in range(count)]
    for source, target in set(edges):
        waiting[target] += 1
        successors[source].append(target)
    ready = [(priority[v], v) for v in range(count) if not waiting[v]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, vertex = heapq.heappop(ready)
        order.append(vertex)
        for target in successors[vertex]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (priority[target], target))
    return order
