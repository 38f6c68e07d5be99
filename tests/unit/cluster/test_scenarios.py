"""The test scenarios of other partitioners, restated: by number, in the order of our study of them.

TensorFlow's mark_for_compilation_pass_test, PyTorch's test_fx_passes and its splitter's tests,
Torch-TensorRT, ExecuTorch and torch_xla. Numbers that are not here are in ELSEWHERE, or in
LEFT_OUT with the reason.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tests.unit.cluster.shapes import clustered, dag_of
from torch_galley.capture.fx import Captured
from torch_galley.cluster.check import check
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.partition import partition
from torch_galley.core.config import Config
from torch_galley.core.errors import ClusterError, ConfigError
from torch_galley.core.reasons import (
    BetterNatively,
    Constant,
    DeniedByUser,
    MixedDevices,
    NotAllowed,
    OutOfFuel,
    Random,
    TooSmall,
)
from torch_galley.ops.decompose import decompositions

aten = torch.ops.aten

# number, name -> graph, native vertices, clusters, and with horizontal if others
GRAPHS: dict[tuple[int, str], tuple[str, str, list[str], list[str] | None]] = {
    (1, "chain"): ("U>a>b>V>c>d", "U V", ["a b", "c d"], None),
    (2, "triangle through a native"): ("a>U>c a>c", "U", ["a", "c"], None),
    (3, "triangle, all supported"): ("a>b>c a>c", "", ["a b c"], None),
    (7, "f1"): (
        "a0>a1>a2>R>a4>a5>S>a6>a7 a1>a3 a2>a3 a1>a4 a3>a5 a5>a6 a5>a7",
        "R S",
        ["a0 a1 a2", "a3 a4 a5", "a6 a7"],
        None,
    ),
    (8, "f2"): ("x>y>U>z y>z z>w y>w", "U", ["w z", "x y"], None),
    (9, "f3: independent"): ("a b c", "", ["a", "b", "c"], ["a b c"]),
    (10, "f4: joined by a native"): ("a>W b>W c>W", "W", ["a", "b", "c"], ["a b c"]),
    (11, "f5"): ("x>U x>y", "U", ["x y"], None),
    (12, "f6"): ("x>U x>V", "U V", ["x"], None),
    (13, "f7: fan-out rejoined"): ("a>b>d a>c>d", "", ["a b c d"], None),
    (13, "f8: rejoined in two steps"): ("a>b>d a>c>d d>e c>e", "", ["a b c d e"], None),
    (13, "f9: not rejoined"): ("a>b a>c a>d", "", ["a b c d"], None),
    (13, "f10: two levels"): ("a>b>d a>b>e a>c>f", "", ["a b c d e f"], None),
    (13, "f13: fan-out to an end"): ("a>b>e a>c>e a>d>e", "", ["a b c d e"], None),
    (13, "f14: chain and shortcut"): ("a>b>c>d a>d b>d", "", ["a b c d"], None),
    (14, "f11"): ("x>U>y x>y x>V", "U V", ["x", "y"], None),
    # b0 with b1, or c0 with c2, but not both: the case for stale dependency maps
    (15, "f12: crossed butterfly"): (
        "b0>U0>c2 c0>U1>b1 b0>b1 c0>c2",
        "U0 U1",
        ["b0", "b1", "c0 c2"],
        ["b0 c0", "b1 c2"],
    ),
    (16, "f17: independent outputs"): ("a+b c+d e+f", "", ["a+b", "c+d", "e+f"], ["a+b c+d e+f"]),
    (17, "two branches of a module"): ("s>U U>t s>V V>t", "U V", ["s", "t"], None),
    (17, "a native with a branch each side"): ("s U t", "U", ["s", "t"], ["s t"]),
    (18, "natives between convolutions"): (
        "c1>c2>U>c3>c4>r V>c3",
        "U V",
        ["c1 c2", "c3 c4 r"],
        None,
    ),
    (18, "f15: shortcut over a native"): ("a>b>U>c>d b>d", "U", ["a b", "c d"], None),
    (18, "f16: native between twins"): ("a>U>b a>V>c b>d c>d", "U V", ["a", "b c d"], None),
    (22, "relu denied"): ("c>R>b>p>d>S>q>f>a>l", "R S", ["a f l q", "b d p", "c"], None),
    (22, "nothing denied"): ("c>r>b>p>d>s>q>f>a>l", "", ["a b c d f l p q r s"], None),
    (23, "foreign sums"): ("a>b>S>T>F>r>p", "S T F", ["a b", "p r"], None),
    (31, "an opt-out in the middle"): ("a>b>O>c>d", "O", ["a b", "c d"], None),
    (50, "f18: the getitems of a native"): ("a>U>b", "U", ["a", "b"], None),
}


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: f"{case[0]} {case[1]}")
@pytest.mark.parametrize("order", ["topo", "bytes", "auto"])
def test_graph(case, order):
    text, native, wanted, _ = GRAPHS[case]
    found = clustered(text, native, order=order)
    if case[0] == 15 and order != "topo":  # the other way round is as good
        assert len(found) == 3
    else:
        assert found == wanted


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: f"{case[0]} {case[1]}")
def test_graph_horizontal(case):
    text, native, wanted, horizontal = GRAPHS[case]
    assert clustered(text, native, horizontal=True) == (horizontal or wanted)


def test_2_with_a_smallest_size_no_cluster_is_left():
    assert clustered("a>U>c a>c", "U", smallest=2) == []


def test_6_a_cycle_between_clusters_is_named():
    with pytest.raises(ClusterError, match="clusters form a cycle through: a, c, b, d"):
        check(dag_of("a>c b>d"), [[0, 3], [1, 2]])


def test_48_largest_size():
    found = clustered("a>b>c>d>e>f>g", largest=3)
    assert [len(c.split()) for c in found] == [1, 3, 3]
    assert " ".join(found).split() == list("abcdefg")


@pytest.mark.parametrize("horizontal", [False, True])
def test_64_scopes(horizontal):
    apart = {"a": "1", "b": "2", "c": "3"}
    assert clustered("a>b>c", scopes=apart, horizontal=horizontal) == ["a", "b", "c"]
    halves = {"a": "1", "b": "1", "c": "2", "d": "2"}
    assert clustered("a>b>c>d", scopes=halves, horizontal=horizontal) == ["a b", "c d"]


def test_64_what_has_no_scope_goes_with_any():
    assert clustered("a>b>c", scopes={"a": "1", "c": "2"}) in (["a", "b c"], ["a b", "c"])
    assert clustered("a>b>c", scopes={"a": "1", "c": "1"}) == ["a b c"]


@pytest.mark.parametrize("horizontal", [False, True])
def test_65_two_devices(horizontal):
    on = dict.fromkeys("ab", "cpu") | dict.fromkeys("cd", "cuda")
    assert clustered("a>b>c>d a>d", devices=on, horizontal=horizontal) == ["a b", "c d"]


def cut(function, *inputs, **settings) -> Clustered:
    """Cut the graph of a function; the smallest cluster has one operation."""
    graph = make_fx(function, decompositions(), tracing_mode="fake")(*inputs)
    settings = {"min_cluster_size": 1} | settings
    return partition(Captured(graph, "inference", Config(**settings)), lambda device: True)


def names(found: Clustered) -> list[list[str]]:
    return [[node.name for node in cluster.nodes] for cluster in found.clusters]


def reasons(found: Clustered) -> dict[str, object]:
    return {node.name: reason for node, reason in found.native.items()}


X = torch.ones(4, 4)


def chain(x):
    return x.sin().cos().tan().exp()


@pytest.mark.parametrize(
    ("settings", "native"),
    [
        ({"deny_ops": ("aten.cos",)}, {"cos": DeniedByUser("aten.cos.default", "deny_ops")}),
        ({"deny_ops": ("aten.cos.default",)}, {"cos": DeniedByUser("aten.cos.default")}),
        ({"deny_nodes": ("c*",)}, {"cos": DeniedByUser("aten.cos.default", "deny_nodes")}),
        (
            {"allow_ops": ("aten.sin", "aten.cos", "aten.tan")},
            {"exp": NotAllowed("aten.exp.default", "allow_ops")},
        ),
        (
            {"allow_nodes": ("sin", "cos", "tan")},
            {"exp": NotAllowed("aten.exp.default", "allow_nodes")},
        ),
    ],
)
def test_29_lists(settings, native):
    assert reasons(cut(chain, X, **settings)) == native


def test_29_modules():
    graph = make_fx(chain, tracing_mode="fake")(X)
    for node, path in zip(list(graph.graph.nodes)[1:5], ["a", "a.b", "a.c", "d"], strict=True):
        node.meta["nn_module_stack"] = {"k": (f"L['self'].{path}", torch.nn.Module)}
    for entry, native in {"a": "sin cos tan", "a.b": "cos", "a.*": "cos tan", "d": "exp"}.items():
        config = Config(min_cluster_size=1, deny_modules=(entry,))
        found = partition(Captured(graph, "inference", config), lambda device: True)
        assert reasons(found).keys() == set(native.split())


@pytest.mark.parametrize("setting", ["allow_ops", "deny_ops"])
@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("aten.sine", "did you mean 'aten.sin'?"),
        ("aten.sin.defalt", "did you mean 'aten.sin.default'?"),
        ("zzz", "write namespace.name"),
    ],
)
def test_30_unknown_operators_in_lists(setting, entry, hint):
    with pytest.raises(ConfigError, match=f"{setting} names '{entry}'") as caught:
        cut(chain, X, **{setting: (entry,)})
    assert hint in str(caught.value.hint)


def test_37_support_by_arguments():
    (reason,) = reasons(cut(lambda x: x.logcumsumexp(0), X.to(torch.complex64))).values()
    assert isinstance(reason, BetterNatively)
    assert reasons(cut(lambda x: x.logcumsumexp(0), X)) == {}


def on_devices(*devices: str) -> Captured:
    """Return add(x, y) with x, y and the result on three devices; y is a number."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = graph.call_function(aten.add.Tensor, (x, y))
    graph.output((node,))
    with torch._subclasses.FakeTensorMode():
        for n, shape, device in zip((x, y, node), ((2,), (), (2,)), devices, strict=True):
            n.meta["val"] = torch.empty(shape, device=device)
    return Captured(fx.GraphModule({}, graph), "inference", Config(min_cluster_size=1))


