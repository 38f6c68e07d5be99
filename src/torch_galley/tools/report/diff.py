"""What is different between two reports of the same program: settings, code or versions changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_galley.cluster.report import size
from torch_galley.core.words import counted
from torch_galley.tools.report.model import Graph, Node
from torch_galley.tools.report.shown import printable

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report


@dataclass(frozen=True)
class GraphDifference:
    """What is different in one graph. Operations are matched by name and operator."""

    role: str
    before: dict[str, float]
    after: dict[str, float]
    entered: tuple[tuple[str, str], ...]
    """Operations that XLA has now: name and operator."""
    left: tuple[tuple[str, str, str], ...]
    """Operations that run natively now: name, operator and why."""
    new: tuple[tuple[str, str], ...]
    """Operations that were not there."""
    gone: tuple[tuple[str, str], ...]
    """Operations that are not there any more."""

    @property
    def empty(self) -> bool:
        """Whether nothing is different."""
        parts = self.entered or self.left or self.new or self.gone
        return not parts and self.before == self.after


@dataclass(frozen=True)
class Difference:
    """What is different between two reports: a page when printed."""

    graphs: tuple[GraphDifference, ...]
    """By place: the first graph with the first, and so on."""
    new_graphs: tuple[str, ...]
    """Roles of graphs that only the later report has."""
    gone_graphs: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing is different."""
        more = self.new_graphs or self.gone_graphs
        return not more and all(graph.empty for graph in self.graphs)

    def text(self) -> str:
        """Return the differences as a page of text."""
        lines = list(_lines(self))
        return printable("\n".join(lines)) if lines else "no difference"

    def to_json(self) -> dict[str, Any]:
        """Return the differences as plain data."""
        return {
            "graphs": [
                {
                    "role": g.role,
                    "before": g.before,
                    "after": g.after,
                    "entered": [list(item) for item in g.entered],
                    "left": [list(item) for item in g.left],
                    "new": [list(item) for item in g.new],
                    "gone": [list(item) for item in g.gone],
                }
                for g in self.graphs
            ],
            "new_graphs": list(self.new_graphs),
            "gone_graphs": list(self.gone_graphs),
        }

    def __str__(self) -> str:
        return self.text()


def diff(before: Report, after: Report) -> Difference:
    """Return what is different in a later report; see Report.diff."""
    count = min(len(before.graphs), len(after.graphs))
    return Difference(
        tuple(map(_graphs, before.graphs, after.graphs)),
        tuple(graph.role for graph in after.graphs[count:]),
        tuple(graph.role for graph in before.graphs[count:]),
    )


def _graphs(before: Graph, after: Graph) -> GraphDifference:
    old, new = _operations(before), _operations(after)
    both = [key for key in old if key in new]
    return GraphDifference(
        after.role,
        _numbers(before),
        _numbers(after),
        tuple(key for key in both if old[key].native and not new[key].native),
        tuple(
            (*key, str(new[key].native)) for key in both if new[key].native and not old[key].native
        ),
        tuple(key for key in new if key not in old),
        tuple(key for key in old if key not in new),
    )


def _operations(graph: Graph) -> dict[tuple[str, str], Node]:
    nodes = (graph.nodes[n] for n in graph.operations)
    return {(node.name, node.target): node for node in nodes}


def _numbers(graph: Graph) -> dict[str, float]:
    total = graph.total
    return {
        "operations": total.operations,
        "in clusters": total.clustered,
        "coverage": total.coverage,
        "clusters": total.clusters,
        "border tensors": total.tensors,
        "border bytes": total.nbytes,
        "border edges": total.edges,
        "peak bytes": graph.peak_bytes,
    }


def _lines(difference: Difference) -> Iterator[str]:
    for number, graph in enumerate(difference.graphs):
        if graph.empty:
            continue
        yield f"graph {number} ({graph.role}):"
        for name, value in graph.before.items():
            if graph.after[name] != value:
                yield f"  {name}: {_shown(name, value)} -> {_shown(name, graph.after[name])}"
        yield from _listed("in XLA now", Counter(op for _, op in graph.entered))
        yield from _listed("native now", Counter(f"{op} ({why})" for _, op, why in graph.left))
        yield from _listed("new", Counter(op for _, op in graph.new))
        yield from _listed("gone", Counter(op for _, op in graph.gone))
    for label, roles in (("new", difference.new_graphs), ("gone", difference.gone_graphs)):
        if roles:
            yield f"{label}: {counted(len(roles), 'graph')} ({', '.join(roles)})"


def _shown(name: str, value: float) -> str:
    if name == "coverage":
        return f"{value:.1%}"
    return size(value) if name.endswith("bytes") else f"{value:,}"


def _listed(label: str, ops: Counter[str]) -> Iterator[str]:
    if ops:
        yield f"  {label}: " + ", ".join(f"{n} x {op}" for op, n in ops.most_common())
