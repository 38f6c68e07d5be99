"""why_not, explain and blame, on graphs of named operations and on captured ones."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import torch_galley
from torch_galley.cluster.seed import GraphOp, SeedGraph
from torch_galley.core.errors import ToolError
from torch_galley.tools.report import others
from torch_galley.tools.report.report import Report


def named(text, native=""):
    """Report a graph written as "a>b b>c"; operations in `native` XLA can't take."""
    inputs: dict[str, list[str]] = {}
    for word in text.split():
        ends = word.split(">")
        for source, target in zip([None, *ends], ends, strict=False):
            inputs.setdefault(target, []).extend([source] if source else [])
    ops = [GraphOp(n, n if n in native.split() else "ok", tuple(i)) for n, i in inputs.items()]
    return others.of_seed(SeedGraph(tuple(ops), frozenset({"ok"}), "graph"))


def changed(report, **nodes):
    """Give nodes another device or scope, after the cut: clusters stay as they are."""
    (graph,) = report.graphs
    made = [replace(node, **nodes.get(node.name, {})) for node in graph.nodes]
    return Report(report.name, (replace(graph, nodes=tuple(made)),))


def test_together():
    assert named("a>b").why_not("a", "b").cause == "together"


def test_a_native_operation_between():
    why = named("a>b>N>c a>c", "N").why_not("a", "c")
    assert (why.cause, why.path, why.native) == ("path", ("a", "b", "N", "c"), ("N",))
    assert "between them N runs natively" in why.text()
    assert why.to_json()["path"] == ["a", "b", "N", "c"]


def test_the_other_way_round():
    assert named("a>N>c", "N").why_not("c", "a").path == ("a", "N", "c")


def test_one_or_both_native():
    report = named("a>N>M>c", "N M")
    assert report.why_not("a", "N").sentence == "N runs natively: no lowering for N"
    both = report.why_not("M", "N").sentence
    assert "M runs natively" in both
    assert "N runs natively" in both


def test_no_edge():
    why = named("a b N", "N").why_not("a", "b")
    assert why.cause == "no edge"
    assert "horizontal" in why.sentence


def test_clusters_apart_though_their_operations_are_not():
    """a and b have no path over N, but what they are clustered with has."""
    why = named("a>x x>N N>y b>y", "N").why_not("a", "b")
    assert why.cause == "path"
    assert why.native == ("N",)


@pytest.mark.parametrize(("field", "cause"), [("device", "device"), ("scope", "scope")])
def test_limits(field, cause):
    report = named("a>N>c", "N")
    apart = changed(report, a={field: "one"}, c={field: "two"})
    why = apart.why_not("a", "c")
    assert why.cause == cause
    assert "one and two" in why.sentence


def test_budget_is_said_when_nothing_else_explains():
    """A cut that no contraction would leave: a and c joined by an edge, and by nothing else."""
    report = named("a>N>c", "N")
    (graph,) = report.graphs
    nodes = [replace(n, before=(0,)) if n.name == "c" else n for n in graph.nodes]
    nodes = [replace(n, before=()) if n.name == "N" else n for n in nodes]
    why = Report("cut", (replace(graph, nodes=tuple(nodes)),)).why_not("a", "c")
    assert why.cause == "budget"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [("aa", "a", "did you mean 'a'"), ("w", "a", "w is an input of the graph")],
)
def test_names_that_are_no_operations(a, b, said):
    report = others.of_seed(SeedGraph((GraphOp("a", "ok", ("w",)),), frozenset({"ok"}), "graph"))
    with pytest.raises(ToolError, match=said):
        report.why_not(a, b)


def test_size_scope_and_small_clusters_of_a_captured_graph():
    def chain(x):
        return x.sin().cos().tanh().exp()

    graph = make_fx(chain, tracing_mode="fake")(torch.ones(4))
    sized = torch_galley.explain(graph, options={"max_cluster_size": 2})
    why = sized.why_not("sin", "exp")
    assert why.cause == "size"
    assert "max_cluster_size=2" in why.sentence
    small = torch_galley.explain(graph, options={"deny_ops": ["aten.cos"], "min_cluster_size": 2})
    why = small.why_not("sin", "exp")
    assert why.cause == "native"
    assert "below min_cluster_size=2" in why.sentence
    assert why.native == ("sin", "cos")
    assert "cluster of 1 is below" in small.explain("sin")
    assert "kept out of XLA: aten.cos.default denied by deny_ops" in small.explain("cos")
    assert "XLA can take it" in small.explain("exp")


