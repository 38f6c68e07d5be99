"""From a cut graph to the report's plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import fx

from torch_galley.capture.encode import kind_of
from torch_galley.capture.fx import is_view
from torch_galley.cluster import blame
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.candidate import scopes
from torch_galley.cluster.clustered import Clustered, XlaCluster
from torch_galley.cluster.flops import flops
from torch_galley.cluster.judge import Choice, forecast
from torch_galley.cluster.operation import effective, is_operation, nbytes, size
from torch_galley.cluster.rates import in_force
from torch_galley.cluster.support import HasDevice, is_getitem, name_of
from torch_galley.cluster.terms import Terms
from torch_galley.core.site import module_path, site_of
from torch_galley.lower.symbol import cluster_symbols, first_seen, mentions_symbols
from torch_galley.run.decide import decider
from torch_galley.tools.report import peak, why
from torch_galley.tools.report.model import (
    Blame,
    Cluster,
    Compilation,
    Crossing,
    Graph,
    Node,
)
from torch_galley.tools.report.shown import duration

MOST_BLAMED = 32
"""Native operators, the most frequent, that are blamed: each costs two more partitions."""

_BLAMED_WORK = 60_000
"""Operators blamed times operations of the graph, at most, so that large graphs don't take long."""


def graph(
    clustered: Clustered,
    has_device: HasDevice,
    compilations: Mapping[str, Compilation] | None = None,
    measured: Mapping[str, Terms] | None = None,
) -> Graph:
    """Return the report of one cut graph.

    Args:
        clustered: the cut graph.
        has_device: whether jax has the counterpart of a torch device.
        compilations: what XLA made of clusters, by name.
        measured: the terms of S of clusters, by name.
    """
    order = list(clustered.captured.graph.graph.nodes)
    place = {node: number for number, node in enumerate(n for n in order if n.op != "output")}
    nodes = _nodes(clustered, place)
    operations = [node for node in place if is_operation(node)]
    number_of = {cluster.name: number for number, cluster in enumerate(clustered.clusters)}
    config = clustered.captured.config
    known = first_seen(operations)
    decide = decider(config)
    by_op = blame.culprits(clustered)
    most = max(1, min(MOST_BLAMED, _BLAMED_WORK // max(1, len(operations))))
    blamed = list(by_op.items())[:most]
    found = [
        Blame(
            op,
            group,
            len(names),
            blame.if_taken(clustered, has_device, names, all_kept=False, decide=decide),
            blame.if_taken(clustered, has_device, names, all_kept=True),
        )
        for (op, group), names in blamed
    ]
    rates, origin = in_force(config)
    verdicts = _verdicts(clustered)
    made = Graph(
        role=clustered.captured.role,
        fingerprint=clustered.captured.fingerprint,
        nodes=nodes,
        clusters=tuple(
            dataclasses.replace(
                cluster,
                verdict=verdicts[cluster.name],
                predicted=told,
                compilation=(compilations or {}).get(cluster.name),
                measured=(measured or {}).get(cluster.name),
            )
            for cluster, told in zip(
                _clusters(clustered, place, nodes),
                (forecast(clustered, cluster, rates) for cluster in clustered.clusters),
                strict=True,
            )
        ),
        steps=tuple(
            number_of[step.name] if isinstance(step, XlaCluster) else -1 - place[step]
            for step in clustered.steps
            if isinstance(step, XlaCluster) or is_operation(step)
        ),
        total=blame.total(clustered),
        unavoidable=clustered.unavoidable,
        uncut=blame.if_taken(clustered, has_device, all_kept=True),
        blame=ranked(found),
        unblamed=len(by_op) - len(blamed),
        what_if=tuple(blame.what_if(clustered, has_device, decide)),
        min_size=config.min_cluster_size,
        max_size=config.max_cluster_size,
        horizontal=config.horizontal,
        rates=origin if clustered.clusters else "",
        estimated=any(mentions_symbols(node.meta.get("val")) for node in operations),
        data_dependent=any(
            symbol not in known for c in clustered.clusters for symbol in cluster_symbols(c)
        ),
    )
    return finished(made)


def ranked(found: Iterable[Blame]) -> tuple[Blame, ...]:
    """Sort operators: the most to be gained first, of equals the more frequent."""
    return tuple(sorted(found, key=lambda b: (b.uncut.seconds, -b.then.clustered, -b.count)))


def finished(made: Graph) -> Graph:
    """Return the report with what follows from the rest of it: the peak, and warnings."""
    return dataclasses.replace(
        made, peak_bytes=peak.peak_bytes(made), warnings=tuple(why.warnings(made))
    )


def _nodes(clustered: Clustered, place: Mapping[fx.Node, int]) -> tuple[Node, ...]:
    atoms = Atoms.of(clustered.captured.graph.graph)
    before = {
        nodes[0]: tuple(place[atoms.members[v][0]] for v in sorted(atoms.dag.predecessors[number]))
        for number, nodes in enumerate(atoms.members)
    }
    listed = [nodes[0] for nodes in atoms.members]
    scope = dict(zip(listed, scopes(listed, clustered.captured.config), strict=False))
    return tuple(
        Node(
            node.name,
            _kind(node),
            name_of(node.target),
            tuple(place[source] for source in node.all_input_nodes),
            before.get(node, ()),
            kind_of(node.meta.get("val")),
            nbytes(node),
            flops(node),
            effective(node),
            is_view(node.target) or (is_getitem(node) and _of_a_view(node)),
            any(user.op == "output" for user in node.users),
            module_path(node.meta),
            site_of(node.meta),
            _device(node),
            scope.get(node) or "",
            clustered.native.get(node),
        )
        for node in place
    )


def _of_a_view(node: fx.Node) -> bool:
    source = node.args[0]
    return isinstance(source, fx.Node) and is_view(source.target)


def _kind(node: fx.Node) -> str:
    if node.op in ("placeholder", "get_attr"):
        return "input"
    if is_operation(node):
        return "operation"
    return "part" if is_getitem(node) else "number"


def _device(node: fx.Node) -> str:
    val = node.meta.get("val")
    values = val if isinstance(val, tuple | list) else [val]
    return next((str(v.device) for v in values if isinstance(v, torch.Tensor)), "")


def _clusters(
    clustered: Clustered, place: Mapping[fx.Node, int], nodes: Sequence[Node]
) -> Iterable[Cluster]:
    """Yield the clusters with who is on the other side of their borders."""
    takers: dict[fx.Node, list[str]] = {}
    givers: dict[fx.Node, str] = {}
    for cluster in clustered.clusters:
        for node in cluster.inputs:
            takers.setdefault(node, []).append(cluster.name)
        givers |= dict.fromkeys(cluster.outputs, cluster.name)
    computed = {node for cluster in clustered.clusters for node in cluster.nodes}

    def giver(node: fx.Node) -> str:
        if node.op in ("placeholder", "get_attr"):
            return "inputs"
        return givers.get(node, node.name)

    def others(node: fx.Node) -> tuple[str, ...]:
        natively = [
            "results" if user.op == "output" else user.name
            for user in node.users
            if user not in computed
        ]
        return tuple(dict.fromkeys([*takers.get(node, ()), *natively]))

    for cluster in clustered.clusters:
        inside = set(cluster.nodes)
        yield Cluster(
            cluster.name,
            tuple(place[node] for node in cluster.nodes),
            tuple(place[node] for node in cluster.entry),
            tuple(place[node] for node in cluster.exit),
            tuple(Crossing(place[node], (giver(node),)) for node in cluster.inputs),
            tuple(Crossing(place[node], others(node)) for node in cluster.outputs),
            tuple(
                (place[node], place[user])
                for node in cluster.nodes
                for user in node.users
                if user not in inside and user.op != "output"
            ),
            sum(nodes[place[node]].flops for node in cluster.nodes),
        )


_KEPT = {
    "model": "kept by the model",
    "measured": "kept by timing",
    "must_compile": "kept by must_compile",
    "undecided": "kept until it is timed at the first call",
}


def _verdicts(clustered: Clustered) -> dict[str, str]:
    """Return for each cluster, by name, why it is kept."""
    choices = {choice.name: choice for choice in clustered.choices}
    whole = _whole(choices["graph"]) if "graph" in choices else ""
    found = {}
    for cluster in clustered.clusters:
        choice = choices.get(cluster.name)
        if choice is None:
            found[cluster.name] = _by_size(clustered, cluster)
        else:
            speedup = f", S = {choice.speedup:.2f}" if choice.speedup else ""
            found[cluster.name] = f"{_KEPT[choice.by]}{speedup}{whole}"
    return found


def _by_size(clustered: Clustered, cluster: XlaCluster) -> str:
    config, count = clustered.captured.config, size(cluster.nodes)
    if count >= config.min_cluster_size:
        return f"kept by its size: {count} compute, min_cluster_size is {config.min_cluster_size}"
    return f"kept by {'require_full' if config.require_full else 'must_compile'}"


def _whole(choice: Choice) -> str:
    """Return what is to be said of the graph as a whole where that was in doubt."""
    if choice.by == "undecided":
        return "; the whole graph will be timed"
    times = ", ".join(f"{name} {duration(t)}" for name, t in sorted(choice.seconds.items()))
    return f"; the whole graph was timed: {times}"
