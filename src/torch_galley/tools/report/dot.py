"""The cut graphs in Graphviz' language."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import TYPE_CHECKING

from torch_galley.cluster.report import size
from torch_galley.tools.report.model import Graph
from torch_galley.tools.report.shown import printable

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report


Vertex = Callable[[int, int | None], str]
"""Names an operation in a cluster, or natively."""


def dot(report: Report) -> str:
    """Return a digraph: clusters are boxes with their operations, native ones stand between."""
    lines = [
        f"digraph {_quoted(report.name)} {{",
        '  node [shape=box, fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    for number, graph in enumerate(report.graphs):
        lines += _graph(graph, f"g{number}")
    return "\n".join([*lines, "}", ""])


def _graph(graph: Graph, prefix: str) -> Iterator[str]:
    def vertex(node: int, cluster: int | None) -> str:
        """Name an operation, which may stand in several clusters."""
        return _quoted(f"{prefix}.{node}" + ("" if cluster is None else f".{cluster}"))

    for number, cluster in enumerate(graph.clusters):
        yield f"  subgraph {_quoted(f'cluster_{prefix}_{number}')} {{"
        yield f"    label={_quoted(cluster.name)}; color=navy; penwidth=2;"
        for node in cluster.nodes:
            if graph.nodes[node].kind == "operation":
                yield f"    {vertex(node, number)} [label={_label(graph, node)}];"
        yield "  }"
    for node in graph.native:
        why = _quoted(str(graph.nodes[node].native))
        yield (
            f"  {vertex(node, None)} [label={_label(graph, node)}, style=dashed, "
            f"color=goldenrod4, tooltip={why}];"
        )
    for number, cluster in enumerate(graph.clusters):
        inside = set(cluster.nodes)
        for node in cluster.nodes:
            yield from _edges(graph, node, number, inside, vertex)
    for node in graph.native:
        yield from _edges(graph, node, None, set(), vertex)


def _edges(
    graph: Graph, node: int, cluster: int | None, inside: Set[int], vertex: Vertex
) -> Iterator[str]:
    """Yield the edges by which one place of an operation reads others."""
    if graph.nodes[node].kind != "operation":
        return
    for source in graph.nodes[node].inputs:
        nbytes = graph.nodes[source].nbytes
        while graph.is_part(source):
            source = graph.nodes[source].inputs[0]
        if graph.nodes[source].kind != "operation":
            continue
        if source in inside:
            yield f"  {vertex(source, cluster)} -> {vertex(node, cluster)};"
            continue
        homes = graph.homes.get(source, ())
        start = None if graph.nodes[source].native or not homes else homes[0]
        label = f" [label={_quoted(size(nbytes))}, color=mediumvioletred]" if nbytes else ""
        yield f"  {vertex(source, start)} -> {vertex(node, cluster)}{label};"


def _label(graph: Graph, node: int) -> str:
    one = graph.nodes[node]
    return _quoted("\n".join(filter(None, (one.name, one.target, one.type))))


def _quoted(text: str) -> str:
    """Return text as a string of Graphviz'."""
    return (
        '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    )
