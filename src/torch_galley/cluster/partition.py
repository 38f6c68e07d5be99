"""Captured -> Clustered: candidates with Reasons, contraction, size rule, borders, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import fx

from torch_galley.capture.fx import Captured, is_shape_number, is_tensor
from torch_galley.cluster import report, save
from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.cluster.operation import effective, is_operation
from torch_galley.cluster.support import HasDevice, draws, is_getitem, support
from torch_galley.core.reasons import Reason, TooSmall


@dataclass(frozen=True)
class XlaCluster:
    """Operations that XLA compiles as one executable."""

    name: str
    """"xla_" + the graph's fingerprint + a number."""
    nodes: tuple[fx.Node, ...]
    """The operations, in graph order."""
    inputs: tuple[fx.Node, ...]
    """Tensors that come from outside, in order of first use."""
    outputs: tuple[fx.Node, ...]
    """Tensors that are used outside, in graph order."""

    @cached_property
    def entry(self) -> tuple[fx.Node, ...]:
        """Operations none of whose inputs is made inside."""
        inside = set(self.nodes)
        return tuple(n for n in self.nodes if not inside.intersection(n.all_input_nodes))

    @cached_property
    def exit(self) -> tuple[fx.Node, ...]:
        """Operations that no operation inside uses."""
        inside = set(self.nodes)
        return tuple(n for n in self.nodes if not inside.intersection(n.users))


@dataclass(frozen=True)
class Clustered:
    """A captured graph cut into clusters and a native remainder."""

    captured: Captured
    clusters: tuple[XlaCluster, ...]
    native: Mapping[fx.Node, Reason]
    """Each native operation and why it is native. getitem of a native producer is not listed."""
    steps: tuple[XlaCluster | fx.Node, ...]
    """Clusters and native nodes (getitem included) in an order that respects every dependency."""
    failed: Mapping[str, Reason] = field(default_factory=dict)
    """Nodes, by name, that an earlier attempt could not lower."""

    @property
    def operations(self) -> int:
        """Operations in all: |V_all|, symbolic numbers and getitem not counted."""
        return sum(map(is_operation, self.captured.graph.graph.nodes))

    @property
    def clustered_operations(self) -> int:
        """Operations in clusters: |V_C|."""
        return sum(is_operation(node) for c in self.clusters for node in c.nodes)

    @property
    def coverage(self) -> float:
        """η = |V_C| / |V_all|, 1.0 for an empty graph."""
        return self.clustered_operations / self.operations if self.operations else 1.0

    def text(self) -> str:
        """Return the partition as a page of text."""
        return report.text(self)

    def to_json(self) -> dict[str, Any]:
        """Return the partition as plain data."""
        return report.to_json(self)

    def save(self, folder: str | Path) -> Path:
        """Write the partition, and the graph that it cuts, into a folder.

        Raises:
            ToolError: the graph can't be saved, or the folder not written.
        """
        return save.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Clustered:
        """Read what `save` wrote. Equal in text and JSON.

        Raises:
            ToolError: no such folder, or a file in it is corrupt or foreign.
        """
        captured, parts, native, order, failed = save.load(folder)
        clusters = tuple(XlaCluster(*part) for part in parts)
        step: dict[str, XlaCluster | fx.Node] = {n.name: n for n in captured.graph.graph.nodes}
        step |= {cluster.name: cluster for cluster in clusters}
        return cls(captured, clusters, native, tuple(step[name] for name in order), failed)


def partition(
    captured: Captured, has_device: HasDevice, failed: Mapping[str, Reason] | None = None
) -> Clustered:
    """Cut a graph into clusters.

    Args:
        captured: the graph.
        has_device: whether jax has the counterpart of a torch device.
        failed: nodes, by name, that must stay native because lowering them failed.
    """
    failed = failed or {}
    config = captured.config
    dag, members = _build(captured.graph.graph)
    reasons: list[Reason | None] = [
        failed.get(atom[0].name) or support(atom[0], config, has_device) for atom in members
    ]
    clusters = contract(dag, [reason is None for reason in reasons])
    if len(clusters) > 1 and all(reason is None for reason in reasons):
        # Nothing runs between the parts of a graph that XLA takes whole, so separate executables
        # would only add calls. (With native operations about, joining parts that no edge joins
        # could make one wait for what only the other needs.)
        clusters = [list(range(len(members)))]
    kept = []
    for cluster in clusters:
        size = sum(effective(members[v][0]) for v in cluster)
        if size >= config.min_cluster_size:
            kept.append(cluster)
        else:
            for v in cluster:
                reasons[v] = TooSmall(size, config.min_cluster_size)
    check(dag, kept)
    return _emit(captured, dag, members, kept, reasons, failed)


