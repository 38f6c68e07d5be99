"""A partition in a few numbers, by which partitions are compared."""

from __future__ import annotations

from dataclasses import dataclass

from torch_galley.cluster.rates import Rates


@dataclass(frozen=True)
class Total:
    """A partition in a few numbers.

    Example:
        >>> Total(clusters=2, operations=5, clustered=4, tensors=2, nbytes=256, edges=1).coverage
        0.8
    """

    clusters: int
    operations: int
    clustered: int
    """Operations in clusters; one that is in several counts once."""
    tensors: int
    """Tensors made by operations that cross a border, once where they leave and once for each
    cluster that they enter."""
    nbytes: int
    """Of those tensors."""
    edges: int
    """|∂C| over all clusters: edges from an operation inside to one outside."""

    @property
    def coverage(self) -> float:
        """η = |V_C| / |V_all|, 1.0 without operations."""
        return self.clustered / self.operations if self.operations else 1.0

    @property
    def seconds(self) -> float:
        """What calls and borders cost, predicted."""
        rates = Rates()
        return rates.call * self.clusters + rates.tensor * self.tensors + rates.byte * self.nbytes
