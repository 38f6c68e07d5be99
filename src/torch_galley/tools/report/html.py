"""The report as one static web page: no script, nothing from outside, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from torch_galley.cluster.report import size
from torch_galley.cluster.terms import Terms
from torch_galley.core.words import counted
from torch_galley.tools.flops import shown as flops_shown
from torch_galley.tools.report import optimised, text, why
from torch_galley.tools.report.deck import KINDS, deck, kind_of_reason, short
from torch_galley.tools.report.model import Cluster, Crossing, Graph
from torch_galley.tools.report.shown import MINUS, TIMES, clean, duration, merged, place

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report

_MOST_CLUSTERS = 200
_MOST_TENSORS = 40
_MOST_LINES = 60


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text("utf-8")


def page(report: Report) -> str:
    """Return the page; see Report.to_html."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en" class="galley-page"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_text(report.name)} · galley report</title><style>{style}</style></head>"
        f"<body>{_body(report)}</body></html>\n"
    )


def fragment(report: Report) -> str:
    """Return the page for inside another one, a notebook: with its style."""
    # A notebook's own page decides what style may be used; ours is fenced by its class.
    return f"<style>{_style()}</style>{_body(report)}"


def _body(report: Report) -> str:
    parts = ['<main class="galley">', *_head(report)]
    for number, graph in enumerate(report.graphs):
        parts += _graph(graph, number, len(report.graphs))
    parts += _breaks(report)
    parts.append(
        "<footer>η: share of operations in clusters. ∂C: edges from a cluster to operations "
        "outside; D(C): their bytes. A tensor that crosses a border counts once where it leaves "
        "and once for each cluster that it enters. S = ΣT<sub>op</sub> / (T<sub>fused</sub> + "
        "T<sub>sync</sub>). Made by torch-galley.</footer></main>"
    )
    return "".join(parts)


def _head(report: Report) -> Iterator[str]:
    yield f'<header><p class="eyebrow">galley report</p><h1>{_text(report.name)}</h1>'
    yield f'<p class="verdict">{_text(verdict(report))}</p>'
    for note in text.notes(report.graphs):
        yield f'<p class="note">{_text(note)}</p>'
    if len(report.graphs) > 1:
        links = (
            f'<a href="#g{n}">{_text(graph.role)} {_text(graph.fingerprint)}</a>'
            for n, graph in enumerate(report.graphs)
        )
        yield f"<nav>{' '.join(links)}</nav>"
    yield "</header>"


def verdict(report: Report) -> str:
    """Return the report in a sentence or two."""
    if not report.graphs:
        return "Nothing to compile: the call made no tensor operations."
    whole = [g for g in report.graphs if g.total.clustered == g.total.operations]
    if len(whole) == len(report.graphs):
        first = f"All {counted(report.operations, 'operation')} go into XLA"
        first += f", in {counted(report.clusters, 'cluster')}."
    elif not report.clusters:
        first = f"None of {counted(report.operations, 'operation')} go into XLA."
    else:
        first = (
            f"{report.clustered_operations:,} of {counted(report.operations, 'operation')} "
            f"go into XLA, in {counted(report.clusters, 'cluster')}."
        )
    gains = [
        (graph.uncut.seconds - blame.uncut.seconds, graph, blame)
        for graph in report.graphs
        for blame in graph.blame[:1]
    ]
    if not gains:
        return first
    _, graph, blame = max(gains, key=lambda item: item[0])
    return f"{first} Most is to be gained with {short(blame.op)}: {why.gain(graph, blame)}."


def _graph(graph: Graph, number: int, count: int) -> Iterator[str]:
    title = f"{graph.role} graph {graph.fingerprint}".strip()
    yield f'<section id="g{number}"><h2>{_text(title)}</h2>'
    yield from _figures(graph)
    drawn = deck(graph)
    if drawn:
        yield "<figure>" + _scrolled("graph") + drawn + "</div>" + _legend(graph) + "</figure>"
    if graph.warnings:
        items = "".join(f"<li>{_text(warning)}</li>" for warning in graph.warnings)
        yield f'<div class="warnings"><h3>Look at</h3><ul>{items}</ul></div>'
    yield from _blame(graph)
    yield from _native(graph)
    yield from _clusters(graph)
    yield from _what_if(graph)
    yield "</section>"