def _build(graph: fx.Graph) -> tuple[Dag, list[list[fx.Node]]]:
    """Return the dependency graph and, for each vertex, its nodes: a producer and its getitems.

    Symbolic numbers are not vertices: their value follows from the inputs' shapes. Those that
    do depend on data come from a native node, and carry the dependency on to their users.
    """
    vertex: dict[fx.Node, int] = {}
    behind: dict[fx.Node, frozenset[int]] = {}  # vertices that a symbolic number hangs on
    members: list[list[fx.Node]] = []
    edges: set[tuple[int, int]] = set()
    last_effect: int | None = None
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        sources: set[int] = set()
        for arg in node.all_input_nodes:
            sources |= {vertex[arg]} if arg in vertex else behind.get(arg, frozenset())
        if is_getitem(node) and node.args[0] in vertex:
            vertex[node] = vertex[node.args[0]]
            members[vertex[node]].append(node)
            continue
        if is_shape_number(node):
            behind[node] = frozenset(sources)
            continue
        vertex[node] = len(members)
        members.append([node])
        if _has_effect(node):  # draws of random numbers and writes keep their order
            if last_effect is not None:
                sources.add(last_effect)
            last_effect = vertex[node]
        edges |= {(source, vertex[node]) for source in sources}
    return Dag.of([atom[0].name for atom in members], edges), members


def _has_effect(node: fx.Node) -> bool:
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return True
    writes = any(arg.alias_info is not None and arg.alias_info.is_write for arg in schema.arguments)
    return writes or draws(target) or not schema.returns


def _emit(
    captured: Captured,
    dag: Dag,
    members: Sequence[Sequence[fx.Node]],
    kept: Sequence[Sequence[int]],
    reasons: Sequence[Reason | None],
    failed: Mapping[str, Reason],
) -> Clustered:
    """Order clusters and native vertices and give clusters their names and borders."""
    owner = {v: number for number, cluster in enumerate(kept) for v in cluster}
    groups: list[list[int]] = [list(cluster) for cluster in kept]
    native: dict[fx.Node, Reason] = {}
    for v, reason in enumerate(reasons):
        if v not in owner:
            owner[v] = len(groups)
            groups.append([v])
            assert reason is not None
            native[members[v][0]] = reason
    edges = [
        (owner[a], owner[b])
        for a in range(len(members))
        for b in dag.successors[a]
        if owner[a] != owner[b]
    ]
    order = topological_order(len(groups), edges, [group[0] for group in groups])
    steps: list[XlaCluster | fx.Node] = []
    clusters: list[XlaCluster] = []
    position = {node: i for i, node in enumerate(captured.graph.graph.nodes)}
    for number in order:
        nodes = sorted((n for v in groups[number] for n in members[v]), key=position.__getitem__)
        if number < len(kept):
            clusters.append(_bordered(f"xla_{captured.fingerprint}_{len(clusters)}", nodes))
            steps.append(clusters[-1])
        else:
            steps.extend(nodes)
    return Clustered(captured, tuple(clusters), native, tuple(steps), failed)


def _bordered(name: str, nodes: Sequence[fx.Node]) -> XlaCluster:
    inside = set(nodes)
    inputs: dict[fx.Node, None] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg not in inside and is_tensor(arg):
                inputs[arg] = None
    outputs = []
    for node in nodes:
        readers = (user for user in node.users if user not in inside)
        # A user that wants only the tensor's sizes does not want the tensor.
        if is_tensor(node) and not all(map(is_shape_number, readers)):
            outputs.append(node)
    return XlaCluster(name, tuple(nodes), tuple(inputs), tuple(outputs))
