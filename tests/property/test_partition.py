"""Clusters of random graphs, judged by brute force."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import Limits, contract
from torch_galley.cluster.cut import Problem, cut, edge_weights
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.cluster.level import levels, unavoidable
from torch_galley.cluster.price import Price, Tensor, price
from torch_galley.cluster.rates import WORK, Rates
from torch_galley.cluster.refine import cloned, pruned, trimmed
from torch_galley.core.errors import ClusterError


@st.composite
def graphs(draw):
    """Draw a count, forward edges, and which vertices are supported."""
    count = draw(st.integers(1, 14))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.sets(st.sampled_from(pairs), max_size=28)) if pairs else set()
    supported = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return count, edges, supported


def dag_of(count, edges):
    return Dag.of([f"v{i}" for i in range(count)], edges)


def has_cycle(count: int, edges: set[tuple[int, int]]) -> bool:
    """Whether anything reaches itself, by Warshall's closure: none of the code under test."""
    reach = set(edges)
    for middle in range(count):
        into = [a for a in range(count) if (a, middle) in reach]
        out = [b for b in range(count) if (middle, b) in reach]
        reach |= set(product(into, out))
    return any((v, v) in reach for v in range(count))


def quotient(count, edges, clusters):
    """Shrink each cluster to a point: the owner of each vertex, and the edges between owners."""
    owner = list(range(count))
    for cluster in clusters:
        for v in cluster:
            owner[v] = cluster[0]
    return owner, {(owner[a], owner[b]) for a, b in edges if owner[a] != owner[b]}


@given(graphs())
def test_each_supported_vertex_is_in_one_cluster(graph):
    count, edges, supported = graph
    clusters = contract(dag_of(count, edges), supported)
    assert sorted(v for c in clusters for v in c) == [v for v in range(count) if supported[v]]
    assert clusters == sorted(sorted(c) for c in clusters)


@given(graphs())
def test_the_quotient_has_no_cycle(graph):
    count, edges, supported = graph
    dag = dag_of(count, edges)
    clusters = contract(dag, supported)
    assert not has_cycle(count, quotient(count, edges, clusters)[1])
    check(dag, clusters)


@given(graphs())
def test_clusters_are_connected(graph):
    count, edges, supported = graph
    for cluster in contract(dag_of(count, edges), supported):
        reached, rest = {cluster[0]}, set(cluster[1:])
        while near := {v for v in rest if any((v, r) in edges or (r, v) in edges for r in reached)}:
            reached |= near
            rest -= near
        assert not rest


@given(graphs())
def test_no_edge_is_left_that_could_be_merged(graph):
    count, edges, supported = graph
    clusters = contract(dag_of(count, edges), supported)
    owner, between = quotient(count, edges, clusters)
    for a, b in between:
        if supported[a] and supported[b]:
            merged = [a if o == b else o for o in owner]
            outer = {(merged[x], merged[y]) for x, y in edges if merged[x] != merged[y]}
            assert has_cycle(count, outer), f"v{a} and v{b} could be one"


@given(graphs())
def test_a_second_contraction_changes_nothing(graph):
    count, edges, supported = graph
    owner, between = quotient(count, edges, contract(dag_of(count, edges), supported))
    points = sorted(set(owner))
    pairs = [(points.index(a), points.index(b)) for a, b in between]
    order = topological_order(len(points), pairs, range(len(points)))
    place = {v: rank for rank, v in enumerate(order)}
    again = contract(
        dag_of(len(points), [(place[a], place[b]) for a, b in pairs]),
        [supported[points[v]] for v in order],
    )
    assert all(len(cluster) == 1 for cluster in again)


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_in_which_edges_come_does_not_matter(graph, random):
    count, edges, supported = graph
    shuffled = list(edges)
    random.shuffle(shuffled)
    wanted = contract(dag_of(count, sorted(edges)), supported)
    assert contract(dag_of(count, shuffled), supported) == wanted


@given(graphs(), st.integers(0, 3))
def test_a_small_budget_is_still_legal(graph, budget):
    count, edges, supported = graph
    clusters = contract(dag_of(count, edges), supported, budget=budget)
    assert not has_cycle(count, quotient(count, edges, clusters)[1])


