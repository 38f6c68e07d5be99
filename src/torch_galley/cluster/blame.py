"""What a partition would be with something changed: found by cutting the graph again, so exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.operation import nbytes
from torch_galley.cluster.partition import Decide, partition
from torch_galley.cluster.support import HasDevice, name_of
from torch_galley.cluster.total import Total
from torch_galley.core.reasons import OUTVOTED, Seed

SIZES = (1, 2, 4, 8, 16)
"""Values of min_cluster_size that `what_if` tries."""


def total(clustered: Clustered) -> Total:
    """Count what crosses the borders of a partition."""
    tensors = [n for c in clustered.clusters for n in c.outputs]
    tensors += [n for c in clustered.clusters for n in c.inputs if n.op == "call_function"]
    edges = sum(
        user not in inside and user.op != "output"
        for cluster in clustered.clusters
        for inside in [set(cluster.nodes)]
        for node in cluster.nodes
        for user in node.users
    )
    return Total(
        len(clustered.clusters),
        clustered.operations,
        clustered.clustered_operations,
        len(tensors),
        sum(map(nbytes, tensors)),
        edges,
    )


def culprits(clustered: Clustered) -> Mapping[tuple[str, str], list[str]]:
    """Return what XLA can't take, by operator and group of reasons, the most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    for node, reason in clustered.native.items():
        if not isinstance(reason, (*OUTVOTED, Seed)):
            found.setdefault((name_of(node.target), reason.group), []).append(node.name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def if_taken(
    clustered: Clustered,
    has_device: HasDevice,
    names: Collection[str] = (),
    *,
    all_kept: bool,
    decide: Decide | None = None,
) -> Total:
    """Return what the partition would be if XLA could take some operations.

    Args:
        clustered: the partition.
        has_device: whether jax has the counterpart of a torch device.
        names: the operations.
        all_kept: count clusters too that would be dropped, for their size or by `decide`; otherwise
            they may appear where there were none.
        decide: see cluster.partition.partition.
    """
    captured = clustered.captured
    if all_kept:
        config = dataclasses.replace(captured.config, decide="size", min_cluster_size=1)
        captured = dataclasses.replace(captured, config=config)
    return total(partition(captured, has_device, clustered.failed, decide, set(names)))


def what_if(
    clustered: Clustered, has_device: HasDevice, decide: Decide | None = None
) -> Iterator[tuple[int, Total]]:
    """Yield what the partition would be for values of min_cluster_size."""
    captured = clustered.captured
    for size in SIZES:
        config = dataclasses.replace(captured.config, min_cluster_size=size, require_full=False)
        other = dataclasses.replace(captured, config=config)
        yield size, total(partition(other, has_device, clustered.failed, decide))
