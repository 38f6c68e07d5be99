"""Why an operation is where it is, and why two are not together: answered from the report alone.

Two clusters could be one unless a path leaves one of them and comes back to the other: run as one
executable, it would have to wait for itself. Such a path is the witness. One that goes from
operation to operation, over a native one, holds for every partition. Otherwise the path may go
into a cluster at one operation and leave it at another: it runs as a whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch_galley.cluster.report import size
from torch_galley.cluster.terms import DOUBT
from torch_galley.core.errors import ToolError
from torch_galley.core.words import counted
from torch_galley.tools.report.model import Blame, Graph
from torch_galley.tools.report.shown import place, printable

_PAIRS = 200
"""Pairs of neighbouring clusters that warnings look at."""


@dataclass(frozen=True)
class WhyNot:
    """Why two operations are in no cluster together."""

    a: str
    b: str
    cause: str
    """"together", "native", "path", "device", "scope", "size", "levels", "no edge" or "budget"."""
    sentence: str
    path: tuple[str, ...] = ()
    """From one to the other: each step is a dependency, or stays inside one cluster."""
    native: tuple[str, ...] = ()
    """Those on the path that run natively."""
    lines: tuple[str, ...] = ()
    """The path for people: names, where they run, source lines."""

    def text(self) -> str:
        """Return the answer as text."""
        return printable("\n".join([self.sentence, *(f"  {line}" for line in self.lines)]))

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            "a": self.a,
            "b": self.b,
            "cause": self.cause,
            "sentence": self.sentence,
            "path": list(self.path),
            "native": list(self.native),
        }

    def __str__(self) -> str:
        return self.text()


class _Groups:
    """The graph in which each cluster, and each native operation, is one vertex."""

    def __init__(self, graph: Graph):
        self.graph = graph
        count = len(graph.clusters)
        steps = [step if step >= 0 else count + n for n, step in enumerate(graph.steps)]
        self.rank = {group: at for at, group in enumerate(steps)}
        self.native = {
            count + at: -1 - step for at, step in enumerate(graph.steps) if step < 0
        }  # group to node
        alone = {node: group for group, node in self.native.items()}
        self.members: dict[int, list[int]] = {g: [node] for g, node in self.native.items()}
        for number, cluster in enumerate(graph.clusters):
            inside = (n for n in cluster.nodes if graph.nodes[n].kind == "operation")
            self.members[number] = list(inside)
        self.entered: dict[int, dict[int, tuple[int, int]]] = {g: {} for g in self.members}
        """For each group those that it waits for, with an edge by which it does."""
        for group, members in self.members.items():
            inside = set(members)
            for node in members:
                for source in graph.nodes[node].before:
                    if source not in inside:
                        giver = alone.get(source, next(iter(graph.homes.get(source, ())), group))
                        if giver != group:
                            self.entered[group].setdefault(giver, (source, node))

    def hard(self, group: int) -> bool:
        """Whether a group is an operation that XLA can't take."""
        node = self.native.get(group)
        return node is not None and self.graph.nodes[node].refused

    def second_path(self, start: int, end: int) -> list[int] | None:
        """Return a path over other groups: of all, one over the most that XLA can't take.

        On the longest path every step is an edge that nothing else joins the ends of. If both
        were clusters they would have been merged, so native operations are found if there are any.
        """
        best: dict[int, tuple[int, int, int]] = {start: (0, 0, start)}
        window = [
            g
            for g, at in sorted(self.rank.items(), key=lambda item: item[1])
            if self.rank[start] < at <= self.rank[end]
        ]
        for group in window:
            for source in self.entered[group]:
                if source in best and not (group == end and source == start):
                    hard, length, _ = best[source]
                    found = (hard + self.hard(group), length + 1, source)
                    if group not in best or found[:2] > best[group][:2]:
                        best[group] = found
        if end not in best:
            return None
        walk = [end]
        while walk[-1] != start:
            walk.append(best[walk[-1]][2])
        return walk[::-1]

    def spelled(self, walk: list[int]) -> list[int]:
        """Return a walk over groups as nodes: where each group is entered and left."""
        nodes: list[int] = []
        for source, target in pairwise(walk):
            for node in self.entered[target][source]:
                if not nodes or nodes[-1] != node:
                    nodes.append(node)
        return nodes