def test_38_numbers_on_another_device_are_no_reason():
    assert reasons(partition(on_devices("cuda", "cpu", "cuda"), lambda device: True)) == {}
    moved = partition(on_devices("cpu", "cpu", "cuda"), lambda device: True)
    assert reasons(moved) == {"add_tensor": MixedDevices("aten.add.Tensor", "cpu and cuda:0")}


def test_40_identities_do_not_count():
    found = cut(lambda x: aten.alias(aten.alias(x)), X)
    assert set(reasons(found).values()) == {TooSmall(0, 1)}


def test_41_constants_do_not_count():
    found = cut(lambda x: torch.ones(4) + x, X, min_cluster_size=2)
    assert set(reasons(found).values()) == {TooSmall(1, 2)}


def test_43_full_overrides_the_smallest_size():
    assert names(cut(torch.sin, X, min_cluster_size=5)) == []
    assert names(cut(torch.sin, X, min_cluster_size=5, require_full=True)) == [["sin"]]


def test_44_four_operations():
    assert names(cut(chain, X, min_cluster_size=2)) == [["sin", "cos", "tan", "exp"]]


def test_45_full_lists_the_offenders():
    with pytest.raises(ClusterError) as caught:
        cut(chain, X, require_full=True, deny_ops=("aten.sin", "aten.tan"))
    assert "2 of 4 operations would run natively" in caught.value.message
    assert "sin: aten.sin.default denied by deny_ops" in caught.value.message
    assert "tan: aten.tan.default denied by deny_ops" in caught.value.message


