"""Does a cluster pay? Planted graphs, whose answers are known in advance."""

import dataclasses

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_galley.capture.fx import PARAMETER, Captured
from torch_galley.cluster import judge
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.judge import by_model, forecast, groups
from torch_galley.cluster.partition import partition
from torch_galley.cluster.rates import WORK, Rates
from torch_galley.cluster.terms import Terms
from torch_galley.cluster.work import counts, moved
from torch_galley.core.config import Config
from torch_galley.core.reasons import Unprofitable, reason_from_json

aten = torch.ops.aten
RATES = Rates()


def cut(function, *inputs, **settings) -> Clustered:
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    config = Config(**{"min_cluster_size": 1} | settings)
    return partition(Captured(graph, "inference", config), lambda device: True)


def told(function, *inputs, rates=RATES, **settings) -> Terms:
    clustered = cut(function, *inputs, **settings)
    (cluster,) = clustered.clusters
    return forecast(clustered, cluster, rates)


def chain(length):
    def function(x):
        for _ in range(length):
            x = torch.maximum(x, x * x)
        return (x,)

    return function


def test_the_terms_make_s():
    assert Terms(t_ops=6.0, t_fused=1.0, t_sync=1.0).speedup == 3.0
    assert [Terms(n, 1.0, 0.0).doubtful for n in (0.2, 0.5, 1.0, 2.0, 4.0)] == [
        *(False, True, True, True, False)
    ]


def test_longer_chains_gain_more():
    s = [told(chain(m), torch.ones(1024)).speedup for m in (1, 2, 4, 8, 32)]
    assert s == sorted(s)
    assert s[0] < 1 < s[-1]


def test_dearer_borders_gain_less():
    def s(scale):
        rates = dataclasses.replace(RATES, bring=scale * RATES.bring, take=scale * RATES.take)
        return told(chain(4), torch.ones(1024), rates=rates).speedup

    assert s(1) > s(2) > s(10)


def test_a_chain_is_one_pass_over_memory():
    x = torch.ones(1 << 20)
    one, ten = (told(chain(m), x) for m in (1, 10))
    assert ten.t_ops == pytest.approx(10 * one.t_ops)
    free = dataclasses.replace(RATES, work=WORK | {"element": (0.0, 0.0)})
    short, long = (told(chain(m), x, rates=free).t_fused for m in (1, 10))
    assert long == pytest.approx(short)


def test_parameters_count_nothing_at_the_border():
    clustered = cut(lambda x, w: (x @ w,), torch.ones(4, 4), torch.ones(4, 4))
    (cluster,) = clustered.clusters
    assert judge.sync(clustered, cluster, RATES) == 2 * RATES.bring + RATES.take
    cluster.inputs[1].meta[PARAMETER] = True
    assert judge.sync(clustered, cluster, RATES) == RATES.bring + RATES.take


def test_what_goes_from_cluster_to_cluster_stays():
    """sin is denied, and reads only what the first cluster makes besides."""

    def function(x):
        a = x * 2
        b = (a + 1).sin()
        return (a * b,)

    clustered = cut(function, torch.ones(8), deny_ops=("aten.sin",))
    first, second = clustered.clusters
    (sin,) = (n for n in clustered.native)
    brought, taken = judge.crossing(clustered, first)
    assert ([n.op for n in brought], taken) == (["placeholder"], (sin.args[0],))
    assert judge.crossing(clustered, second) == ((sin,), second.outputs)
    assert len(first.outputs) == 2  # the other goes to the second cluster


@pytest.mark.parametrize(
    ("function", "shapes", "sizes"),
    [
        (lambda x: (x.relu() + 1,), [(8, 8)], [2]),
        (lambda x, y: (x @ y + 1,), [(8, 8), (8, 8)], [1, 1]),
        (lambda x: ((x * 2).sum(1) + 1,), [(8, 8)], [2, 1]),
        (lambda x: (x.t().relu(),), [(8, 8)], [2]),
        (lambda x: (x.relu().cumsum(0) + 1,), [(8, 8)], [1, 1, 1]),
    ],
)
def test_what_is_forecast_to_fuse(function, shapes, sizes):
    (cluster,) = cut(function, *map(torch.ones, shapes)).clusters
    assert [len(group) for group in groups(cluster.nodes)] == sizes


def _node(function, *inputs) -> fx.Node:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [n for n in graph.nodes if n.op == "call_function"][-1]


