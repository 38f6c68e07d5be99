"""Greedy contraction of supported vertices along dependencies, never making a cycle.

The walk is that of TensorFlow's MarkForCompilationPass (tensorflow/compiler/jit): clusters by
descending rank, each tried against its successors. Legality and the new topological order come
from one search, bounded by the ranks between the two ends: the Pearce-Kelly reorder (Pearce and
Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006), specialised to
merging two vertices.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_galley.cluster.dag import Dag

SEARCH_BUDGET = 256
"""Vertices one legality test may visit. Running out means "don't merge", which is always legal;
it keeps a hub with tens of thousands of consumers from making the walk quadratic."""


class _Quotient:
    """The graph in which each cluster is one vertex, with ranks that respect every edge."""

    def __init__(self, dag: Dag):
        count = len(dag.names)
        self.successors = [set(s) for s in dag.successors]
        self.predecessors = [set(p) for p in dag.predecessors]
        self.rank = list(range(count))
        self.parent = list(range(count))

    def find(self, vertex: int) -> int:
        while self.parent[vertex] != vertex:
            self.parent[vertex] = self.parent[self.parent[vertex]]
            vertex = self.parent[vertex]
        return vertex

    def _window(
        self, start: set[int], step: list[set[int]], low: int, high: int
    ) -> set[int] | None:
        """Return what `step` reaches from `start` with low < rank < high, None if too much."""
        seen = {v for v in start if low < self.rank[v] < high}
        stack = list(seen)
        while stack:
            if len(seen) > SEARCH_BUDGET:
                return None
            for v in step[stack.pop()]:
                if v not in seen and low < self.rank[v] < high:
                    seen.add(v)
                    stack.append(v)
        return seen

    def try_merge(self, u: int, v: int) -> int | None:
        """Merge along u -> v and return the merged vertex; None if a second path joins them."""
        low, high = self.rank[u], self.rank[v]
        after = self._window(self.successors[u] - {v}, self.successors, low, high)
        if after is None or any(v in self.successors[w] for w in after):
            return None
        before: set[int] | None = set()
        if after:
            before = self._window(self.predecessors[v] - {u}, self.predecessors, low, high)
        if before is None:
            return None
        # Re-deal the ranks of the window: what v needs, then the merged vertex, then what u feeds.
        # One of the two ranks falls free; without `after` the merged vertex simply takes v's.
        by_rank = self.rank.__getitem__
        slots = sorted([*map(by_rank, before), *map(by_rank, after), high])
        merged = self._fold(u, v)
        moved = [*sorted(before, key=by_rank), merged, *sorted(after, key=by_rank)]
        for vertex, rank in zip(moved, slots, strict=True):
            self.rank[vertex] = rank
        return merged

    def _fold(self, u: int, v: int) -> int:
        """Make one vertex of two, moving the edges of the one that has fewer."""
        degree = [len(self.successors[w]) + len(self.predecessors[w]) for w in (u, v)]
        keep, gone = (u, v) if degree[0] >= degree[1] else (v, u)
        self.parent[gone] = keep
        for forward, backward in (
            (self.successors, self.predecessors),
            (self.predecessors, self.successors),
        ):
            for w in forward[gone]:
                backward[w].discard(gone)
                if w != keep:
                    backward[w].add(keep)
                    forward[keep].add(w)
            forward[gone] = set()
            forward[keep].discard(gone)
        return keep


def contract(dag: Dag, supported: Sequence[bool]) -> list[list[int]]:
    """Return the clusters: lists of ascending vertices, in the order of their first vertex.

    Every supported vertex is in exactly one list, clusters of one included. Each list is weakly
    connected, and shrinking every list to a point leaves no cycle.

    Example:
        >>> dag = Dag.of("abcd", [(0, 1), (1, 2), (0, 2), (2, 3)])
        >>> contract(dag, [True, False, True, True])
        [[0], [2, 3]]
    """
    quotient = _Quotient(dag)
    # Later vertices first, so that children are final before their parents are tried; nearest
    # successors first, so that what lies between two vertices has had its chance to join.
    for vertex in range(len(dag.names) - 1, -1, -1):
        if supported[vertex]:
            _grow(quotient, vertex, supported)
    clusters: dict[int, list[int]] = {}
    for vertex in range(len(dag.names)):
        if supported[vertex]:
            clusters.setdefault(quotient.find(vertex), []).append(vertex)
    return sorted(clusters.values())


def _grow(quotient: _Quotient, vertex: int, supported: Sequence[bool]) -> None:
    """Merge `vertex` with every successor it may be merged with, once around."""
    current = quotient.find(vertex)
    tried: set[int] = set()
    while True:
        # A native vertex is never folded, so its own entry in `supported` is the right one.
        untried = [v for v in quotient.successors[current] if v not in tried and supported[v]]
        if not untried:
            return
        target = min(untried, key=quotient.rank.__getitem__)
        tried.add(target)
        merged = quotient.try_merge(current, target)
        if merged is not None:
            current = merged
