"""The independent judge of a partition. Shares no code with contract.py, and is always run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torch_galley.cluster.dag import Dag
from torch_galley.core.errors import ClusterError


def check(dag: Dag, clusters: Sequence[Sequence[int]]) -> None:
    """Raise ClusterError unless the clusters are disjoint and merging them leaves no cycle.

    The error's `facts["clusters"]` are the numbers of clusters of which one has to go.

    Example:
        >>> check(Dag.of("abc", [(0, 1), (1, 2)]), [[0, 2]])
        Traceback (most recent call last):
        ...
        torch_galley.core.errors.ClusterError: clusters form a cycle through: a, b, c
    """
    owner: dict[int, int] = {}
    for number, members in enumerate(clusters):
        for vertex in members:
            if vertex in owner:
                both = sorted({owner[vertex], number})
                raise ClusterError(f"{dag.names[vertex]} is in two clusters", clusters=both)
            owner[vertex] = number
    group = [owner.get(v, len(clusters) + v) for v in range(len(dag.names))]
    successors: dict[int, set[int]] = {}
    incoming: dict[int, int] = dict.fromkeys(group, 0)
    for source in range(len(dag.names)):
        for target in dag.successors[source]:
            a, b = group[source], group[target]
            if a != b and b not in successors.setdefault(a, set()):
                successors[a].add(b)
                incoming[b] += 1
    free = [g for g, count in incoming.items() if count == 0]
    done = set()
    while free:
        g = free.pop()
        done.add(g)
        for target in successors.get(g, ()):
            incoming[target] -= 1
            if incoming[target] == 0:
                free.append(target)
    stuck = [dag.names[v] for v in range(len(dag.names)) if group[v] not in done]
    if stuck:
        cycle = _cycle({a: bs - done for a, bs in successors.items() if a not in done})
        raise ClusterError(
            f"clusters form a cycle through: {', '.join(stuck[:20])}",
            clusters=sorted(g for g in cycle if g < len(clusters)),
        )


def _cycle(successors: Mapping[int, Set[int]]) -> list[int]:
    """Return a cycle of a graph in which there is one, and in front of which nothing is."""
    behind = {b: a for a, targets in successors.items() for b in targets}
    at, path = next(iter(behind)), []
    while at not in path:
        path.append(at)
        at = behind[at]
    return path[path.index(at) :]
