"""A graph cut into clusters and a native remainder: what cutting returns and the rest reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import fx

from torch_galley.capture.fx import Captured
from torch_galley.cluster import report, save
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.judge import Choice
from torch_galley.cluster.level import unavoidable
from torch_galley.cluster.operation import is_operation
from torch_galley.core.reasons import OUTVOTED, Reason


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