@pytest.mark.parametrize(
    ("function", "inputs", "work"),
    [
        (lambda x: x + 1, [(4, 4)], {"element": 16}),
        (lambda x: x.exp(), [(4, 4)], {"element": 16, "special": 16}),
        (lambda x: x**2, [(4, 4)], {"element": 16}),
        (lambda x: x**1.7, [(4, 4)], {"element": 16, "special": 32}),
        (lambda x: x.sum(), [(4, 4)], {"element": 16}),
        (lambda x: x @ x, [(4, 4)], {"product": 128}),
        (lambda x: x.cumsum(0), [(4, 4)], {"scan": 16}),
        (lambda x: x.topk(2)[0], [(4, 4)], {}),  # the getitem; topk itself sorts 16
        (lambda x: x.t(), [(4, 4)], {}),
        (
            lambda x: aten.index_add(x, 0, torch.zeros(2, dtype=torch.int64), x[:2]),
            [(4, 4)],
            {"scatter": 8},
        ),
    ],
)
def test_what_an_operation_has_to_do(function, inputs, work):
    assert counts(_node(function, *map(torch.ones, inputs))) == work


def test_of_a_table_only_what_is_fetched_is_read():
    table, places = torch.ones(1000, 4), torch.zeros(2, dtype=torch.int64)
    node = _node(lambda t, i: aten.embedding(t, i), table, places)
    assert counts(node) == {"gather": 8}
    assert sum(moved(node)) == 32 + 32 + 16


def test_the_model_drops_what_does_not_pay():
    kept = cut(chain(32), torch.ones(1 << 20), decide="model")
    assert ([c.kept for c in kept.choices], len(kept.clusters)) == (["cluster"], 1)
    dropped = cut(chain(2), torch.ones(8), decide="model")
    assert ([c.kept for c in dropped.choices], dropped.clusters) == (["native"], ())
    (reason,) = set(dropped.native.values())
    assert isinstance(reason, Unprofitable)
    assert reason_from_json(reason.to_json()) == reason
    assert str(reason).startswith(f"cluster predicted not to pay, S = {reason.speedup:.2f}: ")
    always = cut(chain(2), torch.ones(8), decide="model", min_speedup=0.0)
    assert len(always.clusters) == 1


def test_those_left_keep_their_names():
    """Two clusters, parted by sin: the first is small work, the second large."""

    def function(x, y):
        small = (x * 2 + 1).sin()
        for _ in range(30):
            y = torch.maximum(y, y * y)
        return (y * small,)

    inputs = torch.ones(1), torch.ones(1 << 20)
    sized = cut(function, *inputs, deny_ops=("aten.sin",))
    judged = cut(function, *inputs, deny_ops=("aten.sin",), decide="model")
    assert [c.kept for c in judged.choices] == ["native", "cluster"]
    assert [c.name for c in judged.clusters] == [sized.clusters[1].name]
    assert judged.operations == sized.operations
    assert judged.clustered_operations + len(judged.native) == judged.operations


def test_the_floor_holds_before_the_model():
    clustered = cut(chain(1), torch.ones(1 << 20), decide="model", min_cluster_size=9)
    assert (clustered.clusters, clustered.choices) == ((), ())


def test_choices_are_saved(tmp_path):
    clustered = cut(chain(2), torch.ones(8), decide="model")
    again = Clustered.load(clustered.save(tmp_path))
    assert again.choices == clustered.choices
    assert (again.rates, again.to_json()) == ("shipped", clustered.to_json())


def test_a_graph_s_terms_contain_what_stays_native():
    clustered = cut(lambda x: ((x * 2).sin() + 1,), torch.ones(64), deny_ops=("aten.sin",))
    told, model = judge.whole(clustered, RATES), by_model(clustered, RATES, 1.1)
    inside = sum(choice.forecast.t_ops for choice in model)
    rest = judge.natively(clustered.native, RATES)
    assert told.t_ops == pytest.approx(inside + rest)
    assert told.t_fused == pytest.approx(sum(c.forecast.t_fused for c in model) + rest)


def test_shapes_that_are_symbols_count_as_first_seen():
    graph = make_fx(chain(4), tracing_mode="symbolic")(torch.ones(64, 8))
    captured = Captured(graph, "inference", Config(min_cluster_size=1))
    clustered = partition(captured, lambda device: True)
    found = forecast(clustered, clustered.clusters[0], RATES)
    assert found == told(chain(4), torch.ones(64, 8))
