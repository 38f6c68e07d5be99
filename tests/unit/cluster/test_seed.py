"""The graph of named operations: policies, entries, exits, borders, and malformed files."""

import json
import random

import pytest

from torch_galley.cluster.seed import GraphOp, SeedGraph, clusters, load, parse
from torch_galley.core.errors import ClusterError


def graph(text: str, supported: str) -> SeedGraph:
    """Read "name:type<input,input ..."."""
    ops = []
    for word in text.split():
        head, _, inputs = word.partition("<")
        name, _, kind = head.partition(":")
        ops.append(GraphOp(name, kind, tuple(filter(None, inputs.split(",")))))
    return SeedGraph(tuple(ops), frozenset(supported.split()))


SEED = "x:input c1:conv2d<x r1:relu<c1 p1:pool<r1 m1:matmul<r1,w l1:nms<m1 a1:add<l1,b"
SUPPORTED = "conv2d add matmul relu gelu layernorm"


def words(graph: SeedGraph, policy: str = "dependencies") -> list[str]:
    return [" ".join(c.op_names) for c in clusters(graph, policy)]


def test_dependencies_merge_across_what_only_stands_between():
    found = clusters(graph(SEED, SUPPORTED))
    assert [c.op_names for c in found] == [("x",), ("c1", "r1", "m1"), ("p1",), ("l1",), ("a1",)]
    assert [c.native for c in found] == [True, False, True, True, False]
    assert (found[1].entry_points, found[1].exit_points) == (("c1",), ("m1",))
    assert found[1].border == (("r1", "p1"), ("m1", "l1"))
    assert found[4].border == ()


def test_scan_cuts_the_list():
    assert words(graph(SEED, SUPPORTED), "scan") == ["x", "c1 r1", "p1", "m1", "l1", "a1"]


def test_scan_joins_what_is_not_connected_and_dependencies_do_not():
    apart = graph("a:add b:add", "add")
    assert words(apart, "scan") == ["a b"]
    assert words(apart) == ["a", "b"]


def test_order_of_the_list_does_not_matter_to_dependencies():
    ops = list(graph(SEED, SUPPORTED).ops)
    wanted = {frozenset(c.op_names) for c in clusters(graph(SEED, SUPPORTED))}
    for seed in range(20):
        random.Random(seed).shuffle(ops)
        found = clusters(SeedGraph(tuple(ops), frozenset(SUPPORTED.split())))
        assert {frozenset(c.op_names) for c in found} == wanted
        place = {name: c.number for c in found for name in c.op_names}
        assert all(place[u] < place[v] for c in found for u, v in c.border)


def test_repeated_input_is_one_edge():
    (a, b) = clusters(graph("a:nms b:add<a,a", "add"))
    assert a.border == (("a", "b"),)
    assert b.entry_points == ("b",)


@pytest.mark.parametrize("policy", ["dependencies", "scan"])
def test_deep_chain(policy):
    ops = [GraphOp(f"n{i}", "add", (f"n{i - 1}",)) for i in reversed(range(10_000))]
    (only,) = clusters(SeedGraph(tuple(ops), frozenset({"add"})), policy)
    assert only.op_names[0] == "n0"
    assert len(only.op_names) == 10_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the graph: no operations"),
        ("a:add a:add", "the graph: two operations are named 'a'"),
        ("a:add<a", "the graph: a cycle: a -> a"),
        ("x:add a:add<b,x b:add<a y:add<b", "the graph: a cycle: a -> b -> a"),
        ("a:add<c b:add<a c:add<b", "the graph: a cycle: a -> b -> c -> a"),
    ],
)
def test_graph_that_is_none(text, message):
    with pytest.raises(ClusterError) as caught:
        clusters(graph(text, "add"))
    assert caught.value.message == message


def test_long_cycle_is_drawn_short():
    ops = [GraphOp(f"n{i}", "add", (f"n{(i - 1) % 10_000}",)) for i in range(10_000)]
    with pytest.raises(ClusterError, match=r"n0 -> .* -> \.\.\. \(9989 more\) -> .* -> n0$"):
        clusters(SeedGraph(tuple(ops), frozenset()))


def test_unknown_policy():
    with pytest.raises(ClusterError) as caught:
        clusters(graph("a:add", "add"), "best")
    assert str(caught.value) == "unknown policy 'best'\n  hint: one of dependencies, scan"


GOOD = {"name": "a", "op_type": "add", "inputs": []}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "g: 3 is not an object"),
        ({}, "g: field 'ops' is missing"),
        ({"ops": {}}, "g: ops is {}, not a list"),
        ({"ops": [], "support": []}, "g: unknown field 'support'"),
        ({"ops": []}, "g: which operation types are supported is not said"),
        ({"ops": [], "supported": "add"}, "g: supported is 'add', not a list"),
        ({"ops": [], "supported": ["add", 1]}, "g: supported has 1, which is not a string"),
        ([3], "g: ops[0]: 3 is not an object"),
        ([GOOD, {"name": "b"}], "g: ops[1] ('b'): field 'op_type' is missing"),
        ([{"op_type": "add"}], "g: ops[0]: field 'name' is missing"),
        ([{"name": 1, "op_type": "add"}], "g: ops[0]: name is 1, not a string"),
        ([GOOD | {"inputs": "x"}], "g: ops[0] ('a'): inputs is 'x', not a list"),
        ([GOOD | {"inputs": [None]}], "g: ops[0] ('a'): inputs has None, which is not a string"),
        ([GOOD | {"input": []}], "g: ops[0] ('a'): unknown field 'input'"),
    ],
)
def test_malformed(data, message):
    supported = ["add"] if isinstance(data, list) else None
    with pytest.raises(ClusterError) as caught:
        parse(data, "g", supported)
    assert caught.value.message == message


def test_list_of_operations_needs_the_supported_types():
    assert parse([GOOD], "g", ["add"]) == SeedGraph((GraphOp("a", "add"),), frozenset({"add"}))


def test_given_types_win_over_the_files():
    assert parse({"ops": [GOOD], "supported": ["mul"]}, "g", ["add"]).supported == {"add"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"ops": [,]}', ":1:10: not JSON: Expecting value"),
        (b"[\n  1 2\n]", ":2:5: not JSON: Expecting ',' delimiter"),
        (b"", ":1:1: not JSON: Expecting value"),
        (b"\xff\xfe", ": not UTF-8 text"),
        (b"[" * 100_000, ": nested too deeply"),
        (b'{"ops": [], "ops": []}', ": field 'ops' is given twice in one object"),
    ],
)
def test_unreadable_file(tmp_path, content, message):
    path = tmp_path / "g.json"
    path.write_bytes(content)
    with pytest.raises(ClusterError) as caught:
        load(path)
    assert caught.value.message == f"{path}{message}"


def test_a_number_too_long_to_read(tmp_path):
    path = tmp_path / "g.json"
    path.write_text("9" * 5000)
    with pytest.raises(ClusterError, match=r"g\.json: Exceeds the limit"):
        load(path)


def test_control_characters_are_spelled_out():
    ops = (GraphOp("a\x1b[2J", "add", ("a\x1b[2J",)),)
    with pytest.raises(ClusterError) as caught:
        clusters(SeedGraph(ops, frozenset()))
    assert str(caught.value) == r"the graph: a cycle: a\x1b[2J -> a\x1b[2J"


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ClusterError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(ClusterError, match="Is a directory"):
        load(tmp_path)


def test_load(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"ops": [GOOD], "supported": ["add"]}))
    assert load(path) == parse([GOOD], "g", ["add"])
