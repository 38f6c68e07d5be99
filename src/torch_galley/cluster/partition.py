"""Captured -> Clustered: candidates with Reasons, contraction, size rule, borders, names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import fx

from torch_galley.capture.fx import Captured, is_tensor
from torch_galley.cluster import report, save
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.candidate import candidates, groups, must_compile, scopes
from torch_galley.cluster.check import check
from torch_galley.cluster.contract import UNLIMITED, Limits
from torch_galley.cluster.cut import Problem, cut, joined, spread
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.cluster.group import settled
from torch_galley.cluster.judge import Choice, by_model, reasons_against
from torch_galley.cluster.level import unavoidable
from torch_galley.cluster.operation import effective, is_operation
from torch_galley.cluster.rates import Rates, in_force
from torch_galley.cluster.refine import cloned, pruned, trimmed
from torch_galley.cluster.support import HasDevice, name_of
from torch_galley.core.config import Config
from torch_galley.core.errors import ClusterError
from torch_galley.core.events import Warned, emit
from torch_galley.core.reasons import (
    OUTVOTED,
    CheaperOutside,
    Constant,
    GroupNative,
    Reason,
    TooSmall,
    Unsound,
)
from torch_galley.core.site import site_of


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
    choices: tuple[Choice, ...] = ()
    """What was decided of each cluster, those included that were not kept; none by size alone."""
    rates: str = "shipped"
    """Which rates the predictions come from: "shipped" or "calibrated"."""

    @cached_property
    def native_nodes(self) -> frozenset[fx.Node]:
        """What runs outside clusters, getitem included."""
        return frozenset(step for step in self.steps if isinstance(step, fx.Node))

    @cached_property
    def given(self) -> frozenset[fx.Node]:
        """The outputs of all clusters."""
        return frozenset(node for cluster in self.clusters for node in cluster.outputs)

    @property
    def undecided(self) -> bool:
        """Whether something has to be timed at the first call before it is decided."""
        return any(choice.by == "undecided" for choice in self.choices)

    @property
    def operations(self) -> int:
        """Operations in all: |V_all|, symbolic numbers and getitem not counted."""
        return sum(map(is_operation, self.captured.graph.graph.nodes))

    @property
    def clustered_operations(self) -> int:
        """Operations in clusters: |V_C|."""
        return sum(map(is_operation, {node for c in self.clusters for node in c.nodes}))

    @property
    def coverage(self) -> float:
        """η = |V_C| / |V_all|, 1.0 for an empty graph."""
        return self.clustered_operations / self.operations if self.operations else 1.0

    @cached_property
    def unavoidable(self) -> int:
        """The fewest clusters that the operations which XLA can take could share: a lower bound.

        Clusters that `min_cluster_size` dissolved count here, so there may be fewer.
        """
        atoms = Atoms.of(self.captured.graph.graph)
        reasons = [self.native.get(nodes[0]) for nodes in atoms.members]
        ours = [r is None or isinstance(r, OUTVOTED) for r in reasons]
        constant = atoms.constants(ours)
        alone = [o and not c for o, c in zip(ours, constant, strict=True)]
        return unavoidable(atoms.dag.without_edges_from(constant), alone)

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
        captured, parts, native, order, failed, choices, rates = save.load(folder)
        clusters = tuple(XlaCluster(*part) for part in parts)
        step: dict[str, XlaCluster | fx.Node] = {n.name: n for n in captured.graph.graph.nodes}
        step |= {cluster.name: cluster for cluster in clusters}
        return cls(
            captured, clusters, native, tuple(step[name] for name in order), failed, choices, rates
        )


Decide = Callable[[Clustered, Rates], tuple[Choice, ...]]
"""Decides of each cluster of a graph whether it is kept, given what things take."""


def partition(
    captured: Captured,
    has_device: HasDevice,
    failed: Mapping[str, Reason] | None = None,
    decide: Decide | None = None,
    assumed: Collection[str] = (),
) -> Clustered:
    """Cut a graph into clusters.

    Args:
        captured: the graph.
        has_device: whether jax has the counterpart of a torch device.
        failed: nodes, by name, that must stay native because lowering them failed.
        decide: what to ask about clusters where the setting `decide` is more than "size"; the
            model alone if None.
        assumed: nodes, by name, that are cut as if XLA could take them: for a report of what
            each costs that it can't. The result can't be lowered.

    Raises:
        ConfigError: a setting names an operator that there is not.
        ClusterError: the setting `require_full` is on, and something would run natively.
    """
    failed = failed or {}
    config = captured.config
    rates, origin = (Rates(), "shipped") if config.decide == "size" else in_force(config)
    atoms = Atoms.of(captured.graph.graph)
    first = [nodes[0] for nodes in atoms.members]
    reasons = candidates(first, config, has_device, failed)
    reasons = [
        None if n.name in assumed else reason for n, reason in zip(first, reasons, strict=True)
    ]
    if config.require_full and any(reasons):
        raise _not_full(first, reasons)
    supported = [reason is None for reason in reasons]
    limits = Limits(atoms.devices(), scopes(first, config), config.max_cluster_size or None)
    if all(supported) and limits == UNLIMITED:
        # Nothing runs between the parts of a graph that XLA takes whole, so separate executables
        # would only add calls. (With native operations about, joining parts that no edge joins
        # could make one wait for what only the other needs.)
        kept, clones = [list(range(len(first)))] if first else [], []
        _dissolve_small(kept, first, reasons, config)
    else:
        constant = atoms.constants(supported)
        dag = atoms.dag.without_edges_from(constant)
        ours = [s and not c for s, c in zip(supported, constant, strict=True)]
        together = _together(atoms, dag, first, ours, reasons, config)
        problem = Problem(dag, ours, atoms.tensors, limits, config.search_budget)
        if together:
            problem, parts = joined(problem, together)
            kept = spread(cut(problem, config.order, config.horizontal, rates), parts)
        else:
            kept = cut(problem, config.order, config.horizontal, rates)
        free = [mine and not any(v in group for group in together) for v, mine in enumerate(ours)]
        _dissolve_small(kept, first, reasons, config)
        if config.refine and len(kept) > 1:
            kept = trimmed(atoms.tensors, kept, atoms.views(free), rates)
            for v in set(range(len(first))).difference(*kept):
                if ours[v] and reasons[v] is None:
                    reasons[v] = CheaperOutside(name_of(first[v].target))
        for v, node in enumerate(first):
            if constant[v]:
                reasons[v] = Constant(name_of(node.target))
        clones = cloned(
            atoms.tensors,
            kept,
            atoms.cheap(free) if config.refine and len(kept) > 1 else constant,
            constant,
            rates,
        )
        kept, clones = pruned(kept, clones, atoms.dag.successors, atoms.results)
    _dissolve_unsound(atoms, kept, clones, reasons)
    clustered, names = _emit(captured, atoms, kept, clones, reasons, failed)
    if config.decide == "size" or config.require_full:
        return clustered
    choices = decide(clustered, rates) if decide else by_model(clustered, rates, config.min_speedup)
    why = reasons_against(choices, names)
    if why:
        # What is left keeps its name. That makes no cycle: in whatever order the clusters could
        # run, their operations can, too.
        for number, name in enumerate(names):
            for v in (*kept[number], *(clones[number] if clones else ())) if name in why else ():
                reasons[v] = reasons[v] or why[name]
        left = [number for number, name in enumerate(names) if name not in why]
        kept, clones = [kept[n] for n in left], [clones[n] for n in left] if clones else []
        names = [names[n] for n in left]
        clustered, _ = _emit(captured, atoms, kept, clones, reasons, failed, names)
    return replace(clustered, choices=choices, rates=origin)


def _together(
    atoms: Atoms,
    dag: Dag,
    nodes: Sequence[fx.Node],
    ours: list[bool],
    reasons: list[Reason | None],
    config: Config,
) -> list[set[int]]:
    """Return the groups that the user wants, as far as they can be; the others become native."""
    if not config.groups:
        return []
    # What is made anew wherever it is read is with every group that reads it.
    anywhere = [reason is None and not mine for reason, mine in zip(reasons, ours, strict=True)]
    wanted = [[v for v in group if not anywhere[v]] for group in groups(nodes, config)]
    devices = atoms.devices()
    found, native = settled(wanted, dag, ours, lambda v: devices[v] if devices else None)
    for v in native:
        if reasons[v] is None:
            reasons[v], ours[v] = GroupNative(name_of(nodes[v].target)), False
    return [set(group) for group in found]


def _not_full(nodes: Sequence[fx.Node], reasons: Sequence[Reason | None]) -> ClusterError:
    lines = [
        f"  {node.name}: {reason}" + (f" at {site}" if (site := site_of(node.meta)) else "")
        for node, reason in zip(nodes, reasons, strict=True)
        if reason is not None
    ]
    message = f"{len(lines)} of {len(nodes)} operations would run natively:"
    return ClusterError("\n".join([message, *lines]), hint="turn require_full off to run them so")


def _dissolve_small(
    clusters: list[list[int]],
    nodes: Sequence[fx.Node],
    reasons: list[Reason | None],
    config: Config,
) -> None:
    """Take out clusters that are too small, unless all, or some of it, has to be in clusters."""
    marked = must_compile(nodes, config)
    for cluster in list(clusters):
        size = sum(effective(nodes[v]) for v in cluster)
        wanted = config.require_full or any(marked[v] for v in cluster)
        if size < config.min_cluster_size and not wanted:
            clusters.remove(cluster)
            for v in cluster:
                reasons[v] = TooSmall(size, config.min_cluster_size)


def _dissolve_unsound(
    atoms: Atoms,
    clusters: list[list[int]],
    clones: list[set[int]],
    reasons: list[Reason | None],
) -> None:
    """Take out clusters until the checker is content, and tell: each is a bug of ours.

    Taking one out makes no cycle: what it was made of had none.
    """
    while True:
        try:
            return check(atoms.dag, clusters)
        except ClusterError as error:
            number = min(error.facts["clusters"], key=lambda n: len(clusters[n]))
            message = (
                f"a cluster of {len(clusters[number])} operations runs natively, because "
                f"{error.message}; a bug in torch-galley, please report it"
            )
            emit(Warned(message))
            warnings.warn(message, stacklevel=5)
            gone = clusters.pop(number)
            for v in {*gone, *(clones.pop(number) if clones else ())}:
                if reasons[v] is None:
                    reasons[v] = Unsound(name_of(atoms.members[v][0].target))


def _emit(
    captured: Captured,
    atoms: Atoms,
    kept: Sequence[Sequence[int]],
    clones: Sequence[Set[int]],
    reasons: Sequence[Reason | None],
    failed: Mapping[str, Reason],
    names: Sequence[str] = (),
) -> tuple[Clustered, list[str]]:
    """Order clusters and native vertices, give clusters their borders, and names if they have none.

    The names are returned besides, in the order of `kept`.
    """
    named = dict(enumerate(names))
    groups = [set(cluster).union(*clones[n : n + 1]) for n, cluster in enumerate(kept)]
    home = {v: number for number, cluster in enumerate(kept) for v in cluster}
    native: dict[fx.Node, Reason] = {}
    for v in _needed_natively(atoms, groups, home, reasons):
        home[v] = len(groups)
        groups.append({v})
        reason = reasons[v]
        assert reason is not None
        native[atoms.members[v][0]] = reason
    edges = {
        (home[source], number)
        for number, group in enumerate(groups)
        for v in group
        for source in atoms.dag.predecessors[v]
        if source not in group
    }
    order = topological_order(len(groups), edges, [min(group) for group in groups])
    if len(order) < len(groups):
        raise ClusterError("clusters and native operations form a cycle")
    steps: list[XlaCluster | fx.Node] = []
    clusters: list[XlaCluster] = []
    position = {node: i for i, node in enumerate(captured.graph.graph.nodes)}
    places: dict[fx.Node, set[int]] = {}
    for number, group in enumerate(groups):
        for node in (node for v in group for node in atoms.members[v]):
            places.setdefault(node, set()).add(number)
    for number in order:
        nodes = [node for v in groups[number] for node in atoms.members[v]]
        nodes.sort(key=position.__getitem__)
        if number < len(kept):
            name = named.setdefault(number, f"xla_{captured.fingerprint}_{len(clusters)}")
            made = {node for v in kept[number] for node in atoms.members[v]}
            clusters.append(_bordered(name, nodes, places, made))
            steps.append(clusters[-1])
        else:
            steps.extend(nodes)
    clustered = Clustered(captured, tuple(clusters), native, tuple(steps), failed)
    return clustered, [named[number] for number in range(len(kept))]


def _needed_natively(
    atoms: Atoms,
    groups: Sequence[Set[int]],
    home: Mapping[int, int],
    reasons: Sequence[Reason | None],
) -> list[int]:
    """Return vertices at home in no cluster that have to run: whose result is not made elsewhere.

    What XLA could take and clusters make for themselves runs natively only for native readers.
    """
    places: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        for v in group:
            places.setdefault(v, set()).add(number)
    needed: set[int] = set()
    for v in range(len(atoms.members) - 1, -1, -1):
        if v in home:
            continue
        readers = atoms.dag.successors[v]
        if (
            not (reasons[v] is None or isinstance(reasons[v], OUTVOTED))
            or v in atoms.results
            or not readers
            or any(r in needed for r in readers)
            or any(places.get(r, set()) - places.get(v, set()) for r in readers)
        ):
            needed.add(v)
    return sorted(needed)


def _bordered(
    name: str,
    nodes: Sequence[fx.Node],
    places: Mapping[fx.Node, Set[int]],
    made: Set[fx.Node],
) -> XlaCluster:
    """Name a cluster and find what it takes and gives.

    Args:
        name: its name.
        nodes: its nodes, clones included.
        places: for each node of the graph, the clusters and native operations it is computed in.
        made: those of its nodes that others may take from it.
    """
    inside = set(nodes)
    inputs: dict[fx.Node, None] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg not in inside and is_tensor(arg):
                inputs[arg] = None
    outputs = [
        node
        for node in nodes
        if node in made
        and is_tensor(node)
        and any(
            # A user that wants only the tensor's sizes is computed nowhere.
            user.op == "output" or not places.get(user, set()) <= places[node]
            for user in node.users
        )
    ]
    return XlaCluster(name, tuple(nodes), tuple(inputs), tuple(outputs))
