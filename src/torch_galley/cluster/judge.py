"""Does a cluster pay? S = ΣT_op / (T_fused + T_sync), predicted from the graph and the rates.

ΣT_op is what its operations take natively, one by one; T_fused what they take in one executable;
T_sync what its border costs: tensors that come from torch or go there. Parameters are handed over
once and count nothing, and what goes from cluster to cluster stays with XLA.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx

from torch_galley.capture.fx import PARAMETER, is_tensor
from torch_galley.cluster.candidate import must_compile
from torch_galley.cluster.operation import nbytes
from torch_galley.cluster.rates import Rates
from torch_galley.cluster.repeat import repeats
from torch_galley.cluster.support import is_getitem
from torch_galley.cluster.terms import Terms
from torch_galley.cluster.work import PASSES, counts, fuses, is_free, memory_kind, moved, op_name
from torch_galley.core.reasons import Reason, SlowerMeasured, Unprofitable, WholeElsewhere
from torch_galley.core.store import Fields

if TYPE_CHECKING:
    from torch_galley.cluster.clustered import Clustered, XlaCluster


@dataclass(frozen=True)
class Choice:
    """What was decided of a cluster, or of the whole graph, and on what grounds."""

    name: str
    """The cluster's name, "graph" for the whole."""
    kept: str
    """Of a cluster "cluster" or "native"; of a graph "clusters", "eager" or "inductor"."""
    by: str
    """"model", "measured", "must_compile", or "undecided": it will be timed at the first call."""
    forecast: Terms | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What was measured: medians, by what could have been kept."""
    key: str | None = None
    """The fingerprint under which it is remembered."""

    @property
    def speedup(self) -> float | None:
        """The measured S of a cluster; None if it was not measured."""
        native, cluster = (self.seconds.get(name) for name in ("native", "cluster"))
        return native / cluster if native and cluster else None

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        forecast = self.forecast.to_json() if self.forecast else None
        rest = {"name": self.name, "kept": self.kept, "by": self.by}
        return rest | {"forecast": forecast, "seconds": dict(self.seconds), "key": self.key}

    def reason(self) -> Reason | None:
        """Return why a cluster's operations are native; None if it is kept."""
        if self.kept in ("cluster", "clusters"):
            return None
        if self.name == "graph":
            microseconds = [1e6 * self.seconds.get(n, 0.0) for n in (self.kept, "clusters")]
            return WholeElsewhere(self.kept, *(round(s, 1) for s in microseconds))
        if self.by == "measured":
            pair = (1e6 * self.seconds[name] for name in ("cluster", "native"))
            return SlowerMeasured(*(round(s, 1) for s in pair))
        assert self.forecast is not None
        terms = (self.forecast.t_ops, self.forecast.t_fused, self.forecast.t_sync)
        return Unprofitable(round(self.forecast.speedup, 3), *(round(1e6 * t, 1) for t in terms))


def choice_from_json(fields: Fields) -> Choice:
    """Return the choice for what `Choice.to_json` gave.

    Raises:
        ToolError: a field is missing or of a wrong type.
    """
    told = fields.data.get("forecast")
    terms = fields.inside("forecast") if told is not None else None
    return Choice(
        fields.get("name", str),
        fields.get("kept", str),
        fields.get("by", str),
        Terms(*(terms.get(name, float) for name in ("t_ops", "t_fused", "t_sync")))
        if terms
        else None,
        fields.get("seconds", dict),
        fields.data.get("key"),
    )


def reasons_against(choices: Sequence[Choice], names: Iterable[str]) -> dict[str, Reason]:
    """Return why clusters, by name, are not kept: each for itself, or the graph as a whole."""
    found = {choice.name: choice.reason() for choice in choices}
    found = {name: found.get("graph") or found.get(name) for name in names}
    return {name: reason for name, reason in found.items() if reason is not None}


def by_model(clustered: Clustered, rates: Rates, least: float) -> tuple[Choice, ...]:
    """Return for each cluster whether it is kept: its S is at least `least`, or it must be."""
    found = []
    for cluster in clustered.clusters:
        told = forecast(clustered, cluster, rates)
        if any(must_compile(cluster.nodes, clustered.captured.config)):
            found.append(Choice(cluster.name, "cluster", "must_compile", told))
        else:
            kept = "cluster" if told.speedup >= least else "native"
            found.append(Choice(cluster.name, kept, "model", told))
    return tuple(found)


def forecast(clustered: Clustered, cluster: XlaCluster, rates: Rates) -> Terms:
    """Return the predicted terms of a cluster of a graph, all other clusters being kept."""
    return Terms(
        natively(cluster.nodes, rates), fused(cluster, rates), sync(clustered, cluster, rates)
    )