@st.composite
def seeds(draw):
    count = draw(st.integers(2, 12))
    native = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    ops = []
    for v in range(count):
        sources = draw(st.sets(st.integers(0, v - 1), max_size=3)) if v else set()
        kind = f"native{draw(st.integers(0, 1))}" if native[v] else "ok"
        ops.append(GraphOp(f"v{v}", kind, tuple(f"v{s}" for s in sorted(sources))))
    return SeedGraph(tuple(ops), frozenset({"ok"}), "graph")


@settings(max_examples=60, deadline=None)
@given(seeds())
def test_every_witness_is_a_path_and_shows_a_reason(graph):
    report = others.of_seed(graph)
    inputs = {op.name: set(op.inputs) for op in graph.ops}
    kind = {op.name: op.op_type for op in graph.ops}
    cluster = {n: c.name for c in report.graphs[0].clusters for n in _names(report, c)}
    for a in inputs:
        for b in inputs:
            if a == b:
                continue
            why = report.why_not(a, b)
            if kind[a] != "ok" or kind[b] != "ok":
                assert why.cause == "native"
                continue
            assert (why.cause == "together") == (cluster[a] == cluster[b])
            if why.cause == "together":
                continue
            # There are no limits here, and contraction of so few never runs out of budget.
            assert why.cause in ("path", "no edge")
            for one, two in zip(why.path, why.path[1:], strict=False):
                assert one in inputs[two] or cluster.get(one, 1) == cluster.get(two, 2)
            if why.cause == "path":
                assert {cluster[why.path[0]], cluster[why.path[-1]]} == {cluster[a], cluster[b]}
                assert any(kind[name] != "ok" for name in why.path)
            else:
                assert not _joined(inputs, cluster, cluster[a], cluster[b])


def _names(report, cluster):
    return [report.graphs[0].nodes[n].name for n in cluster.nodes]


def _joined(inputs, cluster, a, b):
    """Whether an edge joins two clusters."""
    pairs = {(cluster.get(s), cluster.get(t)) for t, sources in inputs.items() for s in sources}
    return bool({(a, b), (b, a)} & pairs)


@settings(max_examples=40, deadline=None)
@given(seeds().filter(lambda graph: len(graph.ops) <= 8))
def test_blame_agrees_with_brute_force(graph):
    """Of all ways to part the graph into connected clusters without a cycle, the fewest."""
    (found,) = others.of_seed(graph).graphs
    assert found.uncut.clusters == fewest(graph)
    for blame in found.blame:
        flipped = replace(graph, supported=graph.supported | {blame.op})
        assert blame.count == sum(op.op_type == blame.op for op in graph.ops)
        assert blame.uncut.clusters == fewest(flipped)


def fewest(graph):
    names = [op.name for op in graph.ops]
    ours = [v for v, op in enumerate(graph.ops) if op.op_type in graph.supported]
    edges = [(names.index(i), v) for v, op in enumerate(graph.ops) for i in op.inputs]
    best = len(ours)

    def legal(groups):
        owner = {v: n for n, group in enumerate(groups) for v in group}
        outer = {(owner.get(a, -1 - a), owner.get(b, -1 - b)) for a, b in edges}
        outer = {(a, b) for a, b in outer if a != b}
        while True:  # take away what nothing leads to
            left = {(a, b) for a, b in outer if any(t == a for _, t in outer)}
            if left == outer:
                return not outer
            outer = left

    def connected(group):
        reached, rest = {group[0]}, set(group[1:])
        while near := {v for v in rest for r in reached if (v, r) in edges or (r, v) in edges}:
            reached |= near
            rest -= near
        return not rest

    def parts(index, groups):
        nonlocal best
        if len(groups) >= best and index < len(ours):
            return
        if index == len(ours):
            if len(groups) < best and all(map(connected, groups)) and legal(groups):
                best = len(groups)
            return
        for n in range(len(groups)):
            parts(index + 1, [*groups[:n], [*groups[n], ours[index]], *groups[n + 1 :]])
        parts(index + 1, [*groups, [ours[index]]])

    parts(0, [])
    return best


def test_blame_is_what_a_cut_without_the_denial_is():
    def net(x):
        for _ in range(3):
            x = torch.nn.functional.gelu(x.sin() @ x).cos().sum(0, keepdim=True) + x
        return x

    graph = make_fx(net, tracing_mode="fake")(torch.ones(4, 4))
    options = {"min_cluster_size": 1}
    denied = torch_galley.explain(graph, options=options | {"deny_ops": ["aten.gelu"]})
    (blame,) = denied.graphs[0].blame
    free = torch_galley.explain(graph, options=options).graphs[0].total
    assert blame.then == blame.uncut == free
    assert blame.count == 3
    assert denied.to_json()["graphs"][0]["blame"][0]["clusters_fewer"] == (
        denied.clusters - free.clusters
    )
