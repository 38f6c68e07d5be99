"""Contraction on the integer graph: shapes that other partitioners' tests have, and big ones."""

import time

import pytest

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.core.errors import ClusterError


def clustered(text: str, native: str = "") -> list[str]:
    """Contract a graph written as "a>b b>c d"; return clusters as words joined by spaces."""
    names: list[str] = []
    edges = []
    for word in text.split():
        ends = word.split(">")
        names += [end for end in ends if end not in names]
        edges += [(ends[i], ends[i + 1]) for i in range(len(ends) - 1)]
    pairs = [(names.index(a), names.index(b)) for a, b in edges]
    order = topological_order(len(names), pairs, range(len(names)))
    place = {v: rank for rank, v in enumerate(order)}
    dag = Dag.of([names[v] for v in order], [(place[a], place[b]) for a, b in pairs])
    outside = native.split()
    clusters = contract(dag, [name not in outside for name in dag.names])
    check(dag, clusters)
    return sorted(" ".join(sorted(dag.names[v] for v in c)) for c in clusters)


SHAPES = {
    "chain with natives": ("U>a>b>V>c>d", "U V", ["a b", "c d"]),
    "triangle through a native": ("a>U>c a>c", "U", ["a", "c"]),
    "triangle, all supported": ("a>b>c a>c", "", ["a b c"]),
    "shape reader, all supported": ("x>y>n>z", "", ["n x y z"]),
    # the 18 shapes of PyTorch's own partitioner tests
    "f1": (
        "a0>a1>a2>R>a4>a5>S>a6>a7 a1>a3 a2>a3 a1>a4 a3>a5 a5>a6 a5>a7",
        "R S",
        ["a0 a1 a2", "a3 a4 a5", "a6 a7"],
    ),
    "f2": ("x>y>U>z y>z z>w y>w", "U", ["w z", "x y"]),
    "f3: independent": ("a b c", "", ["a", "b", "c"]),
    "f4: joined by a native": ("a>W b>W c>W", "W", ["a", "b", "c"]),
    "f5": ("x>U x>y", "U", ["x y"]),
    "f6": ("x>U x>V", "U V", ["x"]),
    "f7: fan-out rejoined": ("a>b>d a>c>d", "", ["a b c d"]),
    "f8: fan-out rejoined in two steps": ("a>b>d a>c>d d>e c>e", "", ["a b c d e"]),
    "f9: fan-out not rejoined": ("a>b a>c a>d", "", ["a b c d"]),
    "f10: two levels of fan-out": ("a>b>d a>b>e a>c>f", "", ["a b c d e f"]),
    "f11": ("x>U>y x>y x>V", "U V", ["x", "y"]),
    # b0 with b1, or c0 with c2, but not both: the case for stale dependency maps
    "f12: crossed butterfly": ("b0>U0>c2 c0>U1>b1 b0>b1 c0>c2", "U0 U1", ["b0", "b1", "c0 c2"]),
    "f13: fan-out to an end": ("a>b>e a>c>e a>d>e", "", ["a b c d e"]),
    "f14: chain and shortcut": ("a>b>c>d a>d b>d", "", ["a b c d"]),
    "f15: shortcut over a native": ("a>b>U>c>d b>d", "U", ["a b", "c d"]),
    "f16: native between twins": ("a>U>b a>V>c b>d c>d", "U V", ["a", "b c d"]),
    "f17: independent outputs": ("a+b c+d e+f", "", ["a+b", "c+d", "e+f"]),
    "f18: native with two readers": ("a>U>g0>b U>g1>b", "U", ["a", "b g0 g1"]),
    "two branches": ("s>U>t", "U", ["s", "t"]),
    "two natives between convolutions": (
        "c1>c2>U>c3>c4>r V>c3",
        "U V",
        ["c1 c2", "c3 c4 r"],
    ),
    "empty": ("", "", []),
    "all native": ("a>b", "a b", []),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name):
    text, native, wanted = SHAPES[name]
    assert clustered(text, native) == wanted


def test_seed():
    assert clustered("x>c1>r1>p1 r1>m1>l1>a1", "x p1 l1") == ["a1", "c1 m1 r1"]


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
