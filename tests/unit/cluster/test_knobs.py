"""must_compile, groups, search_budget, and what becomes of a cluster that the checker refuses."""

import pytest
import torch

import torch_galley
from tests.unit.cluster.shapes import dag_of, words
from torch_galley.cluster import cut as cuts
from torch_galley.cluster import partition as partitions
from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.group import settled
from torch_galley.core.errors import ClusterError
from torch_galley.core.reasons import GroupNative, Unsound
from torch_galley.pipeline import settle
from torch_galley.tools.watch import watch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Tanh()

    def forward(self, x):
        return (self.inner(x.sin()) * 2).erf().sum() + x.cos().sum()


def cut(function, x, options):
    (captured,) = watch(function, (x,), {}, options).graphs
    return settle(captured, lambda clustered: clustered)


def cut_net(**settings):
    return cut(Net(), torch.ones(3), {"deny_ops": ("aten.erf", "aten.add"), **settings})


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ((), []),
        (("inner",), ["sin", "tanh", "mul"]),
        (("tan*",), ["sin", "tanh", "mul"]),
        (("cos",), ["cos", "sum_2"]),
        (("erf",), []),
    ],
)
def test_must_compile(entries, kept):
    clustered = cut_net(must_compile=entries, min_cluster_size=6)
    assert [node.name for cluster in clustered.clusters for node in cluster.nodes] == kept


def test_must_compile_of_nothing():
    with pytest.warns(UserWarning, match="must_compile names 'iner', .* did you mean 'inner'"):
        cut_net(must_compile=("iner",))


def test_search_budget():
    # Before u and v become one, what lies behind u and before v has to be looked at.
    text = "u>v " + " ".join(f"u>N{n}>M{n} X{n}>Y{n}>v" for n in range(5))
    dag = dag_of(text)
    supported = [name in "uv" for name in dag.names]
    assert [len(contract(dag, supported, budget=budget)) for budget in (1, 256)] == [2, 1]
    budgets = []

    def spy(*args, budget, **kwargs):
        budgets.append(budget)
        return contract(*args, budget=budget, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "contract", spy)
        cut_net(search_budget=7)
    assert set(budgets) == {7}


FAULTS = {
    "not convex": ("a>U>b c>d", [["a", "b"], ["c", "d"]], {0}),
    "two that need each other": ("a>d c>b e>f", [["a", "b"], ["c", "d"], ["e", "f"]], {0, 1}),
    "behind a sound one": ("s>a>U>b", [["s"], ["a", "b"]], {1}),
    "before a sound one": ("a>U>b>s", [["s"], ["a", "b"]], {1}),
    "in two": ("a>b", [["a", "b"], ["b"]], {0, 1}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_checker_names_who_has_to_go(name):
    text, clusters, guilty = FAULTS[name]
    dag = dag_of(text)
    with pytest.raises(ClusterError) as caught:
        check(dag, [[dag.names.index(v) for v in cluster] for cluster in clusters])
    assert set(caught.value.facts["clusters"]) == guilty


def test_an_unsound_cluster_is_dissolved(galley, monkeypatch):
    def wrong(problem, *args, **kwargs):
        names = problem.dag.names
        clusters = [["sin", "cos"], ["neg", "exp"]]  # sin > tan > cos, with tan native
        return [[names.index(name) for name in cluster] for cluster in clusters]

    def function(x):
        return x.sin().tan().cos() + 1, x.neg().exp()

    monkeypatch.setattr(partitions, "cut", wrong)
    x = torch.ones(3)
    options = {"deny_ops": ("aten.tan", "aten.add"), "min_cluster_size": 1}
    with pytest.warns(UserWarning, match=r"cycle through: sin, tan, cos.*; a bug in torch-galley"):
        torch.testing.assert_close(galley(function, options=options)(x), function(x))
    assert torch_galley.metrics()["clustered_nodes"] == 2
    with pytest.warns(UserWarning, match="runs natively"):
        found = {node.name: why for node, why in cut(function, x, options).native.items()}
    assert [name for name, reason in found.items() if isinstance(reason, Unsound)] == ["sin", "cos"]


SETTLED = {
    "a chain": ("a>b>c>d", "", ["a c"], ["a b c"], ""),
    "apart": ("a>b c>d", "", ["a d"], ["a d"], ""),
    "one can't": ("a>b>c", "b", ["a b"], [], "a b"),
    "one between can't": ("a>U>b", "U", ["a b"], [], "a b"),
    "overlapping": ("a>b>c>d", "", ["a b", "b c"], ["a b c"], ""),
    "that need each other": ("a>b c>d", "", ["a d", "b c"], ["a b c d"], ""),
    "two, of which one can't": ("a>b>U>c d>e", "U", ["a c", "d e"], ["d e"], "a c"),
    "one that lies in another": ("a>b>c>d U>c", "U", ["a d", "b U"], [], "U a b d"),
    "one alone": ("a>b", "", ["a"], [], ""),
    "nothing": ("a>b", "", [""], [], ""),
}


@pytest.mark.parametrize("name", SETTLED)
def test_groups_settled(name):
    text, native, wanted, together, alone = SETTLED[name]
    dag = dag_of(text)
    numbers = [[dag.names.index(v) for v in group.split()] for group in wanted]
    found, left = settled(numbers, dag, [v not in native.split() for v in dag.names])
    assert words(dag, found) == together
    assert words(dag, [left]) == [alone]


def test_groups_of_two_devices_stay_native():
    assert settled([[0, 1]], dag_of("a>b"), [True, True], lambda v: v) == ([], [0, 1])


def branches(x):
    a = (x.sin() + 1).cos()
    b = (x.tan() + 2).exp()
    return a.erf(), b, a


@pytest.mark.parametrize(
    ("entries", "clusters", "grouped"),
    [
        ((), ["add cos sin", "add_1 exp tan"], []),
        (("sin+exp",), ["add add_1 cos exp sin tan"], []),
        (("sin+erf",), ["add cos", "add_1 exp tan"], ["sin"]),
        (("add*",), ["add add_1 cos exp sin tan"], []),
    ],
)
def test_groups(galley, entries, clusters, grouped):
    x = torch.linspace(0.1, 1, 5)
    options = {"groups": entries, "min_cluster_size": 1, "deny_ops": ("aten.erf",)}
    compiled = galley(branches, options=options)
    torch.testing.assert_close(compiled(x), branches(x))
    found = cut(branches, x, options)
    assert sorted(" ".join(sorted(n.name for n in c.nodes)) for c in found.clusters) == clusters
    told = [node.name for node, reason in found.native.items() if type(reason) is GroupNative]
    assert told == grouped


def test_a_group_of_nothing():
    with pytest.warns(UserWarning, match="groups names 'iner', which is no operation or module"):
        cut_net(groups=("iner+sin",))
