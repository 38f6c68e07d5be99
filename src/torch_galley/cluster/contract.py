"""Greedy contraction of supported vertices along dependencies, never making a cycle.

The walk is that of TensorFlow's MarkForCompilationPass (tensorflow/compiler/jit): vertices from
last to first, each tried against its successors. Legality and the new topological order come
from one search, bounded by the ranks between the two ends: the Pearce-Kelly reorder (Pearce and
Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006), specialised to
merging two vertices.

Note [One walk is enough]. When a vertex is done, every path from its cluster to a supported
successor left outside has a native vertex on it, and such a path never goes away. So successors
that come with a merged cluster need not be tried again, and a second walk would change nothing.
Only a search that ran out of budget can leave a merge undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_galley.cluster.dag import Dag

SEARCH_BUDGET = 256
"""Vertices one direction of a legality test may visit. Running out means "don't merge", which is
always legal; it keeps long-range edges over a large graph from making the walk quadratic."""


class _Quotient:
    """The graph in which each cluster is one vertex, with ranks that respect every edge."""

    def __init__(self, dag: Dag, budget: int):
        count = len(dag.names)
        self.budget = budget
        self.successors = [set(s) for s in dag.successors]
        self.predecessors = [set(p) for p in dag.predecessors]
        self.rank = list(range(count))
        self.at = list(range(count))
        """The vertex of each rank; -1 where a merge has freed one."""
        self.parent = list(range(count))

    def find(self, vertex: int) -> int:
        while self.parent[vertex] != vertex:
            self.parent[vertex] = self.parent[self.parent[vertex]]
            vertex = self.parent[vertex]
        return vertex

    def _within(self, vertices: set[int], low: int, high: int) -> list[int]:
        """Return those of `vertices` that have low < rank < high, by whichever way is shorter."""
        if high - low <= len(vertices):
            return [w for w in self.at[low + 1 : high] if w in vertices]
        return [w for w in vertices if low < self.rank[w] < high]

    def _search(
        self, start: int, stop: int, step: list[set[int]], low: int, high: int
    ) -> set[int] | None:
        """Return what `step` reaches from `start` inside the window, the edge to `stop` aside.

        None if it reaches `stop` by more than that edge, or if there is too much to look at.
        """
        stack = self._within(step[start], low, high)
        seen = set(stack)
        while stack:
            if len(seen) > self.budget:
                return None
            around = step[stack.pop()]
            if stop in around:
                return None
            fresh = [w for w in self._within(around, low, high) if w not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return seen

    def try_merge(self, u: int, v: int) -> int | None:
        """Merge along u -> v and return the merged vertex; None if a second path may join them."""
        low, high = self.rank[u], self.rank[v]
        # From the end with fewer edges a second path shows sooner.
        sides = (
            [True, False] if len(self.successors[u]) <= len(self.predecessors[v]) else [False, True]
        )
        found: dict[bool, list[int]] = {}
        for forward in sides:
            start, stop = (u, v) if forward else (v, u)
            step = self.successors if forward else self.predecessors
            reached = self._search(start, stop, step, low, high)
            if reached is None:
                return None
            if not reached:  # nothing stands at this side of `stop`: its place will do
                return self._settle(u, v, [], [], [high if forward else low])
            found[forward] = sorted(reached, key=self.rank.__getitem__)
        before, after = found[False], found[True]
        slots = sorted([self.rank[w] for w in before + after] + [high])
        return self._settle(u, v, before, after, slots)

    def _settle(self, u: int, v: int, before: list[int], after: list[int], slots: list[int]) -> int:
        """Merge u and v; deal `slots` to what v needs, the merged vertex, and what u feeds."""
        self.at[self.rank[u]] = self.at[self.rank[v]] = -1
        merged = self._fold(u, v)
        for vertex, rank in zip([*before, merged, *after], slots, strict=True):
            self.rank[vertex] = rank
            self.at[rank] = vertex
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


def contract(dag: Dag, supported: Sequence[bool], budget: int = SEARCH_BUDGET) -> list[list[int]]:
    """Return the clusters: lists of ascending vertices, in the order of their first vertex.

    Every supported vertex is in exactly one list, clusters of one included. Each list is weakly
    connected, and shrinking every list to a point leaves no cycle.

    Example:
        >>> dag = Dag.of("abcd", [(0, 1), (1, 2), (0, 2), (2, 3)])
        >>> contract(dag, [True, False, True, True])
        [[0], [2, 3]]
    """
    quotient = _Quotient(dag, budget)
    # Later vertices first, so that children are final before their parents are tried.
    for vertex in range(len(dag.names) - 1, -1, -1):
        if supported[vertex]:
            _grow(quotient, vertex, supported)
    clusters: dict[int, list[int]] = {}
    for vertex in range(len(dag.names)):
        if supported[vertex]:
            clusters.setdefault(quotient.find(vertex), []).append(vertex)
    return sorted(clusters.values())


def _grow(quotient: _Quotient, vertex: int, supported: Sequence[bool]) -> None:
    """Merge `vertex`, not in any cluster yet, with every successor it may be merged with."""
    # A native vertex is never folded, so its own entry in `supported` is the right one.
    targets = [v for v in quotient.successors[vertex] if supported[v]]
    current = vertex
    # Nearest first, so that what lies between two vertices has had its chance to join. A merge
    # moves no rank above its target's, so the order stays right.
    for target in sorted(targets, key=quotient.rank.__getitem__):
        merged = quotient.try_merge(current, target)
        if merged is not None:
            current = merged
