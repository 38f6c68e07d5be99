"""The report as plain data: nothing of torch, so that what was saved answers as what was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from torch_galley.cluster.terms import Terms
from torch_galley.cluster.total import Total
from torch_galley.core.reasons import OUTVOTED, Reason
from torch_galley.core.site import Site
from torch_galley.hlo.count import Counts


@dataclass(frozen=True)
class Node:
    """A node of the graph. Inputs and predecessors are numbers of earlier nodes."""

    name: str
    kind: str
    """"operation", "input", "part" (one of an operation's several results) or "number"."""
    target: str
    """The operator's name."""
    inputs: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    """For an operation, those that have to be done before it: effects keep their order, and a
    size that depends on data stands between operations."""
    type: str = ""
    """Such as "float32[2,8]", empty if unknown."""
    nbytes: int = 0
    """Of the tensor, 0 if there is none or its size is unknown."""
    flops: int = 0
    effective: bool = True
    """Whether it computes, rather than views or fills."""
    view: bool = False
    result: bool = False
    """Whether it is a result of the graph."""
    module: str = ""
    site: Site | None = None
    device: str = ""
    scope: str = ""
    """The entry of the setting `scopes` that it is in."""
    native: Reason | None = None
    """Why it is native, if it is an operation that runs natively."""

    @property
    def refused(self) -> bool:
        """Whether it is an operation that XLA can't take, or may not."""
        return self.native is not None and not isinstance(self.native, OUTVOTED)


@dataclass(frozen=True)
class Crossing:
    """A tensor that crosses a cluster's border, counted once."""

    node: int
    others: tuple[str, ...]
    """Who is on the other side: clusters, native operations, "inputs", "results"."""


@dataclass(frozen=True)
class Compilation:
    """What XLA made of a cluster."""

    seconds: float
    before: Counts
    after: Counts
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    """Memory for intermediate values."""
    planned_bytes: int
    """The same if each intermediate value had memory of its own."""


@dataclass(frozen=True)
class Cluster:
    """Operations that XLA compiles as one executable."""

    name: str
    nodes: tuple[int, ...]
    entry: tuple[int, ...]
    exit: tuple[int, ...]
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    edges: tuple[tuple[int, int], ...]
    """∂C: edges from an operation inside to one outside."""
    flops: int = 0
    verdict: str = ""
    """Why it is kept."""
    compilation: Compilation | None = None
    predicted: Terms | None = None
    measured: Terms | None = None


@dataclass(frozen=True)
class Blame:
    """What would be if XLA could take an operator, found by cutting the graph so."""

    op: str
    group: str
    """Of the reasons for which it can't."""
    count: int
    """Operations that are this operator, native for this reason."""
    then: Total
    """The partition there would be."""
    uncut: Total
    """The same if all clusters were kept."""


@dataclass(frozen=True)
class Graph:
    """One graph, cut."""

    role: str
    fingerprint: str
    nodes: tuple[Node, ...]
    clusters: tuple[Cluster, ...]
    steps: tuple[int, ...]
    """An order in which it runs: clusters by number, native operations by -1 minus theirs."""
    total: Total
    unavoidable: int
    """The fewest clusters that the operations which XLA can take could share."""
    uncut: Total
    """`total` if all clusters were kept."""
    blame: tuple[Blame, ...] = ()
    unblamed: int = 0
    """Native operators, the rarest, for which blame was not computed."""
    what_if: tuple[tuple[int, Total], ...] = ()
    """For values of min_cluster_size."""
    min_size: int = 1
    max_size: int = 0
    horizontal: bool = False
    rates: str = ""
    """Which rates predictions come from: "shipped" or "calibrated"; empty if there are none."""
    sizes_known: bool = True
    """Whether tensors and their sizes are known."""
    estimated: bool = False
    """Whether some size is symbolic: bytes and FLOPs are those of this call."""
    data_dependent: bool = False
    """Whether some size depends on data: it counts as 1."""
    peak_bytes: int = 0
    """Most bytes alive at once, predicted: tensors between steps, and XLA's intermediates."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each node."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    @cached_property
    def cluster_numbers(self) -> dict[str, int]:
        """The number of each cluster, by name."""
        return {cluster.name: number for number, cluster in enumerate(self.clusters)}

    @cached_property
    def homes(self) -> dict[int, tuple[int, ...]]:
        """For each node that is in a cluster, the clusters it is computed in, the giver first.

        The giver is the one that others take its result from.
        """
        found: dict[int, list[int]] = {}
        for number, cluster in enumerate(self.clusters):
            gives = {crossing.node for crossing in cluster.outputs}
            gives |= {
                n for part in gives for n in self.nodes[part].inputs[:1] if self.is_part(part)
            }
            for node in cluster.nodes:
                places = found.setdefault(node, [])
                places.insert(0 if node in gives else len(places), number)
        return {node: tuple(places) for node, places in found.items()}

    @cached_property
    def operations(self) -> tuple[int, ...]:
        """The operations, by number."""
        return tuple(n for n, node in enumerate(self.nodes) if node.kind == "operation")

    @cached_property
    def native(self) -> tuple[int, ...]:
        """The native operations, by number."""
        return tuple(n for n in self.operations if self.nodes[n].native is not None)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the whole graph."""
        return sum(self.nodes[n].flops for n in self.operations)

    @cached_property
    def clustered_flops(self) -> int:
        """FLOPs in clusters, an operation in several clusters counted once."""
        return sum(self.nodes[n].flops for n in self.homes)

    @cached_property
    def made_bytes(self) -> tuple[int, int]:
        """Bytes of results that operations in clusters make, and that all do; views make none."""
        inside = whole = 0
        for number, node in enumerate(self.nodes):
            if node.kind in ("operation", "part") and not node.view:
                whole += node.nbytes
                inside += node.nbytes if number in self.homes else 0
        return inside, whole

    @property
    def compile_seconds(self) -> float | None:
        """What XLA took for all clusters, None if it was not asked."""
        made = [c.compilation.seconds for c in self.clusters if c.compilation]
        return sum(made) if made else None

    def bytes_of(self, nodes: Iterable[int]) -> int:
        """Return the bytes of some nodes' tensors."""
        return sum(self.nodes[n].nbytes for n in nodes)

    def is_part(self, number: int) -> bool:
        """Whether a node is one of an operation's several results."""
        return self.nodes[number].kind == "part"

    def maker(self, number: int) -> int:
        """Return the operation that makes a node, which may be one of its several results."""
        while self.is_part(number):
            number = self.nodes[number].inputs[0]
        return number

    def histogram(self, cluster: Cluster) -> list[tuple[str, int]]:
        """Return how often a cluster has each operator, the most frequent first."""
        inside = (self.nodes[n] for n in cluster.nodes)
        return Counter(n.target for n in inside if n.kind == "operation").most_common()

    def operations_in(self, cluster: Cluster) -> int:
        """Return how many operations a cluster has."""
        return sum(self.nodes[n].kind == "operation" for n in cluster.nodes)

    def effective_in(self, cluster: Cluster) -> int:
        """Return how many operations of a cluster compute something."""
        return sum(self.nodes[n].effective for n in cluster.nodes)


@dataclass(frozen=True)
class Break:
    """A place where Dynamo ended one graph and began another."""

    reason: str
    """Dynamo's text, several lines."""
    headline: str
    site: Site | None
