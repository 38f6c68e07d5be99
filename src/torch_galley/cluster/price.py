"""What the border of a partition costs, predicted: the yardstick by which partitions are compared.

A tensor counts once where it leaves a cluster and once for each cluster that it enters, see
docs/decisions/0005. Inputs of the graph (parameters among them) are handed over without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_galley.cluster.rates import Rates


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph, from the vertex that makes it to those that read it."""

    maker: int | None
    """None for an input of the graph."""
    readers: tuple[int, ...]
    nbytes: int
    result: bool = False
    """Whether it is a result of the graph."""


@dataclass(frozen=True)
class Price:
    """The border of a partition."""

    clusters: int
    tensors: int
    nbytes: int
    seconds: float


def crossing(tensor: Tensor, rates: Rates) -> float:
    """Return what one crossing of a tensor costs.

    Example:
        >>> crossing(Tensor(0, (1,), 1000), Rates())
        3.1e-06
    """
    return rates.tensor + (0.0 if tensor.maker is None else rates.byte * tensor.nbytes)


class Placement:
    """Where vertices are computed: at home in one cluster or natively, and in clusters besides."""

    def __init__(self, clusters: Sequence[Iterable[int]], clones: Sequence[Iterable[int]] = ()):
        self.home = {v: number for number, cluster in enumerate(clusters) for v in cluster}
        self.places = {v: {number} for v, number in self.home.items()}
        for number, cluster in enumerate(clones):
            for vertex in cluster:
                self.places.setdefault(vertex, set()).add(number)

    def crossings(self, tensor: Tensor) -> int:
        """Return how many borders a tensor crosses."""
        places, home = self.places, self.home
        entered: set[int] = set()
        native = tensor.result
        for reader in tensor.readers:
            entered.update(places.get(reader, ()))
            native = native or reader not in home
        if tensor.maker is None:
            return len(entered)
        entered -= places.get(tensor.maker, set())
        return len(entered) + (tensor.maker in home and (native or bool(entered)))


def price(
    tensors: Sequence[Tensor],
    clusters: Sequence[Iterable[int]],
    clones: Sequence[Iterable[int]] = (),
    rates: Rates | None = None,
) -> Price:
    """Return what crosses the borders of clusters, and what that costs.

    Example:
        >>> price([Tensor(0, (1, 2), 100), Tensor(1, (), 8, result=True)], [[0], [1, 2]])
        Price(clusters=2, tensors=3, nbytes=208, seconds=1.50208e-05)
    """
    rates = rates or Rates()
    placement = Placement(clusters, clones)
    count, nbytes = 0, 0
    for tensor in tensors:
        crossings = placement.crossings(tensor)
        count += crossings
        nbytes += 0 if tensor.maker is None else crossings * tensor.nbytes
    seconds = rates.call * len(clusters) + rates.tensor * count + rates.byte * nbytes
    return Price(len(clusters), count, nbytes, seconds)