def test_46_views_alone_are_no_cluster():
    found = cut(lambda x: x.view(2, 8).permute(1, 0), X)
    assert set(reasons(found).values()) == {TooSmall(0, 1)}


@pytest.mark.parametrize(("fuel", "inside"), [(0, []), (1, ["sin"]), (3, ["sin", "cos", "tan"])])
def test_49_fuel(fuel, inside):
    found = cut(chain, X, fuel=fuel)
    assert [name for cluster in names(found) for name in cluster] == inside
    assert set(reasons(found).values()) == {
        OutOfFuel(f"aten.{op}.default", fuel) for op in ("sin", "cos", "tan", "exp")[fuel:]
    }


def test_50_getitems_follow_their_producer():
    def both(x):
        values, places = torch.ops.aten.sort.default(x)
        return values.sin() + places

    (inside,) = names(cut(both, X))
    assert inside[:3] == ["sort", "getitem", "getitem_1"]
    native = cut(both, X, deny_ops=("aten.sort",))
    assert names(native) == [["sin", "add"]]
    assert list(reasons(native)) == ["sort"]


def test_51_getitems_of_a_native_split():
    def split(x):
        a, b, c, d = x.split(1)
        return (a + b) + (c + d)

    found = cut(split, X, deny_ops=("aten.split",))
    assert names(found) == [["add", "add_1", "add_2"]]


def test_52_a_constant_in_every_cluster_that_reads_it():
    def shared(x):
        mask = torch.arange(4).unsqueeze(0) < torch.arange(4).unsqueeze(1)
        y = x.sin().masked_fill(mask, 0.0)
        return y.exp().cos().masked_fill(mask, 1.0)

    found = cut(shared, X, deny_ops=("aten.exp",))
    assert reasons(found).keys() == {"exp"}
    assert [len(c.inputs) for c in found.clusters] == [1, 1]
    assert [[n for n in inside if n.startswith("lt")] for inside in names(found)] == [["lt"]] * 2
    assert found.coverage == (found.operations - 1) / found.operations


