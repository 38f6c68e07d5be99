"""Graphs written as text, and partitions as words."""

from collections.abc import Sequence
from typing import Any

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import Limits
from torch_galley.cluster.cut import Problem, cut
from torch_galley.cluster.dag import Dag, topological_order


def dag_of(text: str) -> Dag:
    """Read a graph written as "a>b b>c d"."""
    names: list[str] = []
    edges = []
    for word in text.split():
        ends = word.split(">")
        names += [end for end in ends if end not in names]
        edges += [(ends[i], ends[i + 1]) for i in range(len(ends) - 1)]
    pairs = [(names.index(a), names.index(b)) for a, b in edges]
    order = topological_order(len(names), pairs, range(len(names)))
    place = {v: rank for rank, v in enumerate(order)}
    return Dag.of([names[v] for v in order], [(place[a], place[b]) for a, b in pairs])


def words(dag: Dag, clusters: Sequence[Sequence[int]]) -> list[str]:
    """Return clusters as words joined by spaces."""
    return sorted(" ".join(sorted(dag.names[v] for v in c)) for c in clusters)


def clustered(text: str, native: str = "", smallest: int = 1, **settings: Any) -> list[str]:
    """Cut a graph. `devices` and `scopes` give a word for each vertex by name, `largest` a size."""
    dag = dag_of(text)
    kinds = {kind: settings.pop(kind, {}) for kind in ("devices", "scopes")}
    named = {kind: [of.get(n) for n in dag.names] for kind, of in kinds.items() if of}
    limits = Limits(**named, largest=settings.pop("largest", None))
    supported = [name not in native.split() for name in dag.names]
    clusters = cut(Problem(dag, supported, [], limits), **settings)
    check(dag, clusters)
    return words(dag, [c for c in clusters if len(c) >= smallest])
