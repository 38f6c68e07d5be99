"""Contraction on the integer graph: hubs, limits, the checker, and how time grows with size."""

import time

import pytest

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.dag import Dag
from torch_galley.core.errors import ClusterError


def test_a_hub_is_not_cut_off_by_its_many_natives():
    edges = [(0, i) for i in range(1, 1000)] + [(i, i + 1) for i in range(1, 999, 2)]
    dag = Dag.of([str(i) for i in range(1000)], edges)
    clusters = contract(dag, [i == 0 or i % 2 == 1 for i in range(1000)])
    assert clusters == [[0, *range(1, 1000, 2)]]


def test_backward_edge_is_refused():
    with pytest.raises(ClusterError, match="edge b -> a goes backwards"):
        Dag.of("ab", [(1, 0)])


class TestCheck:
    chain = Dag.of("abc", [(0, 1), (1, 2)])
    fork = Dag.of("abc", [(0, 1), (0, 2)])

    @pytest.mark.parametrize("clusters", [[[0, 1]], [[0]], [[0, 1, 2]], [], [[1], [0], [2]]])
    def test_good(self, clusters):
        check(self.chain, clusters)

    def test_not_convex(self):
        with pytest.raises(ClusterError, match="clusters form a cycle through: a, b, c"):
            check(self.chain, [[0, 2]])

    def test_two_clusters_that_need_each_other(self):
        dag = Dag.of("abcd", [(0, 2), (1, 3)])
        with pytest.raises(ClusterError, match="cycle"):
            check(dag, [[0, 3], [1, 2]])

    def test_in_two_clusters(self):
        with pytest.raises(ClusterError, match="b is in two clusters"):
            check(self.chain, [[0, 1], [1, 2]])

    def test_siblings_may_share(self):
        check(self.fork, [[1, 2]])


def seconds(count: int, edges, supported) -> float:
    dag = Dag.of([str(i) for i in range(count)], edges)
    best = float("inf")
    for _ in range(2):
        started = time.process_time()
        contract(dag, supported)
        best = min(best, time.process_time() - started)
    return best


def chain(count):
    return [(i, i + 1) for i in range(count - 1)]


GROWING = {
    "chain": lambda n: (chain(n), [True] * n),
    "chain, every second native": lambda n: (chain(n), [i % 2 == 0 for i in range(n)]),
    "hub": lambda n: (chain(n) + [(0, i) for i in range(2, n)], [i % 8 != 7 for i in range(n)]),
    "star": lambda n: ([(0, i) for i in range(1, n)], [True] * n),
    "sink": lambda n: ([(i, n - 1) for i in range(n - 1)], [True] * n),
    "readers of one chain": lambda n: (
        [(i, i + 2) for i in range(0, n - 2, 2)] + [(i, i + 1) for i in range(0, n - 1, 2)],
        [i % 2 == 0 for i in range(n)],
    ),
    "64 interleaved chains": lambda n: (
        [(i, i + 64) for i in range(n - 64)],
        [i % 10 != 9 for i in range(n)],
    ),
    "skips as in a U-net": lambda n: (
        chain(n) + [(i, n - 1 - i) for i in range(n // 2 - 1)],
        [i % 10 != 9 for i in range(n)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_time_grows_with_size_only(name):
    """Sixteen times the vertices: 16 times the time if linear, 256 times if quadratic."""
    small, large = (seconds(n, *GROWING[name](n)) for n in (2_000, 32_000))
    assert large < 96 * small


@pytest.mark.parametrize("name", GROWING)
def test_budget_costs_no_cluster_here(name):
    edges, supported = GROWING[name](2_000)
    dag = Dag.of([str(i) for i in range(2_000)], edges)
    clusters = contract(dag, supported)
    check(dag, clusters)
    assert len(clusters) == len(contract(dag, supported, budget=10**9))


def test_deep_chain_needs_no_recursion():
    dag = Dag.of([str(i) for i in range(20_000)], chain(20_000))
    assert contract(dag, [True] * 20_000) == [list(range(20_000))]


def test_a_million_vertices_in_a_chain():
    count = 1_000_000
    started = time.process_time()
    dag = Dag.of(["v"] * count, chain(count))
    assert len(contract(dag, [True] * count)) == 1
    assert time.process_time() - started < 60  # seconds where nothing else runs


def test_heavy_edges_come_first():
    """b goes with a or with d, for U stands between a and d."""
    dag = Dag.of(["a", "U", "b", "d"], [(0, 1), (1, 3), (0, 2), (2, 3)])
    supported = [True, False, True, True]
    for weights, wanted in (({(0, 2): 9}, [[0, 2], [3]]), ({(2, 3): 9}, [[0], [2, 3]])):
        assert contract(dag, supported, order="bytes", weights=weights) == wanted


def test_labels_may_run_out_of_digits():
    """Each new vertex is put between the last one and the hub, so that gaps halve."""
    count = 400
    edges = [(i, count) for i in range(count)] + [(i, i + 1) for i in range(count - 1)]
    edges += [(i, count + 1 + i) for i in range(count)]
    dag = Dag.of([str(i) for i in range(2 * count + 1)], sorted(edges))
    supported = [i % 3 != 1 for i in range(2 * count + 1)]
    check(dag, contract(dag, supported))