@settings(max_examples=300)
@given(graphs(), st.data())
def test_the_checker_agrees_with_brute_force(graph, data):
    count, edges, _ = graph
    labels = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    clusters = [c for k in range(4) if (c := [v for v in range(count) if labels[v] == k])]
    try:
        check(dag_of(count, edges), clusters)
        accepted = True
    except ClusterError:
        accepted = False
    assert accepted is not has_cycle(count, quotient(count, edges, clusters)[1])


@st.composite
def problems(draw):
    """Draw a graph whose vertices make a tensor each, some of them results."""
    count, edges, supported = draw(graphs())
    sizes = draw(st.lists(st.integers(0, 1 << 24), min_size=count, max_size=count))
    results = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    tensors = [
        Tensor(v, tuple(b for a, b in sorted(edges) if a == v), sizes[v], results[v])
        for v in range(count)
    ]
    readers = draw(st.lists(st.integers(0, count - 1), max_size=3, unique=True))
    return Problem(dag_of(count, edges), supported, [*tensors, Tensor(None, tuple(readers), 64)])


def edges_of(dag: Dag) -> set[tuple[int, int]]:
    return {(a, b) for a, targets in enumerate(dag.successors) for b in targets}


def is_legal(dag: Dag, clusters) -> bool:
    return not has_cycle(len(dag.names), quotient(len(dag.names), edges_of(dag), clusters)[1])


def is_connected(dag: Dag, cluster) -> bool:
    near = edges_of(dag)
    reached, rest = {cluster[0]}, set(cluster[1:])
    while more := {v for v in rest if any((v, r) in near or (r, v) in near for r in reached)}:
        reached |= more
        rest -= more
    return not rest


@pytest.mark.parametrize("order", ["topo", "bytes", "auto"])
@given(problems())
def test_every_order_gives_legal_connected_clusters_that_could_not_grow(order, problem):
    clusters = cut(problem, order)
    inside = sorted(v for c in clusters for v in c)
    assert inside == [v for v, ours in enumerate(problem.supported) if ours]
    assert is_legal(problem.dag, clusters)
    assert all(is_connected(problem.dag, c) for c in clusters)
    for a, b in edges_of(problem.dag):
        ends = [c for c in clusters if a in c or b in c]
        if len(ends) == 2 and all(problem.supported[v] for v in (a, b)):
            rest = [c for c in clusters if c not in ends]
            assert not is_legal(problem.dag, [*rest, ends[0] + ends[1]])


@settings(deadline=None)  # it imports scipy at first
@given(problems())
def test_horizontal_clusters_are_legal_and_never_dearer(problem):
    clusters = cut(problem, horizontal=True)
    assert sorted(v for c in clusters for v in c) == [
        v for v, ours in enumerate(problem.supported) if ours
    ]
    assert is_legal(problem.dag, clusters)
    least = unavoidable(problem.dag, problem.supported)
    assert least <= len(clusters)
    assert least <= len(cut(problem))
    assert price(problem.tensors, clusters).seconds <= price(problem.tensors, cut(problem)).seconds


@given(graphs())
def test_levels_are_a_partition_with_the_fewest_clusters(graph):
    count, edges, supported = graph
    dag = dag_of(count, edges)
    level = levels(dag, supported)
    groups = [
        [v for v in range(count) if supported[v] and level[v] == n] for n in sorted(set(level))
    ]
    groups = [group for group in groups if group]
    assert is_legal(dag, groups)
    assert len(groups) == unavoidable(dag, supported)


@given(problems(), st.data())
def test_price_counts_what_crosses(problem, data):
    count = len(problem.dag.names)
    labels = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    clusters = [c for k in range(3) if (c := [v for v in range(count) if labels[v] == k])]
    crossed = []
    for tensor in problem.tensors:
        for cluster in clusters:
            made, wanted = tensor.maker in cluster, set(tensor.readers) & set(cluster)
            leaves = made and (tensor.result or set(tensor.readers) - set(cluster))
            if leaves or (wanted and not made):
                crossed.append(tensor)
    nbytes = sum(tensor.nbytes for tensor in crossed if tensor.maker is not None)
    rates = Rates(call=1, bring=100, take=100, work=dict.fromkeys(WORK, (0.0, 0.0)))
    wanted = Price(len(clusters), len(crossed), nbytes, len(clusters) + 100 * len(crossed))
    assert price(problem.tensors, clusters, rates=rates) == wanted