def why_not(graphs: Iterable[Graph], a: str, b: str) -> WhyNot:
    """Return why two operations are in no cluster together; see Report.why_not."""
    graphs = list(graphs)
    for graph in graphs:
        if a in graph.index and b in graph.index:
            return _why_not(graph, _operation(graph, a), _operation(graph, b))
    for name in (a, b):
        _find(graphs, name)
    raise ToolError(f"{a} and {b} are in different graphs", hint="graphs never share a cluster")


def _find(graphs: Iterable[Graph], name: str) -> tuple[Graph, int]:
    known: list[str] = []
    for graph in graphs:
        if name in graph.index:
            return graph, graph.index[name]
        known += graph.index
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "the report lists the names"
    raise ToolError(f"no operation is named {name!r}", hint=hint)


def _operation(graph: Graph, name: str) -> int:
    """Return an operation by its name or that of one of its results."""
    number = graph.index[name]
    while graph.nodes[number].kind == "part" and graph.nodes[number].inputs:
        number = graph.nodes[number].inputs[0]
    if graph.nodes[number].kind != "operation":
        kind = "an input of the graph" if graph.nodes[number].kind == "input" else "a number"
        raise ToolError(f"{name} is {kind}: nothing computes it", hint="name an operation")
    return number


def _why_not(graph: Graph, a: int, b: int) -> WhyNot:
    one, two = graph.nodes[a], graph.nodes[b]

    def answer(cause: str, sentence: str, path: Iterable[int] = ()) -> WhyNot:
        path = tuple(path)
        names = tuple(graph.nodes[n].name for n in path)
        native = tuple(graph.nodes[n].name for n in path if graph.nodes[n].native)
        lines = tuple(_told(graph, n) for n in path)
        return WhyNot(one.name, two.name, cause, sentence, names, native, lines)

    places = [graph.homes.get(n, ()) for n in (a, b)]
    if shared := set(places[0]) & set(places[1]):
        name = graph.clusters[min(shared)].name
        return answer("together", f"{one.name} and {two.name} are together, in {name}")
    natives = [n for n, at in zip((a, b), places, strict=True) if not at]
    if natives:
        path = _hard_path(graph, a, b) or _hard_path(graph, b, a) or ()
        said = " and ".join(_native_sentence(graph, n) for n in dict.fromkeys(natives))
        refused = any(graph.nodes[n].refused for n in natives)
        return answer("native", said, () if refused else path)
    c, d = places[0][0], places[1][0]
    names = f"{one.name} is in {graph.clusters[c].name}, {two.name} in {graph.clusters[d].name}"
    if limit := _apart(graph, c, d):
        return answer(limit[0], f"{names}: {limit[1]}")
    for start, end in ((a, b), (b, a)):
        if path := _hard_path(graph, start, end):
            via = next(graph.nodes[n] for n in path if graph.nodes[n].refused)
            said = f"between them {via.name} runs natively, and one executable can't wait for it"
            return answer("path", f"{names}: {said}", path)
    cause, sentence, path = _clusters_apart(_Groups(graph), c, d, names)
    return answer(cause, sentence, path)


