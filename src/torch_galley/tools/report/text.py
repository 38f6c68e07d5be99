"""The report as a page of text: headline, clusters, native operations, what could be, breaks."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch_galley.cluster.report import size
from torch_galley.cluster.terms import Terms
from torch_galley.core.site import Site
from torch_galley.core.words import counted
from torch_galley.tools.flops import shown as flops_shown
from torch_galley.tools.report import optimised, why
from torch_galley.tools.report.model import Cluster, Crossing, Graph
from torch_galley.tools.report.shown import duration, merged, place, printable

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report

_WIDTH = 100
_MOST_BLAME = 12


def text(report: Report, limit: int | None) -> str:
    """Return the page; see Report.text."""
    lines = list(headline(report))
    for graph in report.graphs:
        lines += ["", *_graph(graph, limit)]
    if report.breaks:
        lines += ["", *_breaks(report)]
    return printable("\n".join(lines))


def headline(report: Report) -> Iterator[str]:
    """Yield the facts about all graphs together."""
    graphs = report.graphs
    if not graphs:
        yield f"{report.name}: nothing to compile, the call made no tensor operations"
        return
    yield (
        f"{report.name}: {report.clustered_operations:,} of "
        f"{counted(report.operations, 'operation')} in "
        f"{counted(report.clusters, 'XLA cluster')}, coverage η = {report.coverage:.1%}"
    )
    roles = Counter(graph.role for graph in graphs)
    named = ", ".join(f"{count} {role}" for role, count in roles.items())
    breaks = counted(len(report.breaks), "graph break") if report.breaks else "no break"
    yield f"{counted(len(graphs), 'graph')} ({named}), {breaks}"
    if total := sum(graph.flops for graph in graphs):
        inside = sum(graph.clustered_flops for graph in graphs)
        yield (
            f"{inside / total:.1%} of {flops_shown(total)} in XLA, counted by "
            "torch.utils.flop_counter: products, convolutions, attention"
        )
    if seconds := report.compile_seconds:
        yield f"XLA compiled for {duration(seconds)}"
    yield from notes(graphs)


def notes(graphs: Iterable[Graph]) -> Iterator[str]:
    """Yield what is not known, or only estimated."""
    graphs = list(graphs)
    if not all(graph.sizes_known for graph in graphs):
        yield "The graph has no tensors: bytes, FLOPs and memory are not known."
    if any(graph.estimated for graph in graphs):
        yield "Sizes are symbolic: bytes and FLOPs are those of this call."
    if any(graph.data_dependent for graph in graphs):
        yield "Sizes that depend on data are not known, and count as 1."
    if any(graph.rates == "shipped" for graph in graphs):
        yield "S is predicted by another machine's rates; galley calibrate measures this one's."


def _graph(graph: Graph, limit: int | None) -> Iterator[str]:
    total = graph.total
    made, whole = graph.made_bytes
    by = f", {graph.clustered_flops / graph.flops:.1%} by FLOPs" if graph.flops else ""
    by += f", {made / whole:.1%} by bytes made" if whole else ""
    yield from _wrapped(
        f"{graph.role} graph{f' {graph.fingerprint}' if graph.fingerprint else ''}: "
        f"{total.clustered:,} of {counted(total.operations, 'operation')} in "
        f"{counted(total.clusters, 'cluster')}, η = {total.coverage:.1%} by nodes{by}",
        0,
    )
    least = f"at least {counted(graph.unavoidable, 'cluster')} needed; "
    if graph.uncut.clusters > total.clusters:
        least = f"{counted(graph.uncut.clusters, 'cluster')} with those that are not kept; "
    bytes_ = f" {size(total.nbytes)}" if graph.sizes_known else ""
    peak = f"; peak {size(graph.peak_bytes)}, predicted" if graph.peak_bytes else ""
    yield from _wrapped(
        f"{least}over borders {counted(total.tensors, 'tensor')}{bytes_}, "
        f"∂C {counted(total.edges, 'edge')}{peak}",
        2,
    )
    for cluster in graph.clusters:
        yield from _cluster(graph, cluster, limit)
    yield from _native(graph)
    yield from _blame(graph)
    yield from _what_if(graph)
    for warning in graph.warnings:
        yield from _wrapped(f"warning: {warning}", 2)


def _cluster(graph: Graph, cluster: Cluster, limit: int | None) -> Iterator[str]:
    operations = counted(graph.operations_in(cluster), "operation")
    flops = f", {flops_shown(cluster.flops)}" if cluster.flops else ""
    yield f"  {cluster.name}: {operations}, {graph.effective_in(cluster):,} compute{flops}"
    histogram = [f"{n} x {op}" if n > 1 else op for op, n in graph.histogram(cluster)]
    yield from _few("made of", histogram, limit)
    yield from _few("enters at", _names(graph, cluster.entry), limit)
    yield from _few("leaves at", _names(graph, cluster.exit), limit)
    yield f"    {_side(graph, 'in', cluster.inputs)}; {_side(graph, 'out', cluster.outputs)}"
    own = [c for c in cluster.inputs if graph.nodes[c.node].kind == "input"]
    if own and graph.sizes_known:
        share = size(graph.bytes_of(c.node for c in own))
        yield f"    of it the graph's own inputs: {counted(len(own), 'tensor')} {share}"
    shared = [c for c in cluster.inputs if c not in own]
    yield from _few("takes", [_crossing(graph, c, "from") for c in shared], limit)
    yield from _few("gives", [_crossing(graph, c, "to") for c in cluster.outputs], limit)
    edge_bytes = graph.bytes_of(a for a, _ in cluster.edges)
    yield (
        f"    border to other operations: ∂C {counted(len(cluster.edges), 'edge')}"
        + (f", D(C) {size(edge_bytes)}" if graph.sizes_known else "")
    )
    for label, terms in (("predicted", cluster.predicted), ("measured", cluster.measured)):
        if terms:
            yield f"    {label} S = {terms_shown(terms)}"
    if cluster.verdict:
        yield f"    {cluster.verdict}"
    if cluster.compilation:
        yield f"    XLA compiled it in {duration(cluster.compilation.seconds)}"
        for name, sentence in optimised.sentences(cluster.compilation):
            yield from _wrapped(f"{name}: {sentence}", 6)


def terms_shown(terms: Terms) -> str:
    """Return S with its terms.

    Example:
        >>> terms_shown(Terms(3e-3, 1e-3, 5e-4))
        '2.00 = ΣT_op 3 ms / (T_fused 1 ms + T_sync 500 µs)'
    """
    parts = duration(terms.t_ops), duration(terms.t_fused), duration(terms.t_sync)
    return "{:.2f} = ΣT_op {} / (T_fused {} + T_sync {})".format(terms.speedup, *parts)


def _side(graph: Graph, label: str, crossings: Sequence[Crossing]) -> str:
    tensors = counted(len(crossings), "tensor")
    bytes_ = f" {size(graph.bytes_of(c.node for c in crossings))}" if graph.sizes_known else ""
    return f"{label} {tensors}{bytes_}"


def _crossing(graph: Graph, crossing: Crossing, word: str) -> str:
    node = graph.nodes[crossing.node]
    kind = f" {node.type}" + (f"@{node.device}" if node.device else "") if node.type else ""
    others = " and ".join(crossing.others[:3])
    more = f" and {len(crossing.others) - 3} more" if len(crossing.others) > 3 else ""
    # A tensor that a native operation gives has that operation's name.
    whose = "" if crossing.others == (node.name,) else f" {word} {others}{more}"
    return f"{node.name}{kind}{whose}"


def _names(graph: Graph, numbers: Iterable[int]) -> list[str]:
    return [graph.nodes[n].name for n in numbers]


def _few(label: str, words: Sequence[str], limit: int | None) -> list[str]:
    few = words[:limit]
    more = f" and {len(words) - len(few)} more" if len(words) > len(few) else ""
    if not few:
        return []
    return textwrap.wrap(
        ", ".join(few) + more,
        _WIDTH,
        initial_indent=f"    {label} ",
        subsequent_indent=" " * (5 + len(label)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _native(graph: Graph) -> Iterator[str]:
    if not graph.native:
        return
    yield f"  native: {counted(len(graph.native), 'operation')}"
    for group, numbers in by_reason(graph).items():
        yield f"    {group}: {len(numbers):,}"
        for site, made in by_line(graph, numbers).items():
            yield from _line(graph, site, made)


def by_reason(graph: Graph) -> dict[str, list[int]]:
    """Return native operations by reason; those that mostly follow from others come last."""
    groups: dict[str, list[int]] = {}
    for number in sorted(graph.native, key=lambda n: not graph.nodes[n].refused):
        reason = graph.nodes[number].native
        assert reason is not None
        groups.setdefault(reason.group, []).append(number)
    return groups


def by_line(graph: Graph, numbers: Iterable[int]) -> dict[Site | None, list[int]]:
    """Return operations by the line that made them: layers of one class share one entry."""
    rows: dict[Site | None, list[int]] = {}
    for number in numbers:
        site = graph.nodes[number].site
        line = site and Site(site.file, site.line, site.function, "", site.code)
        rows.setdefault(line, []).append(number)
    return rows


def _line(graph: Graph, site: Site | None, made: Sequence[int]) -> Iterator[str]:
    ops = Counter(graph.nodes[n].target for n in made)
    named = ", ".join(f"{n} x {op}" if n > 1 else op for op, n in ops.items())
    yield from _wrapped(f"{named} at {place(site)}" if site else f"{named}, line unknown", 6)
    inside = ", ".join(merged(filter(None, (graph.nodes[n].module for n in made))))
    code = site.code if site else ""
    if len(code) + len(inside) < _WIDTH - 16 or not (code and inside):
        shown = code + (f"   # in {inside}" if inside else "")
        yield from [f"        {shown.strip()}"] if shown else []
    else:
        yield from [f"        {code}", f"        # in {inside}"]


def _blame(graph: Graph) -> Iterator[str]:
    if not graph.blame:
        return
    yield "  if XLA had it, there would be:"
    for blame in graph.blame[:_MOST_BLAME]:
        ops = f"{blame.count} x {blame.op}" if blame.count > 1 else blame.op
        yield from _wrapped(f"{ops}: {why.gain(graph, blame)}, η = {blame.then.coverage:.1%}", 4)
    if (more := len(graph.blame) - _MOST_BLAME) > 0:
        yield f"    and {more} more"


def _what_if(graph: Graph) -> Iterator[str]:
    totals = [total for _, total in graph.what_if]
    if len(set(totals)) < 2:  # they are all alike
        return
    rows = [
        ("with min_cluster_size =", [str(size) for size, _ in graph.what_if]),
        ("clusters", [f"{total.clusters:,}" for total in totals]),
        ("η", [f"{total.coverage:.1%}" for total in totals]),
        ("tensors over borders", [f"{total.tensors:,}" for total in totals]),
        ("∂C edges", [f"{total.edges:,}" for total in totals]),
    ]
    if graph.sizes_known:
        rows.append(("bytes over borders", [size(total.nbytes) for total in totals]))
    for label, cells in rows:
        yield f"  {label:<24}" + "".join(f"{cell:>11}" for cell in cells)


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(
        line,
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _breaks(report: Report) -> Iterator[str]:
    yield f"{counted(len(report.breaks), 'graph break')}:"
    for one in report.breaks:
        yield f"  {place(one.site) if one.site else 'at an unknown place'}"
        if one.site and one.site.code:
            yield f"    {one.site.code}"
        yield from _wrapped(one.headline, 4)