def _figures(graph: Graph) -> Iterator[str]:
    total = graph.total
    made, whole = graph.made_bytes
    yield '<div class="figures">'
    shares = [("nodes", total.coverage, f"{total.clustered:,} of {total.operations:,}")]
    if graph.flops:
        shares.append(("FLOPs", graph.clustered_flops / graph.flops, flops_shown(graph.flops)))
    if whole:
        shares.append(("bytes made", made / whole, size(whole)))
    bars = "".join(_bar(*share) for share in shares)
    yield f'<div class="figure wide"><b>{total.coverage:.1%}</b><span>coverage η</span>{bars}</div>'
    least = f"at least {graph.unavoidable} needed"
    if graph.uncut.clusters > total.clusters:
        least = f"{graph.uncut.clusters:,} with those that are not kept"
    yield _figure(f"{total.clusters:,}", "clusters", least)
    over = size(total.nbytes) if graph.sizes_known else "bytes unknown"
    yield _figure(
        f"{total.tensors:,}", "tensors over borders", f"{over} · ∂C {total.edges:,} edges"
    )
    if graph.peak_bytes:
        yield _figure(size(graph.peak_bytes), "peak memory", "predicted")
    if (seconds := graph.compile_seconds) is not None:
        yield _figure(duration(seconds), "XLA compiled", counted(total.clusters, "executable"))
    for label in ("predicted", "measured"):
        terms = [t for c in graph.clusters if (t := getattr(c, label))]
        if terms:
            yield _speed(label, terms, len(graph.clusters))
    yield "</div>"


def _speed(label: str, terms: Sequence[Terms], clusters: int) -> str:
    whole = Terms(
        sum(t.t_ops for t in terms), sum(t.t_fused for t in terms), sum(t.t_sync for t in terms)
    )
    of = "" if len(terms) == clusters else f" of {len(terms)} clusters"
    terms_only = text.terms_shown(whole).partition(" = ")[2]
    return _figure(f"{whole.speedup:.2f}{TIMES}", f"S {label}{of}", terms_only)


def _figure(value: str, label: str, more: str = "") -> str:
    return (
        f'<div class="figure"><b>{_text(value)}</b><span>{_text(label)}</span>'
        f"<small>{_text(more)}</small></div>"
    )


def _bar(label: str, share: float, more: str) -> str:
    wide = max(0.0, min(1.0, share)) * 100
    return (
        f'<div class="bar"><span>{_text(label)}</span><svg viewBox="0 0 100 6" '
        f'preserveAspectRatio="none" aria-hidden="true"><rect class="all" width="100" height="6"/>'
        f'<rect class="part" width="{wide:.2f}" height="6"/></svg>'
        f"<span>{share:.1%}</span><small>{_text(more)}</small></div>"
    )


def _legend(graph: Graph) -> str:
    kinds = Counter(
        kind_of_reason(reason.code) for n in graph.native if (reason := graph.nodes[n].native)
    )
    items = ['<span class="key cluster">cluster</span>'] if graph.clusters else []
    items += [f'<span class="key {k}">{said}</span>' for k, said in KINDS.items() if kinds[k]]
    if graph.clusters:
        items.append('<span class="key border">tensors over a border</span>')
    return f"<figcaption>{''.join(items)}</figcaption>"


