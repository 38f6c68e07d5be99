"""explain: what it says, what it counts, and what it leaves alone."""

import json
from pathlib import Path

import pytest
import torch

import torch_galley
from torch_galley.core.errors import ToolError
from torch_galley.tools.report.shown import merged, place


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.b = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.nn.functional.gelu(self.a(x)))


def test_the_page_of_a_small_model(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    with torch.no_grad():
        told = torch_galley.explain(Net(), torch.ones(2, 8), options={"deny_ops": ["aten.gelu"]})
    name = told.graphs[0].fingerprint
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text("utf-8").splitlines(), 1)
        if "functional.gelu" in text
    )
    wanted = f"""\
Net: 4 of 5 operations in 2 XLA clusters, coverage η = 80.0%
1 graph (1 inference), no break
100.0% of 768 FLOP in XLA, counted by torch.utils.flop_counter: products, convolutions, attention
S is predicted by another machine's rates; galley calibrate measures this one's.

inference graph {name}: 4 of 5 operations in 2 clusters, η = 80.0% by nodes, 100.0% by FLOPs,
  55.6% by bytes made
  at least 2 clusters needed; over borders 3 tensors 288 B, ∂C 1 edge; peak 1.1 KiB, predicted
  xla_{name}_0: 2 operations, 1 compute, 512 FLOP
    made of aten.t.default, aten.addmm.default
    enters at t
    leaves at addmm
    in 3 tensors 640 B; out 1 tensor 128 B
    of it the graph's own inputs: 3 tensors 640 B
    gives addmm float32[2,16]@cpu to gelu
    border to other operations: ∂C 1 edge, D(C) 128 B
    predicted S = 0.29 = ΣT_op 2.61 µs / (T_fused 3.01 µs + T_sync 6 µs)
    kept by its size: 1 compute, min_cluster_size is 1
  xla_{name}_1: 2 operations, 1 compute, 256 FLOP
    made of aten.t.default, aten.addmm.default
    enters at t_1
    leaves at addmm_1
    in 3 tensors 400 B; out 1 tensor 32 B
    of it the graph's own inputs: 2 tensors 272 B
    takes gelu float32[2,16]@cpu
    gives addmm_1 float32[2,4]@cpu to results
    border to other operations: ∂C 0 edges, D(C) 0 B
    predicted S = 0.29 = ΣT_op 2.61 µs / (T_fused 3.01 µs + T_sync 6 µs)
    kept by its size: 1 compute, min_cluster_size is 1
  native: 1 operation
    denied by deny_ops: 1
      aten.gelu.default at test_explain.py:{line} in forward
        return self.b(torch.nn.functional.gelu(self.a(x)))
  if XLA had it, there would be:
    aten.gelu.default: 1 operation more in XLA, 1 cut fewer, 256 B less over borders, η = 100.0%
  with min_cluster_size =           1          2          4          8         16
  clusters                          2          0          0          0          0
  η                             80.0%       0.0%       0.0%       0.0%       0.0%
  tensors over borders              3          0          0          0          0
  ∂C edges                          1          0          0          0          0
  bytes over borders            288 B        0 B        0 B        0 B        0 B
  warning: 2 clusters of fewer than 4 operations that compute: xla_{name}_0, xla_{name}_1
  warning: xla_{name}_0 is predicted to be bound by its border: T_sync 6 µs, T_fused 3 µs
  warning: xla_{name}_1 is predicted to be bound by its border: T_sync 6 µs, T_fused 3 µs"""
    assert told.text() == wanted
    assert repr(told) == wanted


