"""A partition made cheaper by what need not be in one cluster only, or in any.

Cloning: a cheap operation (a view, a cast, a constant) whose result enters a cluster is computed
there once more, if what it reads costs less to hand over. That never makes a cycle: whatever had
to be done before the operation had to be done before the cluster anyway.

Trimming: a view at the end of a cluster leaves it, if handing over what it is a view of and making
the view natively costs less than handing over its results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from torch_galley.cluster.price import Placement, Tensor, crossing
from torch_galley.cluster.rates import Rates


class _Near:
    """The tensors that each vertex makes and reads."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.made: dict[int, list[Tensor]] = defaultdict(list)
        self.read: dict[int, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            if tensor.maker is not None:
                self.made[tensor.maker].append(tensor)
            for reader in tensor.readers:
                self.read[reader].append(tensor)

    def cost(self, vertex: int, placement: Placement, rates: Rates) -> float:
        """Return what the borders cost that these tensors cross."""
        near = self.made[vertex] + self.read[vertex]
        return sum(crossing(tensor, rates) * placement.crossings(tensor) for tensor in near)


def cloned(
    tensors: Sequence[Tensor],
    clusters: Sequence[Sequence[int]],
    cheap: Sequence[bool],
    constant: Sequence[bool] = (),
    rates: Rates | None = None,
) -> list[set[int]]:
    """Return, for each cluster, vertices of elsewhere that it had better compute itself.

    Args:
        tensors: the tensors of the graph.
        clusters: the partition.
        cheap: for each vertex, whether it may be cloned.
        constant: for each vertex, whether it must be.
        rates: what a border costs.

    Example:
        >>> widened = [Tensor(0, (1,), 4), Tensor(1, (2,), 4000)]  # made by 1 from little
        >>> cloned(widened, [[2]], [False, True, True])
        [{1}]
    """
    rates = rates or Rates()
    near, placement = _Near(tensors), Placement(clusters)
    added: list[set[int]] = [set() for _ in clusters]
    for number, cluster in enumerate(clusters):
        waiting = sorted(cluster, reverse=True)
        while waiting:
            for tensor in near.read[waiting.pop()]:
                maker = tensor.maker
                if maker is None:
                    continue
                must = bool(constant) and constant[maker]
                if not (must or cheap[maker]):
                    continue
                places = placement.places.setdefault(maker, set())
                if number in places:
                    continue
                before = near.cost(maker, placement, rates)
                places.add(number)
                if must or near.cost(maker, placement, rates) < before:
                    added[number].add(maker)
                    waiting.append(maker)
                else:
                    places.discard(number)
    return added


def pruned(
    clusters: Sequence[Sequence[int]],
    clones: Sequence[Set[int]],
    successors: Sequence[Set[int]],
    results: Set[int],
) -> tuple[list[list[int]], list[set[int]]]:
    """Return clusters and clones without what no one takes from where it was at first.

    Example:
        >>> pruned([[0, 1], [2]], [set(), {1}], [{1}, {2}, set()], {0, 2})
        ([[0], [2]], [set(), {1}])
    """
    placement = Placement(clusters, clones)
    for vertex in sorted(placement.home, reverse=True):
        number, places = placement.home[vertex], placement.places[vertex]
        readers = successors[vertex]
        if len(places) > 1 and readers and vertex not in results:
            wanted = (placement.places.get(reader) for reader in readers)
            if all(at is not None and number not in at and at <= places for at in wanted):
                places.discard(number)
                del placement.home[vertex]
    left = [[v for v in c if placement.home.get(v) == n] for n, c in enumerate(clusters)]
    pairs = [(c, set(more)) for c, more in zip(left, clones, strict=True) if c]
    return [c for c, _ in pairs], [more for _, more in pairs]


def trimmed(
    tensors: Sequence[Tensor],
    clusters: Sequence[Sequence[int]],
    views: Sequence[bool],
    rates: Rates | None = None,
) -> list[list[int]]:
    """Return the clusters without views at their ends that are cheaper natively.

    Args:
        tensors: the tensors of the graph.
        clusters: the partition.
        views: for each vertex, whether it only gives another view of what it reads.
        rates: what a border costs.

    Example:
        >>> split = [Tensor(0, (1,), 96), *[Tensor(1, (), 32, result=True)] * 3]
        >>> trimmed(split, [[0, 1]], [False, True])
        [[0]]
    """
    rates = rates or Rates()
    near, placement = _Near(tensors), Placement(clusters)
    kept = []
    for number, cluster in enumerate(clusters):
        for vertex in reversed(cluster):
            readers = {reader for tensor in near.made[vertex] for reader in tensor.readers}
            if not views[vertex] or any(placement.home.get(reader) == number for reader in readers):
                continue
            before = near.cost(vertex, placement, rates)
            del placement.home[vertex], placement.places[vertex]
            if near.cost(vertex, placement, rates) + rates.native >= before:
                placement.home[vertex], placement.places[vertex] = number, {number}
        kept.append([vertex for vertex in cluster if placement.home.get(vertex) == number])
    return [cluster for cluster in kept if cluster]