def _scrolled(what: str) -> str:
    # Who has no mouse scrolls what has the focus.
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{what}">'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table; cells are HTML, heads that begin with # are of numbers."""
    number = [head.startswith("#") for head in heads]

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if right else ''}>{cell}</{tag}>"
            for right, cell in zip(number, row, strict=True)
        )

    head = cells("th", [head.lstrip("#") for head in heads])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'{_scrolled("table")}<table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _blame(graph: Graph) -> Iterator[str]:
    if not graph.blame:
        return
    yield "<h3>If XLA had it</h3><p>The graph was cut again for each operator. Cuts and borders "
    yield "count clusters that are not kept, too.</p>"
    rows = []
    for blame in graph.blame:
        now, then = graph.uncut, blame.uncut
        rows.append(
            [
                f"<code>{_text(short(blame.op))}</code><small>{_text(blame.group)}</small>",
                f"{blame.count:,}",
                _less(graph.total.clustered - blame.then.clustered, str),
                f"{blame.then.coverage:.1%}",
                _less(now.clusters - then.clusters, str),
                _less(now.tensors - then.tensors, str),
                _less(now.nbytes - then.nbytes, size) if graph.sizes_known else "?",
            ]
        )
    heads = ["operator", "#times", "#operations in XLA", "#η then", "#cuts"]
    heads += ["#tensors over borders", "#bytes over borders"]
    yield _table(heads, rows, "blame")


def _less(fewer: int, shown: Callable[[int], str]) -> str:
    if not fewer:
        return '<span class="zero">0</span>'
    return f"{MINUS if fewer > 0 else '+'}{_text(shown(abs(fewer)))}"


def _native(graph: Graph) -> Iterator[str]:
    if not graph.native:
        return
    yield f"<h3>Native: {counted(len(graph.native), 'operation')}</h3>"
    for group, numbers in text.by_reason(graph).items():
        reason = graph.nodes[numbers[0]].native
        kind = kind_of_reason(reason.code) if reason else ""
        yield (
            f'<details open class="reason {kind}"><summary>{_text(group)} '
            f"<b>{len(numbers):,}</b></summary>"
        )
        rows = []
        lines = list(text.by_line(graph, numbers).items())
        for site, made in lines[:_MOST_LINES]:
            ops = Counter(short(graph.nodes[n].target) for n in made)
            named = ", ".join(f"{n} {TIMES} {op}" if n > 1 else op for op, n in ops.items())
            inside = ", ".join(merged(filter(None, (graph.nodes[n].module for n in made))))
            code = f"<pre>{_text(site.code, 400)}</pre>" if site and site.code else ""
            where = _text(place(site)) if site else "line unknown"
            rows.append(
                [
                    f"<code>{_text(named, 400)}</code>",
                    f"{where}{code}",
                    f"<code>{_text(inside, 200)}</code>",
                ]
            )
        yield _table(["operators", "line", "module"], rows)
        if len(lines) > _MOST_LINES:
            yield f"<p>and {counted(len(lines) - _MOST_LINES, 'line')} more</p>"
        yield "</details>"


def _clusters(graph: Graph) -> Iterator[str]:
    if not graph.clusters:
        return
    yield f"<h3>{counted(len(graph.clusters), 'cluster')}</h3>"
    for number, cluster in enumerate(graph.clusters[:_MOST_CLUSTERS]):
        yield from _cluster(graph, number, cluster)
    if len(graph.clusters) > _MOST_CLUSTERS:
        yield f"<p>and {counted(len(graph.clusters) - _MOST_CLUSTERS, 'cluster')} more</p>"