@given(problems(), st.data())
def test_refinement_never_makes_a_border_dearer(problem, data):
    count = len(problem.dag.names)
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    cheap = [a and b for a, b in zip(data.draw(flags), problem.supported, strict=True)]
    clusters = cut(problem)
    smaller = trimmed(problem.tensors, clusters, data.draw(flags))
    clones = cloned(problem.tensors, smaller, cheap)
    kept, copies = pruned(
        smaller,
        clones,
        problem.dag.successors,
        {t.maker for t in problem.tensors if t.maker is not None and t.result},
    )
    assert is_legal(problem.dag, smaller)
    assert is_legal(problem.dag, kept)
    seconds = [
        price(problem.tensors, *partition).seconds
        for partition in ((clusters,), (smaller,), (smaller, clones), (kept, copies))
    ]
    assert all(later <= sooner + 1e-12 for sooner, later in pairwise(seconds))
    for cluster, more in zip(smaller, clones, strict=True):
        assert all(cheap[v] for v in more)
        assert not more & set(cluster)


@settings(deadline=None)
@given(problems(), st.data(), st.booleans())
def test_limits_are_kept(problem, data, horizontal):
    count = len(problem.dag.names)
    several = {"min_size": count, "max_size": count}
    devices = data.draw(st.lists(st.sampled_from("ab"), **several))
    scopes = data.draw(st.lists(st.sampled_from([None, "x", "y"]), **several))
    limits = Limits(devices, scopes, data.draw(st.integers(1, 5)))
    limited = Problem(problem.dag, problem.supported, problem.tensors, limits)
    clusters = cut(limited, data.draw(st.sampled_from(["topo", "bytes", "auto"])), horizontal)
    assert is_legal(problem.dag, clusters)
    for cluster in clusters:
        assert len({devices[v] for v in cluster}) == 1
        assert len({scopes[v] for v in cluster} - {None}) <= 1
        assert len(cluster) <= limits.largest


@given(graphs(), st.integers(0, 13))
def test_one_more_supported_vertex_never_shrinks_what_is_covered(graph, number):
    count, edges, supported = graph
    more = [ours or v == number for v, ours in enumerate(supported)]
    covered = [sum(map(len, contract(dag_of(count, edges), which))) for which in (supported, more)]
    assert covered[0] <= covered[1]


def partitions(vertices):
    """Yield all ways to group a few vertices."""
    if not vertices:
        yield []
        return
    first, *rest = vertices
    for smaller in partitions(rest):
        for place in range(len(smaller)):
            yield [*smaller[:place], [first, *smaller[place]], *smaller[place + 1 :]]
        yield [[first], *smaller]


@settings(max_examples=60, deadline=None)
@given(problems().filter(lambda problem: sum(problem.supported) <= 6))
def test_all_partitions_of_small_graphs(problem):
    """The fewest clusters of all are those of the levels, the fewest connected ones contraction's.

    Connected ones by every order; and no partition at all has a cheaper border than horizontal
    cutting finds by more than a quarter.
    """
    vertices = [v for v, ours in enumerate(problem.supported) if ours]
    legal = [p for p in partitions(vertices) if is_legal(problem.dag, p)]
    assert min(map(len, legal)) == unavoidable(problem.dag, problem.supported)
    connected = [p for p in legal if all(is_connected(problem.dag, c) for c in p)]
    fewest = min(map(len, connected))
    for order in ("topo", "bytes"):
        found = contract(
            problem.dag, problem.supported, order=order, weights=edge_weights(problem.tensors)
        )
        assert fewest <= len(found) <= fewest + 1
    best = min(price(problem.tensors, p).seconds for p in legal)
    ours = price(problem.tensors, cut(problem, horizontal=True)).seconds
    assert best <= ours + 1e-12
    assert ours <= 1.25 * best + 1e-9
