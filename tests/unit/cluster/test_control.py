"""Control flow: whether XLA can take it, how much it counts, and what is kept of it on a disk."""

import pytest
import torch
from torch._higher_order_ops import scan, while_loop

import torch_galley
from torch_galley.capture.fx import Captured
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.judge import natively, whole
from torch_galley.cluster.operation import size
from torch_galley.cluster.rates import Rates
from torch_galley.tools.stages import Stages

# torch's own: a trace of scan imports inductor, which scripts.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

ROWS = torch.ones(6, 3)


def made(function, *args, **options) -> Stages:
    with torch.no_grad():
        (stages,) = torch_galley.stages(function, *args, options={"min_cluster_size": 1, **options})
    return stages


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))


def sums(x):
    return scan(lambda c, x: (c + x * 2, c.exp()), torch.zeros(3), x)


def drawing(x):
    return scan(lambda c, x: (c + torch.rand(3), c * 2), torch.zeros(3), x)


def drawing_inside(x):
    return torch.cond(x.sum() > 0, lambda x: drawing(x)[1], lambda x: x.cos(), (x,))


def counting(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * i), (0, x))[1]


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (branches, {}, None),
        (sums, {}, None),
        (counting, {}, None),
        (drawing, {}, "scan: in scan_combine_graph_0, aten.rand.default draws random numbers"),
        (
            drawing_inside,
            {},
            "cond: in true_graph_0, scan: in scan_combine_graph_0, "
            "aten.rand.default draws random numbers",
        ),
        (
            branches,
            {"deny_ops": ["aten.cos"]},
            "cond: in false_graph_0, aten.cos.default denied by deny_ops",
        ),
        (branches, {"deny_ops": ["higher_order.cond"]}, "cond denied by deny_ops"),
    ],
)
def test_native_for_what_is_inside(function, options, reason):
    clustered = made(function, ROWS, **options).clustered
    told = {node.name: str(why) for node, why in clustered.native.items()}
    assert told.get("cond", told.get("scan")) == reason


def test_size_counts_what_is_inside():
    nodes = made(branches, ROWS).captured.graph.graph.nodes
    (node,) = (node for node in nodes if node.name == "cond")
    assert size([node]) == 3  # sin, add, cos


def test_a_loop_is_predicted_by_its_turns():
    clusters = [made(sums, torch.ones(rows, 3)).clustered for rows in (6, 60)]
    short, long = (whole(clustered, Rates()) for clustered in clusters)
    assert 8 < long.t_ops / short.t_ops < 12
    assert long.t_fused > short.t_fused
    (node,) = (n for n in clusters[0].captured.graph.graph.nodes if n.name == "scan")
    assert natively([node], Rates()) > 6 * 3 * Rates().native


@pytest.mark.parametrize("function", [branches, sums, counting])
def test_saved_and_loaded(function, tmp_path):
    stages = made(function, ROWS)
    stages.save(tmp_path)
    loaded = Stages.load(tmp_path)
    assert loaded.text() == stages.text()
    assert loaded.to_json() == stages.to_json()
    captured = Captured.load(tmp_path)
    torch.testing.assert_close(captured.graph(ROWS), stages.captured.graph(ROWS))
    assert Clustered.load(tmp_path).captured.fingerprint == stages.captured.fingerprint


def test_text_shows_the_graphs_inside():
    text = made(branches, ROWS).captured.text()
    assert "true_graph_0: graph\n    arg0_1: float32[6,3]" in text
    assert "    sin: float32[6,3] = aten.sin.default(arg0_1)" in text


def test_constants_inside_are_part_of_the_program():
    def function(number):
        def plus(x):
            return x + torch.tensor([number, 2.0, 3.0])

        return lambda x: torch.cond(x.sum() > 0, plus, lambda x: x.cos(), (x,))

    for number in (1.0, 7.0):
        call = torch.compile(function(number), backend="galley", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(call(ROWS), function(number)(ROWS))
    assert torch_galley.metrics()["compiles"] == 2


def test_what_is_inside_has_its_place():
    def function(x, places):
        return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x.cos(), (x, places))

    (lowered,) = made(function, ROWS, torch.arange(6)).lowered
    site = lowered.sites["cond.true_graph_0.index"]
    assert site is not None
    assert site.file == __file__
    assert 'fx = "cond.true_graph_0.index"' in lowered.text()
    assert [check.node for check in lowered.checks] == ["cond.true_graph_0.index"]