def _cluster(graph: Graph, number: int, cluster: Cluster) -> Iterator[str]:
    terms = cluster.measured or cluster.predicted
    facts = [counted(graph.operations_in(cluster), "operation"), flops_shown(cluster.flops)]
    facts = facts if cluster.flops else facts[:1]
    if graph.sizes_known:
        sides = (cluster.inputs, cluster.outputs)
        into, out = (size(graph.bytes_of(c.node for c in side)) for side in sides)
        facts.append(f"{into} in, {out} out")
    if terms:
        facts.append(f"S = {terms.speedup:.2f}")
    opened = " open" if len(graph.clusters) <= 3 else ""
    yield f'<details{opened} class="card"><summary><b>CL-{number:02d}</b> {" · ".join(facts)}'
    yield f"<code>{_text(cluster.name)}</code></summary>"
    ops = (f"{n:,} {TIMES} {short(op)}" for op, n in graph.histogram(cluster))
    yield f'<p class="ops">{_text(", ".join(ops))}</p><dl>'
    for label, numbers in (("enters at", cluster.entry), ("leaves at", cluster.exit)):
        names = ", ".join(graph.nodes[n].name for n in numbers[:8])
        more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
        yield f"<dt>{label}</dt><dd><code>{_text(names)}</code>{more}</dd>"
    edge_bytes = graph.bytes_of(a for a, _ in cluster.edges)
    bytes_ = f", D(C) {size(edge_bytes)}" if graph.sizes_known else ""
    yield f"<dt>∂C</dt><dd>{counted(len(cluster.edges), 'edge')} to operations outside{bytes_}</dd>"
    if cluster.verdict:
        yield f"<dt>verdict</dt><dd>{_text(cluster.verdict)}</dd>"
    for label, one in (("predicted", cluster.predicted), ("measured", cluster.measured)):
        if one:
            yield f"<dt>S {label}</dt><dd>{_text(text.terms_shown(one))}</dd>"
    if cluster.compilation:
        yield f"<dt>compiled</dt><dd>in {duration(cluster.compilation.seconds)}</dd>"
        for name, sentence in optimised.sentences(cluster.compilation):
            yield f"<dt>{name}</dt><dd>{_text(sentence).replace('-&gt;', '→')}</dd>"
    yield "</dl>"
    for label, word, side in (("in", "from", cluster.inputs), ("out", "to", cluster.outputs)):
        yield from _crossings(graph, label, word, side)
    yield "</details>"


def _crossings(graph: Graph, label: str, word: str, side: Sequence[Crossing]) -> Iterator[str]:
    # The graph's own inputs, weights mostly, cost nothing to hand over: they come last.
    order = sorted(side, key=lambda c: graph.nodes[c.node].kind == "input")
    rows = []
    for crossing in order[:_MOST_TENSORS]:
        node = graph.nodes[crossing.node]
        kind = node.type + (f"@{node.device}" if node.device else "")
        others = ", ".join(_short_name(graph, other) for other in crossing.others[:6])
        others += f" and {len(crossing.others) - 6} more" if len(crossing.others) > 6 else ""
        rows.append(
            [
                f"<code>{_text(node.name)}</code>",
                f"<code>{_text(kind)}</code>",
                size(node.nbytes) if node.nbytes else "",
                f"<code>{_text(others)}</code>",
            ]
        )
    if not rows:
        return
    more = len(side) - len(rows)
    yield f"<details><summary>{counted(len(side), 'tensor')} {label}</summary>"
    yield _table(["tensor", "type", "#bytes", word], rows)
    yield (f"<p>and {counted(more, 'tensor')} more</p>" if more else "") + "</details>"


def _short_name(graph: Graph, other: str) -> str:
    number = graph.cluster_numbers.get(other)
    return other if number is None else f"CL-{number:02d}"


def _what_if(graph: Graph) -> Iterator[str]:
    if not graph.what_if:
        return
    yield "<h3>With another min_cluster_size</h3>"
    heads = ["min_cluster_size", "#clusters", "#η", "#tensors over borders", "#∂C edges"]
    heads += ["#bytes over borders"] if graph.sizes_known else []
    rows = []
    for least, total in graph.what_if:
        now = " <small>now</small>" if least == graph.min_size else ""
        row = [f"{least}{now}", f"{total.clusters:,}", f"{total.coverage:.1%}"]
        row += [f"{total.tensors:,}", f"{total.edges:,}"]
        rows.append(row + ([size(total.nbytes)] if graph.sizes_known else []))
    yield _table(heads, rows)


def _breaks(report: Report) -> Iterator[str]:
    if not report.breaks:
        return
    yield f"<section><h2>{counted(len(report.breaks), 'graph break')}</h2>"
    rows = []
    for one in report.breaks:
        code = f"<pre>{_text(one.site.code, 400)}</pre>" if one.site and one.site.code else ""
        where = _text(place(one.site)) if one.site else "at an unknown place"
        rows.append([f"{where}{code}", _text(one.headline)])
    yield _table(["line", "why"], rows) + "</section>"


def _text(value: str, longest: int = 2000) -> str:
    return escape(clean(value, longest), quote=True)
