"""Contraction of supported vertices along edges, never making a cycle.

Two orders. "topo" is the walk of TensorFlow's MarkForCompilationPass (tensorflow/compiler/jit):
vertices from last to first, each merged with all the successors that it may be merged with. "bytes"
first tries single edges, the heaviest tensors first, then walks.

Every vertex has a label, and labels rise along every edge. So a second path from u to v runs
through labels between theirs. One search settles whether merging them is legal and what has to be
relabelled: that of Pearce and Kelly ("A dynamic topological sort algorithm for directed acyclic
graphs", 2006), from both ends at once. When one end has no more to look at, the merged vertex takes
the label of the other end, and what was seen is put right beyond it.

Note [One walk is enough]. When a vertex is done, every path from its cluster to a supported
successor left outside has a native vertex on it, and such a path never goes away. So successors
that come with a merged cluster need not be tried again, and a second walk would change nothing.
Only a search that ran out of budget can leave a merge undone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from torch_galley.cluster.dag import Dag, topological_order

SEARCH_BUDGET = 256
"""Vertices that the search for one merge may visit. Running out means "don't merge", which is
always legal; it keeps long-range edges over a large graph from making contraction quadratic."""


@dataclass(frozen=True)
class Limits:
    """What keeps supported vertices apart although no cycle would come of merging them."""

    devices: Sequence[Hashable] = ()
    """A device for each vertex; different ones never share a cluster. Empty: all on one."""
    scopes: Sequence[Hashable | None] = ()
    """A scope for each vertex; different ones never share a cluster, None goes with any."""
    largest: int | None = None
    """Most vertices in a cluster."""


UNLIMITED = Limits()


class _Quotient:
    """The graph in which each cluster is one vertex, with labels that rise along every edge."""

    def __init__(self, dag: Dag, supported: Sequence[bool], limits: Limits, budget: int):
        count = len(dag.names)
        self.supported = supported
        self.limits = limits
        self.budget = budget
        self.parent = list(range(count))
        self.successors = [set(s) for s in dag.successors]
        self.predecessors = [set(p) for p in dag.predecessors]
        self.label = [0.0] * count
        self._relabel(range(count))  # vertices are in a topological order
        self.scope = list(limits.scopes) or [None] * count
        self.size = [1] * count
        self.refused: dict[int, set[int]] = {}
        """For each vertex, others that a second path kept it from, so that it isn't looked for
        again: large clusters meet often, and their edges are many."""

    def find(self, vertex: int) -> int:
        parent = self.parent
        while parent[vertex] != vertex:
            parent[vertex] = vertex = parent[parent[vertex]]
        return vertex

    def try_merge(self, u: int, v: int) -> int:
        """Merge along u -> v unless a second path joins them; return what u is part of now."""
        if v in self.refused.get(u, ()) or not self._may_join(u, v):
            return u
        merged = self._merge(u, v)
        if merged is None:
            self.refused.setdefault(u, set()).add(v)
            self.refused.setdefault(v, set()).add(u)
            return u
        return merged

    def _merge(self, u: int, v: int) -> int | None:
        """Merge along u -> v and return the merged vertex; None if a second path may join them.

        The search goes from both ends, always on where fewer edges have to be looked at, until
        one end has nothing left or the two meet.
        """
        label = self.label
        low, high = label[u], label[v]
        successors, predecessors = self.successors, self.predecessors
        forward, backward = [u], [v]  # to be expanded
        below: set[int] = set()  # seen from u
        above: set[int] = set()  # seen from v
        if not successors[u].isdisjoint(predecessors[v]):
            return None
        budget = self.budget
        # What lies beyond the window, for which the moved vertices must leave room.
        ceiling, floor = math.inf, -math.inf
        spent = [len(successors[u]), len(predecessors[v])]
        while True:
            if spent[0] <= spent[1]:
                for w in successors[forward.pop()]:
                    at = label[w]
                    if at > high:
                        if at < ceiling:
                            ceiling = at
                    elif w != v and w not in below:
                        # Asked here, a large cluster need not be looked through to say no.
                        if v in successors[w] or not above.isdisjoint(successors[w]):
                            return None
                        below.add(w)
                        forward.append(w)
                if not forward:
                    return self._settle(u, v, below, high, ceiling)
                spent[0] += len(successors[forward[-1]])
            else:
                for w in predecessors[backward.pop()]:
                    at = label[w]
                    if at < low:
                        if at > floor:
                            floor = at
                    elif w != u and w not in above:
                        if u in predecessors[w] or not below.isdisjoint(predecessors[w]):
                            return None
                        above.add(w)
                        backward.append(w)
                if not backward:
                    return self._settle(u, v, above, floor, low)
                spent[1] += len(predecessors[backward[-1]])
            budget -= 1
            if budget < 0:
                return None

    def _may_join(self, u: int, v: int) -> bool:
        """Whether nothing but a cycle could keep two clusters apart."""
        limits, scope = self.limits, self.scope
        if limits.devices and limits.devices[u] != limits.devices[v]:
            return False
        if None not in (scope[u], scope[v]) and scope[u] != scope[v]:
            return False
        return limits.largest is None or self.size[u] + self.size[v] <= limits.largest

    def _settle(self, u: int, v: int, moved: Set[int], low: float, high: float) -> int:
        """Merge u and v; spread `moved`, in their order, between two labels."""
        label = self.label
        at = low if high > label[v] else high
        merged = self._fold(u, v)
        label[merged] = at
        if moved:
            room = len(moved) + 1
            if high == math.inf:
                high = low + room
            elif low == -math.inf:
                low = high - room
            last = low
            step = (high - low) / room
            for number, vertex in enumerate(sorted(moved, key=label.__getitem__), 1):
                fresh = low + step * number
                if not last < fresh < high:  # floats have run out here
                    edges = [(v, w) for v, ws in enumerate(self.successors) for w in ws]
                    self._relabel(topological_order(len(label), edges, range(len(label))))
                    break
                label[vertex] = last = fresh
        return merged

    def _fold(self, u: int, v: int) -> int:
        """Make one vertex of two, moving the edges of the one that has fewer."""
        degree = [len(self.successors[w]) + len(self.predecessors[w]) for w in (u, v)]
        keep, gone = (u, v) if degree[0] >= degree[1] else (v, u)
        self.parent[gone] = keep
        self.size[keep] += self.size[gone]
        if self.scope[keep] is None:
            self.scope[keep] = self.scope[gone]
        others = self.refused.pop(gone, set())
        for w in others:
            self.refused[w].discard(gone)
            self.refused[w].add(keep)
        if others:
            self.refused.setdefault(keep, set()).update(others)
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

    def _relabel(self, order: Iterable[int]) -> None:
        """Label vertices, given in a topological order, with the longest path to each."""
        label = self.label
        for vertex in order:
            above = [label[w] for w in self.predecessors[vertex]]
            label[vertex] = max(above) + 1 if above else 0.0


def hopeless_edges(dag: Dag, supported: Sequence[bool]) -> set[tuple[int, int]]:
    """Return edges whose ends a path over a native vertex joins too: those can never be merged.

    Not all of them: the paths are those of one forest, in which each vertex hangs on the
    predecessor behind the most native vertices. It saves long searches for what is far away.
    """
    count = len(dag.names)
    behind = [0] * count  # native vertices on the way from the root
    parent = [-1] * count
    for vertex, sources in enumerate(dag.predecessors):
        for source in sources:
            natives = behind[source] + (not supported[source])
            if parent[vertex] < 0 or (natives, source) > (behind[vertex], parent[vertex]):
                behind[vertex], parent[vertex] = natives, source
    size = [1] * count
    for vertex in range(count - 1, -1, -1):
        if parent[vertex] >= 0:
            size[parent[vertex]] += size[vertex]
    start = [0] * count  # places in the order in which a walk down the forest enters vertices
    inside, outside = [1] * count, 0
    for vertex in range(count):
        if parent[vertex] < 0:
            start[vertex], outside = outside, outside + size[vertex]
        else:
            above = parent[vertex]
            start[vertex] = start[above] + inside[above]
            inside[above] += size[vertex]
    return {
        (source, vertex)
        for vertex in range(count)
        if supported[vertex]
        for source in dag.predecessors[vertex]
        if supported[source]
        and behind[vertex] > behind[source]
        and start[source] < start[vertex] < start[source] + size[source]
    }


def contract(
    dag: Dag,
    supported: Sequence[bool],
    *,
    order: str = "topo",
    weights: Mapping[tuple[int, int], int] | None = None,
    limits: Limits = UNLIMITED,
    budget: int = SEARCH_BUDGET,
) -> list[list[int]]:
    """Return the clusters: lists of ascending vertices, in the order of their first vertex.

    Every supported vertex is in exactly one list, clusters of one included. Each list is weakly
    connected, and shrinking every list to a point leaves no cycle.

    Args:
        dag: the graph.
        supported: for each vertex, whether it may be in a cluster.
        order: "topo" or "bytes".
        weights: what each edge carries, for "bytes"; edges left out carry nothing.
        limits: what keeps vertices apart besides cycles.
        budget: vertices that the search for one merge may visit.

    Example:
        >>> dag = Dag.of("abcd", [(0, 1), (1, 2), (0, 2), (2, 3)])
        >>> contract(dag, [True, False, True, True])
        [[0], [2, 3]]
    """
    quotient = _Quotient(dag, supported, limits, budget)
    hopeless = hopeless_edges(dag, supported)

    def targets(vertex: int) -> list[int]:
        return [v for v in dag.successors[vertex] if supported[v] and (vertex, v) not in hopeless]

    vertices = [v for v in range(len(dag.names)) if supported[v]]
    if order == "bytes":
        _merge_heaviest(quotient, ((u, v) for u in vertices for v in targets(u)), weights or {})
        quotient.refused.clear()  # some path may have become part of a cluster
        for root, members in sorted(
            _grouped(quotient, vertices).items(),
            key=lambda item: quotient.label[item[0]],
            reverse=True,
        ):
            _grow(quotient, root, [v for member in members for v in targets(member)])
    else:
        for vertex in reversed(vertices):
            _grow(quotient, vertex, targets(vertex))
    return list(_grouped(quotient, vertices).values())


def _grouped(quotient: _Quotient, vertices: Iterable[int]) -> dict[int, list[int]]:
    clusters: dict[int, list[int]] = {}
    for vertex in vertices:
        clusters.setdefault(quotient.find(vertex), []).append(vertex)
    return clusters


def _grow(quotient: _Quotient, current: int, targets: Iterable[int]) -> None:
    """Merge a cluster with what it may be merged with; to be done for the last clusters first."""
    find, label = quotient.find, quotient.label
    near = {find(target) for target in targets}
    # Nearest first, so that what lies between two vertices has had its chance to join.
    for target in sorted(near, key=lambda v: (label[v], v)) if len(near) > 1 else near:
        if target != current:
            current = quotient.try_merge(current, target)


def _merge_heaviest(
    quotient: _Quotient, edges: Iterable[tuple[int, int]], weights: Mapping[tuple[int, int], int]
) -> None:
    """Try each edge once, the heaviest first, and of equals that of the later producer."""
    for source, target in sorted(edges, key=lambda e: (-weights.get(e, 0), -e[0], e[1])):
        u, v = quotient.find(source), quotient.find(target)
        if u != v:
            quotient.try_merge(u, v)
