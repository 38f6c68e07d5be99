"""A report in a bundle: the blocks "overview", "graph" and "source".

overview    everything but the nodes
graph       the nodes of each graph, a table each
source      the lines of the user's files that made them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_galley.core.errors import ToolError
from torch_galley.core.site import Site
from torch_galley.observe.bundle import Bundle, is_bundle
from torch_galley.tools.report import codec
from torch_galley.tools.report.model import Break, Cluster, Graph, Node

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report

MOST_NODES = 200_000
MOST_EDGES = 1_000_000


def save(report: Report, folder: str | Path) -> Path:
    """Write a report into a bundle; see Report.save."""
    there = Bundle.load(folder) if is_bundle(folder) else Bundle({})
    made = blocks(report)
    _read(made["overview"], made["graph"], made["source"])  # what can't be read is not written
    return dataclasses.replace(there, blocks={**there.blocks, **made}).save(folder)


def without_source(report: Report) -> tuple[str, tuple[Graph, ...], tuple[Break, ...]]:
    """Return the parts of a report without source lines; see Report.without_source."""

    def bare(site: Site | None) -> Site | None:
        return dataclasses.replace(site, code="") if site else None

    graphs = (
        dataclasses.replace(
            graph, nodes=tuple(dataclasses.replace(n, site=bare(n.site)) for n in graph.nodes)
        )
        for graph in report.graphs
    )
    breaks = (dataclasses.replace(one, site=bare(one.site)) for one in report.breaks)
    return report.name, tuple(graphs), tuple(breaks)


def blocks(report: Report) -> dict[str, Any]:
    """Return the blocks of a report."""
    lines: dict[tuple[str, int], str] = {}

    def stripped(site: Site | None) -> Site | None:
        if site is None:
            return None
        file = _without_home(site.file)
        if site.code:
            lines[file, site.line] = site.code
        return dataclasses.replace(site, file=file, code="")

    graphs = []
    tables = []
    for graph in report.graphs:
        nodes = tuple(dataclasses.replace(n, site=stripped(n.site)) for n in graph.nodes)
        graphs.append(codec.plain(dataclasses.replace(graph, nodes=())))
        tables.append(codec.table(nodes, Node))
    breaks = [dataclasses.replace(one, site=stripped(one.site)) for one in report.breaks]
    files: dict[str, dict[str, str]] = {}
    for (file, line), code in sorted(lines.items()):
        files.setdefault(file, {})[str(line)] = code
    overview = {"name": report.name, "graphs": graphs, "breaks": codec.plain(tuple(breaks))}
    return {"overview": overview, "graph": {"graphs": tables}, "source": {"files": files}}


def _without_home(file: str) -> str:
    """Return a path without the user's name, which is nobody's business."""
    path = Path(file)
    return str("~" / path.relative_to(Path.home())) if path.is_relative_to(Path.home()) else file


def load(folder: str | Path) -> tuple[str, tuple[Graph, ...], tuple[Break, ...]]:
    """Read the report in a bundle; see Report.load."""
    found = Bundle.load(folder).blocks
    for name in ("overview", "graph", "source"):
        if not isinstance(found.get(name), dict):
            raise ToolError(f"{folder} has no block {name!r}", hint="galley report makes one")
    try:
        return _read(found["overview"], found["graph"], found["source"])
    except ToolError as error:
        raise ToolError(f"{folder}: {error.message}", hint=error.hint) from error


def _read(
    overview: dict[str, Any], tables: dict[str, Any], source: dict[str, Any]
) -> tuple[str, tuple[Graph, ...], tuple[Break, ...]]:
    files = source.get("files")
    if not isinstance(files, dict):
        raise ToolError("source.files is missing")

    def with_code(site: Site | None) -> Site | None:
        lines = files.get(site.file) if site else None
        code = lines.get(str(site.line)) if site and isinstance(lines, dict) else None
        if site is None or not isinstance(code, str) or len(code) > codec.LONGEST:
            return site
        return dataclasses.replace(site, code=code)

    name = codec.read(str, overview.get("name"), "overview.name")
    graphs, given = overview.get("graphs"), tables.get("graphs")
    if not isinstance(graphs, list) or not isinstance(given, list) or len(graphs) != len(given):
        raise ToolError("overview.graphs and graph.graphs are no lists of one length")
    made = []
    for number, (data, table) in enumerate(zip(graphs, given, strict=True)):
        where = f"graph.graphs[{number}]"
        nodes = codec.rows(table, Node, where)
        graph = codec.read(Graph, data, f"overview.graphs[{number}]")
        sites = {site: with_code(site) for site in {node.site for node in nodes}}
        nodes = tuple(dataclasses.replace(node, site=sites[node.site]) for node in nodes)
        graph = dataclasses.replace(graph, nodes=nodes)
        for problem in _problems(graph):
            raise ToolError(f"{where}: {problem}")
        made.append(graph)
    breaks = codec.read(tuple[Break, ...], overview.get("breaks"), "overview.breaks")
    breaks = tuple(dataclasses.replace(one, site=with_code(one.site)) for one in breaks)
    return name, tuple(made), breaks


def _problems(graph: Graph) -> Iterator[str]:
    """Yield what keeps a graph from being one: bounds, numbers of no node, edges going back."""
    nodes = graph.nodes
    if len(nodes) > MOST_NODES:
        yield f"{len(nodes)} nodes; at most {MOST_NODES}"
    if sum(len(node.inputs) + len(node.before) for node in nodes) > MOST_EDGES:
        yield f"more than {MOST_EDGES} edges"
    if len({node.name for node in nodes}) < len(nodes):
        yield "two nodes have one name"
    for number, node in enumerate(nodes):
        if any(not 0 <= source < number for source in (*node.inputs, *node.before)):
            yield f"node {number} reads one that is not before it"
        if node.kind not in ("operation", "input", "part", "number"):
            yield f"node {number} is of kind {node.kind!r:.40}"
        if node.kind == "part" and not node.inputs:
            yield f"node {number} is part of nothing"
        if node.nbytes < 0 or node.flops < 0:
            yield f"node {number} has less than no bytes or FLOPs"
    if len({cluster.name for cluster in graph.clusters}) < len(graph.clusters):
        yield "two clusters have one name"
    for cluster in graph.clusters:
        if not cluster.nodes:
            yield f"cluster {cluster.name:.40} has no nodes"
        if any(not 0 <= number < len(nodes) for number in _numbers(cluster)):
            yield f"cluster {cluster.name:.40} names a node that is not there"
    wanted = sorted([*range(len(graph.clusters)), *(-1 - n for n in graph.native)])
    if sorted(graph.steps) != wanted:
        yield "its steps are not its clusters and native operations"


def _numbers(cluster: Cluster) -> Iterator[int]:
    yield from (*cluster.nodes, *cluster.entry, *cluster.exit)
    yield from (crossing.node for crossing in (*cluster.inputs, *cluster.outputs))
    yield from (number for edge in cluster.edges for number in edge)