def whole(clustered: Clustered, rates: Rates) -> Terms:
    """Return the terms of a whole graph: all natively, against its clusters and the rest natively.

    T_fused contains what stays native.
    """
    graph = clustered.captured.graph.graph
    calls = _calls(graph)
    told = [forecast(clustered, cluster, rates) for cluster in clustered.clusters]
    rest = natively(clustered.native, rates)
    inside = sum(one.t_fused for one in told)
    return Terms(natively(calls, rates), max(inside + rest, 1e-9), sum(o.t_sync for o in told))


def natively(nodes: Iterable[fx.Node], rates: Rates) -> float:
    """Return ΣT_op of nodes."""
    return sum(_natively(node, rates) for node in nodes)


def _natively(node: fx.Node, rates: Rates) -> float:
    if is_getitem(node) or not _computes(node):
        return 0.0
    if inside := list(repeats(node)):
        return rates.native + sum(times * natively(_calls(g), rates) for g, times in inside)
    work = {kind: amount * rates.work[kind][0] for kind, amount in counts(node).items()}
    return rates.native + max(sum(work.values()), _memory(moved(node), rates, 0))


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _computes(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return is_tensor(node) or isinstance(val, tuple | list)


def _memory(sizes: Iterable[int], rates: Rates, side: int) -> float:
    return sum(size * rates.work[memory_kind(size)][side] for size in sizes)


def fused(cluster: XlaCluster, rates: Rates) -> float:
    """Return T_fused: what XLA's fusions, products, convolutions, sorts take, one after another."""
    outputs = set(cluster.outputs)
    kernels = [_kernel(group, outputs, rates) for group in groups(cluster.nodes)]
    more = sum(1 for seconds in kernels if seconds) - 1
    return rates.call + rates.kernel * max(more, 0) + sum(kernels)


def _kernel(group: Sequence[fx.Node], outputs: Set[fx.Node], rates: Rates) -> float:
    """Return what XLA takes for what it computes together; nothing for views of other kernels'."""
    busy = [node for node in group if not is_free(node)]
    if not busy:
        return _memory([nbytes(node) for node in group if node in outputs], rates, 1)
    if inside := [each for node in busy for each in repeats(node)]:
        return sum(times * _turn(graph, rates) for graph, times in inside)
    work = sum(
        amount * rates.work[kind][1] for node in busy for kind, amount in counts(node).items()
    )
    sizes = moved(group[0]) if len(group) == 1 else _across(group, outputs)
    for node in busy:
        again = PASSES.get(op_name(node), 1) - 1
        sizes += again * [nbytes(arg) for arg in node.all_input_nodes[:1]]
    return max(work, _memory(sizes, rates, 1))


def _turn(graph: fx.Graph, rates: Rates) -> float:
    """Return what one run of a branch or a loop's body takes inside an executable."""
    results = {node for node in graph.nodes if any(user.op == "output" for user in node.users)}
    kernels = [_kernel(group, results, rates) for group in groups(_calls(graph))]
    return sum(kernels) + rates.kernel * sum(1 for seconds in kernels if seconds)


def _across(group: Sequence[fx.Node], outputs: Set[fx.Node]) -> list[int]:
    """Return the bytes of each tensor that a group reads or writes."""
    inside = set(group)
    read: dict[fx.Node, int] = defaultdict(int)
    for node in group:
        for arg in node.all_input_nodes:
            if is_tensor(arg) and arg not in inside:
                read[arg] += nbytes(node) if is_free(node) else nbytes(arg)
    sizes = [min(size, nbytes(arg)) for arg, size in read.items()]
    return sizes + [
        nbytes(node)
        for node in group
        if node in outputs or any(user not in inside for user in node.users)
    ]


def groups(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Forecast XLA's fusions: which nodes are computed together.

    Elementwise operations, casts and views go with what they read, if that is of this kind too,
    and end at reductions. Everything else (products, convolutions, sorts, ...) is alone.
    """
    group: dict[fx.Node, list[fx.Node]] = {}
    ends = {node for node in nodes if not fuses(node)}
    for node in nodes:
        group[node] = [node]
        if node in ends and op_name(node) not in PASSES:
            continue
        for arg in node.all_input_nodes:
            other = group.get(arg)
            if other is None or other is group[node] or arg in ends:
                continue
            other.extend(group[node])
            for member in group[node]:
                group[member] = other
    return list({id(members): members for members in group.values()}.values())


def sync(clustered: Clustered, cluster: XlaCluster, rates: Rates) -> float:
    """Return T_sync: tensors that come in from torch, parameters apart, and those that go there."""
    brought, taken = crossing(clustered, cluster)
    return rates.bring * len(brought) + rates.take * len(taken)


def crossing(
    clustered: Clustered, cluster: XlaCluster
) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
    """Return what a cluster gets from torch, parameters apart, and what torch gets from it."""
    made = clustered.given
    brought = tuple(
        node for node in cluster.inputs if node not in made and not node.meta.get(PARAMETER)
    )
    natives = clustered.native_nodes
    taken = tuple(
        node
        for node in cluster.outputs
        if any(user.op == "output" or user in natives for user in node.users)
    )
    return brought, taken