def test_the_backward_graph_is_told_and_not_run():
    model, x = Net(), torch.ones(2, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = torch_galley.explain(model, x)
    assert [graph.role for graph in told.graphs] == ["forward", "backward"]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert "2 graphs (1 forward, 1 backward)" in told.text()


def test_xla_is_asked_to_run_nothing():
    torch_galley.explain(Net(), torch.ones(2, 8))
    assert torch_galley.metrics()["compiles"] == 0
    assert torch_galley.metrics()["executions"] == 0


def test_captures_of_the_user_stay(galley):
    model = Net()
    compiled = galley(model)
    compiled(torch.ones(2, 8))
    before = torch_galley.metrics()["graphs"]
    torch_galley.explain(model, torch.ones(2, 8))
    torch_galley.explain(compiled, torch.ones(2, 8))
    compiled(torch.ones(2, 8))
    assert torch_galley.metrics()["graphs"] == before


def test_explained_often_is_explained_still():
    model = Net()
    for _ in range(10):  # more than Dynamo's recompile limit
        assert len(torch_galley.explain(model, torch.ones(2, 8)).graphs) == 2


def test_graph_breaks_have_reason_and_line():
    def function(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    told = torch_galley.explain(function, torch.ones(2))
    assert len(told.graphs) == 2
    (one,) = told.breaks
    assert one.site is not None
    assert one.site.code == "torch._dynamo.graph_break()"
    assert one.site.function == "function"
    assert "1 graph break:" in told.text()
    assert "graph_break()" in told.to_json()["graph_breaks"][0]["reason"]


def test_reasons_with_module_and_line():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    class Layer(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.gelu(x)

    model = Layers()
    told = torch_galley.explain(model, torch.ones(2), options={"deny_ops": ["aten.gelu"]})
    assert "3 x aten.gelu.default at" in told.text()
    assert "# in layers.{0-2}" in told.text()
    (native, *_) = told.to_json()["graphs"][0]["native"]
    assert native["reason"]["code"] == "DeniedByUser"
    assert native["module"] == "layers.0"
    assert "gelu" in native["code"]


def test_json_is_plain_and_complete():
    told = torch_galley.explain(Net(), torch.ones(2, 8)).to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["coverage"] == 1.0
    assert told["flops"] == told["clustered_flops"] == 768 + 1024
    cluster = told["graphs"][0]["clusters"][0]
    assert cluster["entry_points"] == ["t", "t_1"]
    assert cluster["exit_points"] == ["addmm_1"]
    assert cluster["border"]["tensors_in"] == 5


def test_symbolic_sizes_are_said_to_be_estimates():
    x = torch.ones(5, 3)
    torch._dynamo.mark_dynamic(x, 0)
    told = torch_galley.explain(lambda x: x @ x.T, x)
    assert told.to_json()["flops"] == 2 * 5 * 3 * 5
    assert told.to_json()["graphs"][0]["sizes_as_first_seen"]
    assert "Sizes are symbolic" in told.text()


def test_a_call_without_tensors():
    told = torch_galley.explain(lambda: 3)
    assert told.text() == "<lambda>: nothing to compile, the call made no tensor operations"
    assert told.coverage == 1.0


def test_more_entry_points_than_shown():
    def function(*xs):
        return sum(x.sin() for x in xs)

    told = torch_galley.explain(function, *(torch.ones(2) for _ in range(10)))
    assert "and 2 more" in told.text()
    assert "more" not in told.text(limit=None)


def test_not_callable():
    with pytest.raises(ToolError, match="a int can't be explained"):
        torch_galley.explain(3)


def test_unknown_option():
    with pytest.raises(torch_galley.errors.ConfigError, match="min_clustr_size"):
        torch_galley.explain(lambda x: x + 1, torch.ones(2), options={"min_clustr_size": 1})


def test_paths_are_short():
    here = Path.cwd() / "a" / "b.py"
    assert place(torch_galley.core.site.Site(str(here), 3, "f")) == f"{Path('a/b.py')}:3 in f"
    far = str(Path("/x/site-packages/lib/c.py"))
    assert place(torch_galley.core.site.Site(far, 3)) == f"{Path('lib/c.py')}:3"


def test_module_paths_with_gaps():
    assert merged(["l.0", "l.2"]) == ["l.{0,2}"]