def _clusters_apart(groups: _Groups, c: int, d: int, names: str) -> tuple[str, str, list[int]]:
    """Say why two clusters are not one, though no native operation lies between the two nodes."""
    graph = groups.graph
    start, end = sorted((c, d), key=groups.rank.__getitem__)
    if walk := groups.second_path(start, end):
        path = groups.spelled(walk)
        inner = [groups.native[g] for g in walk if g in groups.native]
        if inner:
            hard = [n for n in inner if graph.nodes[n].refused] or inner
            via = graph.nodes[hard[0]].name
            said = f"the clusters can't be one, {via} runs natively between them"
            return "path", f"{names}: {said}", path
        for one, two in pairwise(walk):
            if limit := _apart(graph, one, two):
                pair = f"{graph.clusters[one].name} and {graph.clusters[two].name}"
                said = f"between them is another cluster, and {pair} are kept apart: {limit[1]}"
                return limit[0], f"{names}: {said}", path
        cause = "levels" if graph.horizontal else "budget"
        return cause, f"{names}: other clusters lie between them; {_SAID[cause]}", path
    if graph.max_size:
        both = sum(len(groups.members[n]) for n in (c, d))
        if both > graph.max_size:
            limit = f"together they have {both} operations, and max_cluster_size={graph.max_size}"
            return "size", f"{names}: {limit}", []
    if graph.horizontal:
        return "levels", f"{names}: {_SAID['levels']}", []
    joined = start in groups.entered[end] or end in groups.entered[start]
    cause = "budget" if joined else "no edge"
    return cause, f"{names}: {_SAID[cause]}", []


_SAID = {
    "budget": "nothing in the finished cut keeps them apart, but when they might have been merged "
    "the search for a second path between them found one or gave up",
    "levels": "nothing keeps them apart, but a cheaper border was found with them apart",
    "no edge": "no dependency joins them; the setting horizontal lets such clusters be one",
}


def _apart(graph: Graph, c: int, d: int) -> tuple[str, str] | None:
    """Return which limit keeps two groups apart whatever lies between them."""
    if max(c, d) >= len(graph.clusters):
        return None
    groups = [[graph.nodes[n] for n in graph.clusters[g].nodes] for g in (c, d)]
    devices = [sorted({node.device for node in nodes} - {""}) for nodes in groups]
    if devices[0] and devices[1] and devices[0] != devices[1]:
        return "device", f"they are on {' and '.join(map(', '.join, devices))}"
    scopes = [sorted({node.scope for node in nodes} - {""}) for nodes in groups]
    if scopes[0] and scopes[1] and scopes[0] != scopes[1]:
        return "scope", f"they are in the scopes {' and '.join(map(', '.join, scopes))}"
    return None


def _hard_path(graph: Graph, a: int, b: int) -> list[int] | None:
    """Return a shortest path of dependencies from a to b over one that XLA can't take."""
    if a >= b:
        return None
    readers: dict[int, list[int]] = {}
    for number in range(a + 1, b + 1):
        for source in graph.nodes[number].before:
            if source >= a:
                readers.setdefault(source, []).append(number)
    came: dict[tuple[int, bool], tuple[int, bool] | None] = {(a, False): None}
    queue = [(a, False)]
    for state in queue:
        node, passed = state
        if state == (b, True):
            walk = [node]
            step = came[state]
            while step is not None:
                walk.append(step[0])
                step = came[step]
            return walk[::-1]
        for reader in readers.get(node, ()):
            ahead = (reader, passed or (reader != b and graph.nodes[reader].refused))
            if ahead not in came:
                came[ahead] = state
                queue.append(ahead)
    return None


def _native_sentence(graph: Graph, number: int) -> str:
    node = graph.nodes[number]
    if node.native is None:
        return f"{node.name} is computed nowhere: nothing reads it"
    return f"{node.name} runs natively: {node.native}"


def _where(graph: Graph, number: int) -> str:
    node = graph.nodes[number]
    homes = graph.homes.get(number, ())
    if homes:
        return ", ".join(graph.clusters[n].name for n in homes)
    return f"native: {node.native}" if node.native else node.kind


def _told(graph: Graph, number: int) -> str:
    node = graph.nodes[number]
    at = f" at {place(node.site)}" if node.site else ""
    return f"{node.name} ({node.target}; {_where(graph, number)}){at}"


def explain(graphs: Iterable[Graph], name: str) -> str:
    """Return the chain of decisions about an operation; see Report.explain."""
    graph, number = _find(graphs, name)
    number = _operation(graph, graph.nodes[number].name)
    return printable("\n".join(_chain(graph, number)))


