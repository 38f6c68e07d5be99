"""Contraction over random graphs, judged by brute force."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.dag import Dag, topological_order
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
