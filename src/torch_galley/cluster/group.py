"""Operations that the user wants together: in one cluster, or all native."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from torch_galley.cluster.dag import Dag


def settled(
    wanted: Iterable[Iterable[int]],
    dag: Dag,
    supported: Sequence[bool],
    device: Callable[[int], Hashable] = lambda vertex: None,
) -> tuple[list[list[int]], list[int]]:
    """Return which vertices become one, and which stay native because others of their group must.

    What lies on a path between two vertices of a group joins them, or the cluster would need its
    own results. Groups that need each other's vertices become one.

    Args:
        wanted: the groups.
        dag: the graph.
        supported: for each vertex, whether it may be in a cluster.
        device: of a vertex; a group of different ones stays native.

    Example:
        >>> dag = Dag.of("abcd", [(0, 1), (1, 2), (2, 3)])
        >>> settled([[0, 2]], dag, [True] * 4)
        ([[0, 1, 2]], [])
        >>> settled([[0, 2]], dag, [True, False, True, True])
        ([], [0, 2])
    """
    groups = [set(group) for group in wanted]
    native: set[int] = set()
    while True:
        groups = _disjoint(groups)
        whole = [_hull(group, dag, groups) for group in groups]
        bad = [
            group
            for group, hull in zip(groups, whole, strict=True)
            if len({device(v) for v in hull}) > 1
            or any(not supported[v] or v in native for v in hull)
        ]
        if bad:  # first those, since what they keep native may lie between others
            native.update(*bad)
            groups = [group for group in groups if group not in bad]
        elif whole == groups:
            return sorted(sorted(g) for g in groups if len(g) > 1), sorted(native)
        else:
            groups = whole


def _disjoint(groups: Iterable[set[int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for group in groups:
        merged = group.union(*(other for other in found if other & group))
        found = [other for other in found if not other & group] + [merged]
    return found


def _hull(group: set[int], dag: Dag, groups: Sequence[set[int]]) -> set[int]:
    """Return the group with what lies on paths between its vertices, other groups being points."""
    of = {v: other for other in groups for v in other}
    return _reached(group, dag.successors, of) & _reached(group, dag.predecessors, of)


def _reached(group: set[int], ways: Sequence[Iterable[int]], of: dict[int, set[int]]) -> set[int]:
    seen, waiting = set(group), list(group)
    while waiting:
        for near in ways[waiting.pop()]:
            for v in of.get(near, (near,)):
                if v not in seen:
                    seen.add(v)
                    waiting.append(v)
    return seen