def _chain(graph: Graph, number: int) -> Iterator[str]:
    node = graph.nodes[number]
    bytes_ = f", {size(node.nbytes)}" if node.nbytes else ""
    kind = f" -> {node.type}{bytes_}" if node.type else ""
    yield f"{node.name}: {node.target}{kind}, {graph.role} graph {graph.fingerprint}"
    if node.site:
        yield f"  at {place(node.site)}" + (f": {node.site.code}" if node.site.code else "")
    if node.module:
        yield f"  in module {node.module}"
    if node.refused and node.native:
        yield f"  1. kept out of XLA: {node.native}"
        yield "  2. it runs natively"
        for blame in graph.blame:
            if (blame.op, blame.group) == (node.target, node.native.group):
                yield f"  if XLA took {node.target}: {gain(graph, blame)}"
        return
    yield "  1. XLA can take it"
    homes = graph.homes.get(number, ())
    if node.native is not None:
        yield f"  2. {node.native}"
        also = ", ".join(graph.clusters[n].name for n in homes)
        yield "  3. it runs natively" + (f" for native readers, and in {also}" if also else "")
        return
    if not homes:
        yield "  2. nothing reads it: it is left out"
        return
    cluster = graph.clusters[homes[0]]
    yield (
        f"  2. it is in {cluster.name}, of {counted(graph.operations_in(cluster), 'operation')}, "
        f"{graph.effective_in(cluster)} of which compute"
    )
    if len(homes) > 1:
        more = ", ".join(graph.clusters[n].name for n in homes[1:])
        yield f"  3. it is cheap, and computed again in {more}"
    beside = _beside(graph, number)
    for other, at in beside.items():
        yield f"  {at} {_told(graph, other)}"


def _beside(graph: Graph, number: int) -> Mapping[int, str]:
    """Return neighbours that are not with an operation, as reads or readers."""
    mine = set(graph.homes.get(number, ()))
    found = {
        source: "reads from outside"
        for source in graph.nodes[number].before
        if not mine & set(graph.homes.get(source, ()))
    }
    for reader in graph.operations:
        if number in graph.nodes[reader].before and not mine & set(graph.homes.get(reader, ())):
            found[reader] = "read outside by"
    return found


def gain(graph: Graph, blame: Blame) -> str:
    """Return for people what would be if XLA could take an operator."""
    more = blame.then.clustered - graph.total.clustered
    fewer = graph.uncut.clusters - blame.uncut.clusters
    less = graph.uncut.nbytes - blame.uncut.nbytes
    said = [f"{counted(more, 'operation')} more in XLA"]
    if fewer:
        said.append(f"{counted(abs(fewer), 'cut')} {'fewer' if fewer > 0 else 'more'}")
    if less and graph.sizes_known:
        said.append(f"{size(abs(less))} {'less' if less > 0 else 'more'} over borders")
    return ", ".join(said)


def warnings(graph: Graph) -> Iterator[str]:
    """Yield what about a partition its user should look at."""
    tiny = [c.name for c in graph.clusters if graph.effective_in(c) < 4]
    if tiny:
        named = ", ".join(tiny[:4]) + (" and others" if len(tiny) > 4 else "")
        yield f"{counted(len(tiny), 'cluster')} of fewer than 4 operations that compute: {named}"
    for cluster in graph.clusters:
        terms = cluster.measured or cluster.predicted
        sure = cluster.measured or (terms and terms.speedup < 1 / DOUBT)
        if terms and sure and terms.t_sync > terms.t_fused:
            bound = "is" if cluster.measured else "is predicted to be"
            yield (
                f"{cluster.name} {bound} bound by its border: T_sync {terms.t_sync * 1e6:.0f} µs, "
                f"T_fused {terms.t_fused * 1e6:.0f} µs"
            )
    groups = _Groups(graph)
    count = len(graph.clusters)
    pairs = [(a, b) for b in range(count) for a in groups.entered[b] if a < count]
    for a, b in pairs[:_PAIRS]:
        one, two = graph.clusters[a].name, graph.clusters[b].name
        if not _apart(graph, a, b) and _clusters_apart(groups, a, b, "")[0] == "budget":
            yield f"{one} and {two} could perhaps be one: {_SAID['budget']}"
    if graph.unblamed:
        yield f"blame was not computed for the {graph.unblamed} rarest native operators"
