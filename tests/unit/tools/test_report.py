"""The report in its forms: what is counted, JSON, DOT, diff, bundle, any graph."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torch_galley
from torch_galley.cluster import seed
from torch_galley.core.errors import ToolError
from torch_galley.observe.bundle import Bundle
from torch_galley.tools.report import others
from torch_galley.tools.report.report import Report

SEED = Path(__file__).parents[3] / "docs" / "examples" / "seed-graph.json"


def net(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return {"result": (y.sin() @ w.T).relu()}


@pytest.fixture(scope="module")
def graph():
    return make_fx(net, tracing_mode="fake")(torch.ones(4, 8), torch.ones(8, 16))


@pytest.fixture
def cut(graph):
    return torch_galley.explain(graph, options={"deny_ops": ["aten.gelu"]})


@pytest.fixture(scope="module")
def compiled():
    options = {"min_cluster_size": 1, "deny_ops": ["aten.gelu"]}
    w = torch.ones(8, 16)
    return torch_galley.report(net, torch.ones(4, 8), w, options=options, measured=True)


def test_what_xla_made_of_a_cluster(compiled):
    (graph,) = compiled.graphs
    assert graph.compile_seconds is not None
    for cluster in graph.clusters:
        made = cluster.compilation
        assert made is not None
        assert made.after.instructions + made.after.fused > 0
        assert made.argument_bytes == graph.bytes_of(c.node for c in cluster.inputs)
        assert made.output_bytes >= graph.bytes_of(c.node for c in cluster.outputs)
        assert cluster.measured is not None
        assert cluster.measured.speedup > 0
    said = compiled.text()
    for words in ("fusion: ", "layout: ", "constant folding: ", "memory planning: ", "measured S"):
        assert words in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_cluster_size": 3}, "kept by its size: 3 compute, min_cluster_size is 3"),
        ({"min_cluster_size": 9, "must_compile": ("relu",)}, "kept by must_compile"),
        ({"decide": "model", "min_speedup": 0}, "kept by the model"),
        ({"decide": "model", "min_speedup": 99, "must_compile": ("relu",)}, "kept by must_compile"),
        (
            {"decide": "measure", "time_all": True},
            "kept until it is timed at the first call; the whole graph will be timed",
        ),
    ],
)
def test_why_a_cluster_is_kept(graph, options, said):
    told = torch_galley.explain(graph, options={"deny_ops": ["aten.gelu"], **options}).graphs[0]
    last = told.clusters[-1]
    assert last.verdict == said
    assert (last.predicted is not None, told.rates) == (True, "shipped")


def test_what_was_timed_is_told(tmp_path):
    options = {"decide": "measure", "time_all": True, "decisions": str(tmp_path / "d.json")}
    given = torch.ones(4, 8), torch.ones(8, 16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not measured: no cluster ran")
        found = torch_galley.report(net, *given, options=options, measured=True).graphs[0]
    native = [node.native.code for node in found.nodes if node.native]
    assert set(native) <= {"WholeElsewhere"}
    for cluster in found.clusters:
        assert re.match("kept by timing; the whole graph was timed: clus", cluster.verdict)
        assert cluster.measured is not None
    assert found.clusters or native


def test_flops_of_a_clone_count_once(cut):
    (graph,) = cut.graphs
    twice = replace(graph.clusters[0], name="again")
    doubled = replace(graph, clusters=(*graph.clusters, twice))
    assert doubled.clustered_flops == graph.clustered_flops == 2 * 2 * 4 * 8 * 16


def test_both_sides_of_a_border(cut):
    first, second = cut.to_json()["graphs"][0]["clusters"]
    (given,) = first["outputs"]
    assert (given["tensor"], given["type"], given["others"]) == ("mm", "float32[4,16]", ["gelu"])
    taken = {item["tensor"]: item["others"] for item in second["inputs"]}
    assert taken["gelu"] == ["gelu"]
    assert all(who == ["inputs"] for name, who in taken.items() if name != "gelu")
    assert first["edges"] == [["mm", "gelu"]]
    assert first["border"]["edge_bytes"] == 4 * 16 * 4


def test_peak_is_what_is_alive_at_once():
    def chain(x):  # at most two of these live at a time
        for _ in range(5):
            x = torch.ops.aten.bernoulli(x)
        return x

    graph = make_fx(chain, tracing_mode="fake")(torch.ones(256))
    assert torch_galley.explain(graph).graphs[0].peak_bytes == 3 * 1024  # and the input


def test_what_if(graph):
    found = torch_galley.explain(graph, options={"deny_ops": ["aten.gelu"]}).graphs[0].what_if
    assert [size for size, _ in found] == [1, 2, 4, 8, 16]
    for size, total in found:
        options = {"deny_ops": ["aten.gelu"], "min_cluster_size": size}
        assert torch_galley.explain(graph, options=options).graphs[0].total == total


def test_json_is_stable_and_plain(graph, cut):
    again = torch_galley.explain(graph, options={"deny_ops": ["aten.gelu"]})
    assert json.dumps(again.to_json()) == json.dumps(cut.to_json())
    assert json.loads(json.dumps(cut.to_json(), allow_nan=False)) == cut.to_json()


def test_a_bundle_answers_as_the_report_does(cut, tmp_path):
    read = Report.load(cut.save(tmp_path / "run"))
    assert read.why_not("mm", "mm_1") == cut.why_not("mm", "mm_1")
    told, given = read.to_json()["graphs"][0], cut.to_json()["graphs"][0]
    for item in (*told["native"], *given["native"]):
        item.pop("site")  # in a bundle, without the home folder's name
    assert told == given
    assert cut.diff(read).empty


def test_without_source(cut, tmp_path):
    folder = cut.without_source().save(tmp_path / "run")
    assert Bundle.load(folder).blocks["source"] == {"files": {}}
    assert "gelu(x @ w)" not in Report.load(folder).text()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda b: b["graph"]["graphs"][0]["columns"]["inputs"].__setitem__(0, [5]), "not before"),
        (lambda b: b["graph"]["graphs"][0]["columns"].pop("kind"), "kind is None, not a column"),
        (lambda b: b["overview"]["graphs"][0]["steps"].append(99), "its steps are not"),
        (lambda b: b["overview"]["graphs"][0]["clusters"][0]["nodes"].append(-1), "not there"),
        (lambda b: b["overview"].update(graphs=3), "no lists of one length"),
        (lambda b: b["overview"]["graphs"][0].update(role=7), "role is 7, not a text"),
        (lambda b: b["overview"]["graphs"][0].pop("total"), "not an object with 'total'"),
        (lambda b: b.pop("source"), "has no block 'source'"),
        (lambda b: b["overview"].update(name="x" * 70_000), "has 70000 characters"),
        (lambda b: b["overview"]["graphs"][0]["clusters"][0].update(nodes=[]), "has no nodes"),
    ],
)
def test_a_hostile_bundle_is_refused(cut, tmp_path, spoil, said):
    found = Bundle.load(cut.save(tmp_path / "run"))
    blocks = json.loads(json.dumps(found.blocks))
    spoil(blocks)
    Bundle(blocks).save(tmp_path / "run")
    with pytest.raises(ToolError, match=said):
        Report.load(tmp_path / "run")


def test_dot_can_be_read(cut):
    text = replace(cut, name='evil"; \\ \n name').to_dot()
    assert text.count("{") == text.count("}")
    quoted = r'"(?:[^"\\]|\\.)*"'
    line = re.compile(
        rf"digraph {quoted} {{|  (?:node|edge) \[.*\];|  subgraph {quoted} {{|  }}|}}|"
        rf"    label={quoted}; color=navy; penwidth=2;|"
        rf"    {quoted} \[label={quoted}\];|"
        rf"  {quoted} \[label={quoted}, style=dashed, color=goldenrod4, tooltip={quoted}\];|"
        rf"  {quoted} -> {quoted}(?: \[label={quoted}, color=mediumvioletred\])?;"
    )
    assert [row for row in text.splitlines() if not line.fullmatch(row)] == []
    ends = re.findall(rf"({quoted}) -> ({quoted})", text)
    declared = set(re.findall(rf"^ +({quoted}) \[label", text, re.M))
    assert {end for pair in ends for end in pair} <= declared
    assert len(ends) >= 5


def test_diff(graph, cut):
    free = torch_galley.explain(graph)
    found = cut.diff(free)
    (one,) = found.graphs
    assert one.entered == (("gelu", "aten.gelu.default"),)
    assert (one.before["clusters"], one.after["clusters"]) == (2, 1)
    assert "in XLA now: 1 x aten.gelu.default" in found.text()
    assert "native now: 1 x aten.gelu.default (aten.gelu.default denied" in free.diff(cut).text()
    assert cut.diff(cut).text() == "no difference"
    assert json.dumps(found.to_json())


def test_graphs_that_are_new_or_gone(cut):
    twice = Report("two", cut.graphs * 2)
    assert cut.diff(twice).text() == "new: 1 graph (given)"
    assert twice.diff(cut).to_json()["gone_graphs"] == ["given"]


def test_a_graph_without_values_is_told_by_names():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.act = torch.nn.LayerNorm(4), torch.nn.ReLU()

        def forward(self, x):
            return torch.nonzero(self.act(self.norm(x) + 1)).sin()

    told = torch_galley.explain(torch.fx.symbolic_trace(Net()))
    assert [n.name for n in map(told.graphs[0].nodes.__getitem__, told.graphs[0].native)] == [
        "nonzero"
    ]
    assert told.clusters == 2
    assert "bytes, FLOPs and memory are not known" in told.text()
    assert told.to_json()["graphs"][0]["sizes_known"] is False


def test_the_given_graph_stays_as_it_is(graph):
    before = str(graph.graph)
    torch_galley.explain(graph)
    assert str(graph.graph) == before


SEED_TEXT = """\
seed-graph.json: 4 of 7 operations in 2 XLA clusters, coverage η = 57.1%
1 graph (1 named), no break
The graph has no tensors: bytes, FLOPs and memory are not known.

