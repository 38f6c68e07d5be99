"""Clusters that are taken apart again: too small ones, and any that the checker finds unsound."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import fx

from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.candidate import must_compile
from torch_galley.cluster.check import check
from torch_galley.cluster.operation import size
from torch_galley.cluster.support import name_of
from torch_galley.core.config import Config
from torch_galley.core.errors import ClusterError
from torch_galley.core.events import Warned, emit
from torch_galley.core.reasons import Reason, TooSmall, Unsound


def dissolve_small(
    clusters: list[list[int]],
    nodes: Sequence[fx.Node],
    reasons: list[Reason | None],
    config: Config,
) -> None:
    """Take out clusters that are too small, unless all, or some of it, has to be in clusters."""
    marked = must_compile(nodes, config)
    for cluster in list(clusters):
        count = size(nodes[v] for v in cluster)
        wanted = config.require_full or any(marked[v] for v in cluster)
        if count < config.min_cluster_size and not wanted:
            clusters.remove(cluster)
            for v in cluster:
                reasons[v] = TooSmall(count, config.min_cluster_size)


def dissolve_unsound(
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
