"""Which clusters are kept where that is measured: by what is remembered, else by the model.

A region's fingerprint is its program, the shapes, dtypes and layouts of its inputs, what crosses
its border to and from torch, and what computes (versions, threads, device). A graph's is its
program, how it is cut, and the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_galley.capture.body import bodies
from torch_galley.capture.fx import is_shape_number
from torch_galley.cluster import judge
from torch_galley.cluster.clustered import Clustered, XlaCluster
from torch_galley.cluster.judge import Choice
from torch_galley.cluster.operation import size
from torch_galley.cluster.partition import Decide
from torch_galley.cluster.rates import Rates
from torch_galley.cluster.support import draws, is_getitem
from torch_galley.compile.key import digests, fingerprint, program_text
from torch_galley.core.config import Config
from torch_galley.core.machine import versions
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import cluster_symbols, first_seen
from torch_galley.ops.draw import SEED, of_torch
from torch_galley.ops.registry import lookup, revision
from torch_galley.ops.schema import written_by
from torch_galley.run.decisions import Decision, Decisions

Sizes = Mapping[sympy.Symbol, Any]
"""The sizes first seen, by symbol."""


def decider(config: Config) -> Decide | None:
    """Return what decides of a graph's clusters; None where the model alone does."""
    if config.decide not in ("measure", "replay"):
        return None
    decisions = Decisions.of(config)

    def decide(clustered: Clustered, rates: Rates) -> tuple[Choice, ...]:
        told = judge.by_model(clustered, rates, config.min_speedup)
        if not told:
            return ()
        # Of a graph that is one cluster and no more, the graph's decision is the cluster's.
        alone = len(told) == 1 and not clustered.native
        sizes = first_seen(clustered.captured.graph.graph.nodes)
        found = [
            choice if alone else _of_region(clustered, cluster, choice, decisions, sizes)
            for cluster, choice in zip(clustered.clusters, told, strict=True)
        ]
        wanted = any(choice.by == "must_compile" for choice in told)
        whole = None if wanted else _of_graph(clustered, rates, decisions, sizes)
        if alone and whole is not None:  # either it is timed, or it was
            found = [replace(found[0], kept="cluster", by=whole.by)]
        return (*found, *((whole,) if whole else ()))

    return decide


def _of_region(
    clustered: Clustered,
    cluster: XlaCluster,
    told: Choice,
    decisions: Decisions,
    sizes: Sizes,
) -> Choice:
    """Return what is remembered of a cluster, else that it will be timed, else the prediction."""
    config = clustered.captured.config
    key = region_key(clustered, cluster, sizes)
    if key is None or told.by == "must_compile":
        return told
    if (known := decisions.get(key)) is not None and known.kept in ("cluster", "native"):
        return replace(told, kept=known.kept, by="measured", seconds=known.seconds, key=key)
    doubtful = told.forecast is not None and told.forecast.doubtful
    if config.decide == "measure" and (config.time_all or doubtful):
        return replace(told, kept="cluster", by="undecided", key=key)
    return told


def _of_graph(
    clustered: Clustered, rates: Rates, decisions: Decisions, sizes: Sizes
) -> Choice | None:
    """Return what is remembered of a graph, or that it will be timed; None if neither."""
    config = clustered.captured.config
    inductor = config.native == "inductor"
    told = judge.whole(clustered, rates)
    key = graph_key(clustered, sizes)
    known = decisions.get(key)
    if known is not None and known.kept in ("clusters", "eager", "inductor"):
        complete = "inductor" in (*known.seconds, *known.failed) or not inductor
        allowed = {n: s for n, s in known.seconds.items() if inductor or n != "inductor"}
        if complete or config.decide == "replay":
            kept = known.kept if known.kept in allowed else fastest(allowed, "clusters")
            return Choice("graph", kept, "measured", told, known.seconds, key)
    if config.decide == "replay" or not repeatable(clustered.captured.graph.graph):
        return None
    if config.time_all or told.doubtful or inductor:
        return Choice("graph", "clusters", "undecided", told, key=key)
    return None


MARGIN = 1.02
"""What was preferred before measuring stays if it is at most so many times slower: that is noise,
and a decision should not hang on it."""


def fastest(seconds: dict[str, float], preferred: str) -> str:
    """Return the name of the shortest time, or of the preferred one if that is as good as it.

    Example:
        >>> fastest({"cluster": 1.01, "native": 1.0}, "cluster")
        'cluster'
    """
    best = min(seconds, key=seconds.__getitem__)
    close = preferred in seconds and seconds[preferred] <= MARGIN * seconds[best]
    return preferred if close else best


def region_key(clustered: Clustered, cluster: XlaCluster, known: Sizes) -> str | None:
    """Return a region's fingerprint for sizes that are known; None if some are not."""
    symbols = cluster_symbols(cluster)
    if not symbols <= set(known):
        return None
    bindings = {symbol: known[symbol] for symbol in symbols}
    arguments = [Argument.of(node, bindings) for node in cluster.inputs]
    brought, taken = judge.crossing(clustered, cluster)
    border = [cluster.inputs.index(node) for node in brought]
    border += [-1, *(cluster.outputs.index(node) for node in taken)]
    sizes = sorted((str(symbol), value) for symbol, value in bindings.items())
    checks = clustered.captured.config.check_indices
    program = (program_text(cluster), *digests(cluster.nodes))
    return fingerprint(*program, arguments, border, sizes, checks, versions())


def graph_key(clustered: Clustered, known: Sizes) -> str:
    """Return a graph's fingerprint, for sizes that are known."""
    captured = clustered.captured
    cut = [[node.name for node in cluster.nodes] for cluster in clustered.clusters]
    sizes = sorted((str(symbol), value) for symbol, value in known.items())
    program = (captured.text(), *digests(captured.graph.graph.nodes))
    return fingerprint(*program, cut, sizes, captured.config.check_indices, versions())


def repeatable(graph: fx.Graph) -> bool:
    """Whether a graph may be run twice: it computes, and at most draws from torch's generator."""
    return all(map(_is_repeatable, (n for n in graph.nodes if n.op == "call_function")))


def _is_repeatable(node: fx.Node) -> bool:
    target = node.target
    if is_getitem(node) or is_shape_number(node):
        return True
    # What may be in XLA is a function, and the draws are functions of their seed.
    if revision(target) or target is SEED or of_torch(target) is not None:
        return True
    if isinstance(target, HigherOrderOperator) and lookup(target) and not node.kwargs:
        return all(repeatable(body.graph) for body in bodies(node).values())
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if draws(target):
        return node.kwargs.get("generator") is None
    return not written_by(target)


def decision(
    clustered: Clustered,
    cluster: XlaCluster | None,
    seconds: dict[str, float],
    failed: Sequence[str] = (),
) -> Decision:
    """Return the decision that follows from times, of a cluster or, without one, of the graph."""
    preferred = "cluster" if cluster else "clusters"
    nodes = cluster.nodes if cluster else tuple(clustered.captured.graph.graph.nodes)
    count = size(nodes)
    role = clustered.captured.role
    counted = f"{count} operation{'' if count == 1 else 's'}"
    what = counted if cluster else f"{role} graph of {counted}"
    return Decision(fastest(seconds, preferred), seconds, what, tuple(failed))