named graph: 4 of 7 operations in 2 clusters, η = 57.1% by nodes
  at least 2 clusters needed; over borders 5 tensors, ∂C 2 edges
  xla_0: 3 operations, 3 compute
    made of conv2d, relu, matmul
    enters at c1
    leaves at m1
    in 2 tensors; out 2 tensors
    takes x
    gives r1 to p1, m1 to l1
    border to other operations: ∂C 2 edges
  xla_1: 1 operation, 1 compute
    made of add
    enters at a1
    leaves at a1
    in 2 tensors; out 1 tensor
    takes l1
    gives a1 to results
    border to other operations: ∂C 0 edges
  native: 3 operations
    no lowering: 3
      input, pool, custom_nms, line unknown
  if XLA had it, there would be:
    custom_nms: 1 operation more in XLA, 1 cut fewer, η = 71.4%
    input: 1 operation more in XLA, η = 71.4%
    pool: 1 operation more in XLA, η = 71.4%
  with min_cluster_size =           1          2          4          8         16
  clusters                          2          1          0          0          0
  η                             57.1%      42.9%       0.0%       0.0%       0.0%
  tensors over borders              5          3          0          0          0
  ∂C edges                          2          2          0          0          0
  warning: 2 clusters of fewer than 4 operations that compute: xla_0, xla_1"""


def test_the_seeds_graph(tmp_path):
    told = others.of_seed(seed.load(SEED))
    assert told.text() == SEED_TEXT
    assert Report.load(told.save(tmp_path / "run")).text() == SEED_TEXT
