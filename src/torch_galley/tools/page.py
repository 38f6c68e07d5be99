"""An Explanation as a page of text: headline, clusters, native operations, graph breaks."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import fx

from torch_galley.cluster.operation import is_operation
from torch_galley.cluster.partition import XlaCluster
from torch_galley.cluster.report import border, size
from torch_galley.core.reasons import Reason, TooSmall
from torch_galley.core.site import Site, module_path, site_of
from torch_galley.tools.flops import shown

if TYPE_CHECKING:
    from torch_galley.tools.explain import Explanation, Graph

_WIDTH = 100


def text(explanation: Explanation, limit: int | None) -> str:
    """Return the page; see Explanation.text."""
    lines = list(_headline(explanation))
    for graph in explanation.graphs:
        lines += ["", *_graph(graph, limit)]
    if explanation.breaks:
        lines += ["", *_breaks(explanation)]
    return "\n".join(lines)


def _headline(explanation: Explanation) -> Iterator[str]:
    graphs = explanation.graphs
    if not graphs:
        yield f"{explanation.name}: nothing to compile, the call made no tensor operations"
        return
    clusters = sum(len(graph.clustered.clusters) for graph in graphs)
    yield (
        f"{explanation.name}: {explanation.clustered_operations} of "
        f"{counted(explanation.operations, 'operation')} in {counted(clusters, 'XLA cluster')}, "
        f"coverage η = {explanation.coverage:.1%}"
    )
    roles = Counter(graph.clustered.captured.role for graph in graphs)
    named = ", ".join(f"{count} {role}" for role, count in roles.items())
    breaks = counted(len(explanation.breaks), "graph break") if explanation.breaks else "no break"
    yield f"{counted(len(graphs), 'graph')} ({named}), {breaks}"
    total = sum(graph.flops for graph in graphs)
    inside = sum(sum(graph.cluster_flops) for graph in graphs)
    if total:
        yield (
            f"{inside / total:.1%} of {shown(total)} in XLA, counted by torch.utils.flop_counter: "
            "products, convolutions, attention"
        )
    if any(graph.estimated for graph in graphs):
        yield "Sizes are symbolic: bytes and FLOPs are those of this call."
    if any(graph.data_dependent for graph in graphs):
        yield "Sizes that depend on data are not known, and count as 1."


def _graph(graph: Graph, limit: int | None) -> Iterator[str]:
    found = graph.clustered
    by_flops = f", {sum(graph.cluster_flops) / graph.flops:.1%} by FLOPs" if graph.flops else ""
    yield (
        f"{found.captured.role} graph {found.captured.fingerprint}: "
        f"{found.clustered_operations} of {counted(found.operations, 'operation')} in "
        f"{counted(len(found.clusters), 'cluster')}, η = {found.coverage:.1%} by nodes{by_flops}"
    )
    for cluster, flops in zip(found.clusters, graph.cluster_flops, strict=True):
        yield from _cluster(cluster, flops, limit)
    if not found.native:
        return
    yield f"  native: {counted(len(found.native), 'operation')}"
    groups: dict[str, list[fx.Node]] = {}
    # Small clusters last: they mostly follow from the other reasons.
    for node, reason in sorted(found.native.items(), key=lambda item: _follows(item[1])):
        groups.setdefault(reason.group, []).append(node)
    for group, nodes in groups.items():
        yield f"    {group}: {len(nodes)}"
        yield from _native(nodes)


def _follows(reason: Reason) -> bool:
    return isinstance(reason, TooSmall)


def _cluster(cluster: XlaCluster, flops: int, limit: int | None) -> Iterator[str]:
    crossing = border(cluster)
    operations = counted(sum(map(is_operation, cluster.nodes)), "operation")
    yield f"  {cluster.name}: {operations}" + (f", {shown(flops)}" if flops else "")
    yield from _points("enters at", cluster.entry, limit)
    yield from _points("leaves at", cluster.exit, limit)
    own = f", {size(crossing.parameter_bytes)} of it the graph's inputs"
    yield (
        f"    in {counted(crossing.tensors_in, 'tensor')} {size(crossing.bytes_in)}"
        + (own if crossing.parameter_bytes else "")
        + f"; out {counted(crossing.tensors_out, 'tensor')} {size(crossing.bytes_out)}"
    )
    yield (
        f"    border to other operations: ∂C {counted(crossing.edges, 'edge')}, "
        f"D(C) {size(crossing.edge_bytes)}"
    )


def _points(label: str, nodes: Sequence[fx.Node], limit: int | None) -> list[str]:
    few = [node.name for node in nodes[:limit]]
    more = f" and {len(nodes) - len(few)} more" if len(nodes) > len(few) else ""
    return textwrap.wrap(
        ", ".join(few) + more, _WIDTH, initial_indent=f"    {label} ", subsequent_indent=" " * 14
    )


def _native(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Show operations by the line that made them: layers of one class share one entry."""
    rows: dict[Site | None, list[fx.Node]] = {}
    for node in nodes:
        site = site_of(node.meta)
        line = site and Site(site.file, site.line, site.function, "", site.code)
        rows.setdefault(line, []).append(node)
    for site, made in rows.items():
        ops = Counter(str(node.target) for node in made)
        named = ", ".join(f"{n} x {op}" if n > 1 else op for op, n in ops.items())
        yield from _wrapped(f"{named} at {place(site)}" if site else f"{named}, line unknown", 6)
        inside = ", ".join(merged(filter(None, (module_path(node.meta) for node in made))))
        code = site.code if site else ""
        if len(code) + len(inside) < _WIDTH - 16 or not (code and inside):
            shown = code + (f"   # in {inside}" if inside else "")
            yield from [f"        {shown.strip()}"] if shown else []
        else:
            yield from [f"        {code}", f"        # in {inside}"]


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(
        line,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _breaks(explanation: Explanation) -> Iterator[str]:
    yield f"{counted(len(explanation.breaks), 'graph break')}:"
    for one in explanation.breaks:
        yield f"  {place(one.site) if one.site else 'at an unknown place'}"
        if one.site and one.site.code:
            yield f"    {one.site.code}"
        yield from _wrapped(one.headline, 4)


def place(site: Site) -> str:
    """Return a place with a path no longer than needed: from here, or from site-packages."""
    path = Path(site.file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    elif "site-packages" in path.parts:
        path = Path(*path.parts[path.parts.index("site-packages") + 1 :])
    return f"{path}:{site.line}" + (f" in {site.function}" if site.function else "")


def merged(paths: Iterable[str]) -> list[str]:
    """Return module paths, those that differ in one number written as one.

    Example:
        >>> merged(["layer.0.act", "layer.1.act", "layer.2.act", "head"])
        ['layer.{0-2}.act', 'head']
    """
    groups: dict[str, list[int]] = {}
    for path in dict.fromkeys(paths):
        match = re.search(r"(?<![^.])\d+(?![^.])", path)
        key = f"{path[: match.start()]}{{}}{path[match.end() :]}" if match else path
        groups.setdefault(key, []).extend([int(match[0])] if match else [])
    out = []
    for key, numbers in groups.items():
        first, last = (min(numbers), max(numbers)) if numbers else (0, 0)
        if len(numbers) < 2:
            out.append(key.format(*numbers))
        elif last - first + 1 == len(set(numbers)):
            out.append(key.format(f"{{{first}-{last}}}"))
        else:
            out.append(key.format("{" + ",".join(map(str, sorted(numbers))) + "}"))
    return out


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "graph"), counted(2, "graph")
        ('1 graph', '2 graphs')
    """
    return f"{count} {noun}" + ("" if count == 1 else "s")