def test_53_a_parameter_is_an_input_of_every_cluster_that_reads_it():
    found = cut(lambda x, w: (x.sin() + w).exp().cos() + w, X, X.clone(), deny_ops=("aten.exp",))
    assert [len(c.inputs) for c in found.clusters] == [2, 2]


def test_54_a_constant_that_only_natives_read_is_native():
    found = cut(lambda x: (x.sin(), torch.ones(4).exp()), X, deny_ops=("aten.exp",))
    assert names(found) == [["sin"]]
    assert reasons(found)["full"] == Constant("aten.full.default")


def test_54_a_split_that_only_others_read_leaves_its_cluster():
    def split(x):
        a, b, c, d = x.sin().split(1)
        return aten.cat([a.exp(), b.exp(), c.exp(), d.exp()]).cos().tan()

    found = cut(split, X, deny_ops=("aten.exp",))
    assert names(found) == [["sin"], ["cat", "cos", "tan"]]
    assert len(names(cut(split, X, deny_ops=("aten.exp",), refine=False))[0]) == 6


def test_60_random_operations_keep_their_order():
    def draws(x):
        return torch.rand_like(x.sin().exp()), torch.rand_like(x), torch.rand_like(x.cos())

    found = cut(draws, X)
    drawn = [step.name for step in found.steps if getattr(step, "target", None) in DRAWS]
    assert drawn == ["rand_like", "rand_like_1", "rand_like_2"]
    assert all(isinstance(reason, Random) for reason in found.native.values())


DRAWS = {aten.rand_like.default}


def test_67_names_are_the_programs():
    once, again, other = cut(chain, X), cut(chain, X), cut(lambda x: chain(x).sin(), X)
    assert once.clusters[0].name == again.clusters[0].name
    assert once.clusters[0].name != other.clusters[0].name
    assert re.fullmatch(r"xla_[0-9a-f]{8}_0", once.clusters[0].name)


def test_68_order_is_the_graphs_and_the_same_every_time():
    def fork(x):
        y = x.sin()
        return aten.cat([y.cos(), y.exp(), y.tan()]).sin()

    found = [names(cut(fork, X, deny_ops=("aten.exp",))) for _ in range(10)]
    assert found.count(found[0]) == 10
    assert found[0][0] == ["sin", "cos", "tan"] or found[0][0] == ["sin"]


ELSEWHERE = {
    19: "test_contract::TestCheck",
    24: "test_contract::test_deep_chain_needs_no_recursion",
    25: "test_contract::test_budget_costs_no_cluster_here",
    26: "test_contract::test_time_grows_with_size_only",
    27: "test_support::test_dtype",
    28: "test_support::test_data_dependent_shapes_and_numbers",
    61: "../run/test_aliasing::test_argument_written_through_a_view",
    62: "../run/test_aliasing::test_result_is_the_argument_where_eager_says_so",
    63: "../run/test_aliasing::test_results_that_share_memory_in_eager_share_it_here",
    70: "../compile/test_cache::",
}

LEFT_OUT = {
    4: "sizes are no vertices: they follow from the shapes of inputs",
    5: "as 4",
    20: "there are no groups that users could ask to be kept together",
    21: "trimming takes only what nothing inside reads, so a cluster stays in one piece",
    32: "higher-order operators run natively, whatever is in them",
    33: "as 32",
    34: "checks are natives or values that the program returns; leaving them out is not offered",
    35: "operators that XLA does badly have no lowering, or one whose `when` says so (see 37)",
    36: "XLA takes complex numbers",
    39: "a number that a native operation reads is computed from shapes, without a vertex",
    42: "nothing can be marked as must-compile",
    47: "a permute costs nothing at a border (lower/layout.py); 54 has the views that cost",
    55: "shapes come from inputs; those that hang on data make their operation native",
    56: "as 55",
    57: "as 4",
    58: "captured graphs are functional, so no two operations write one buffer",
    59: "as 58",
    66: "there is one partitioner",
    69: "the graph is not split: clusters are lists of its nodes",
}


def test_every_scenario_is_somewhere():
    here = {number for number, _ in GRAPHS}
    here |= {int(n) for n in re.findall(r"^def test_(\d+)_", Path(__file__).read_text(), re.M)}
    assert sorted(here | ELSEWHERE.keys() | LEFT_OUT.keys()) == list(range(1, 71))
    assert not LEFT_OUT.keys() & (here | ELSEWHERE.keys())
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        text = (Path(__file__).parent / f"{file}.py").read_text()
        assert re.search(rf"^(def|class) {name}", text, re.M), place
