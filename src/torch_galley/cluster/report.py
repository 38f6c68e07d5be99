"""What a partition looks like: coverage, borders, and why each native operation is native.

Two counts of a border are kept apart. The seed's ∂C is a set of *edges* from an operation inside
to one outside, and its D(C) sums bytes per edge. What is paid at run time is per *tensor* and
side: a tensor that leaves once and is read by three others crosses once, and one that enters
crosses too. Results of the whole graph leave, but end at no operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from torch_galley.cluster.operation import is_operation, nbytes
from torch_galley.cluster.operation import size as effective_size
from torch_galley.core.site import site_of
from torch_galley.core.words import counted

if TYPE_CHECKING:
    from torch_galley.cluster.clustered import Clustered, XlaCluster


@dataclass(frozen=True)
class Border:
    """What crosses the border of one cluster."""

    edges: int
    """|∂C|: edges from an operation inside to an operation outside."""
    edge_bytes: int
    """D(C): bytes summed over those edges."""
    tensors_in: int
    bytes_in: int
    tensors_out: int
    bytes_out: int
    parameter_bytes: int
    """Of bytes_in, those of the graph's own inputs (parameters, user inputs)."""


def border(cluster: XlaCluster) -> Border:
    """Count what crosses a cluster's border. Symbolic sizes count as first seen."""
    inside = set(cluster.nodes)
    edges = [
        node
        for node in cluster.nodes
        for user in node.users
        if user not in inside and user.op != "output"
    ]
    graph_inputs = [node for node in cluster.inputs if node.op in ("placeholder", "get_attr")]
    return Border(
        len(edges),
        _nbytes(edges),
        len(cluster.inputs),
        _nbytes(cluster.inputs),
        len(cluster.outputs),
        _nbytes(cluster.outputs),
        _nbytes(graph_inputs),
    )


def _nbytes(nodes: Iterable[fx.Node]) -> int:
    return sum(map(nbytes, nodes))


def to_json(clustered: Clustered) -> dict[str, Any]:
    """Return the partition as plain data: η, clusters with entry, exit and border, native nodes."""
    return {
        "role": clustered.captured.role,
        "operations": clustered.operations,
        "clustered_operations": clustered.clustered_operations,
        "coverage": clustered.coverage,
        "unavoidable_clusters": clustered.unavoidable,
        "clusters": [
            {
                "name": cluster.name,
                "operations": sum(map(is_operation, cluster.nodes)),
                "effective_operations": effective_size(cluster.nodes),
                "op_names": [node.name for node in cluster.nodes],
                "entry_points": [node.name for node in cluster.entry],
                "exit_points": [node.name for node in cluster.exit],
                "border": vars(border(cluster)),
            }
            for cluster in clustered.clusters
        ],
        "native": [
            {
                "name": node.name,
                "op": str(node.target),
                "reason": reason.to_json(),
                "site": str(site_of(node.meta) or ""),
            }
            for node, reason in clustered.native.items()
        ],
    }


def text(clustered: Clustered) -> str:
    """Return the partition as a page of text."""
    count = len(clustered.clusters)
    least = f" (at least {clustered.unavoidable} needed)" if count > clustered.unavoidable else ""
    lines = [
        f"{clustered.captured.role} graph: {counted(clustered.operations, 'operation')}, "
        f"{counted(count, 'cluster')}{least}, coverage η = {clustered.coverage:.1%}"
    ]
    for cluster in clustered.clusters:
        crossing = border(cluster)
        lines.append(
            f"  {cluster.name}: {counted(sum(map(is_operation, cluster.nodes)), 'operation')}; "
            f"in {counted(crossing.tensors_in, 'tensor')} {size(crossing.bytes_in)} "
            f"(parameters and inputs {size(crossing.parameter_bytes)}), "
            f"out {counted(crossing.tensors_out, 'tensor')} {size(crossing.bytes_out)}; "
            f"∂C {counted(crossing.edges, 'edge')}, D(C) {size(crossing.edge_bytes)}"
        )
    groups: dict[str, Counter[str]] = {}
    for node, reason in clustered.native.items():
        groups.setdefault(reason.group, Counter())[str(node.target)] += 1
    for group, ops in groups.items():
        named = ", ".join(f"{count} x {op}" for op, count in ops.most_common())
        lines.append(f"  native, {group}: {named}")
    return "\n".join(lines)


def size(nbytes: float) -> str:
    """Return a byte count for people.

    Example:
        >>> size(512), size(3 << 20)
        ('512 B', '3.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} GiB"
