"""The stage values: printed, saved, loaded, compared, and refused when a file is wrong."""

import json

import pytest
import torch

import torch_galley
from torch_galley.capture.fx import Captured
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.partition import partition
from torch_galley.compile.client import Compiled, compile, has_device
from torch_galley.core.errors import ToolError
from torch_galley.lower.driver import Lowered, lower
from torch_galley.tools.stages import Stages


def small(x, w):
    return torch.nn.functional.gelu(x @ w).sum(0)


def arguments():
    return torch.ones(2, 3), torch.ones(3, 4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "small"
    (made,) = torch_galley.stages(small, *arguments(), options={"min_cluster_size": 1})
    made.save(folder)
    return made, folder


def edit(folder, name, change):
    path = folder / name
    data = json.loads(path.read_text())
    change(data["value"])
    path.write_text(json.dumps(data))


@pytest.fixture
def copy(saved, tmp_path):
    made, _ = saved
    made.save(tmp_path / "copy")
    return tmp_path / "copy"


def test_text_of_each_stage(saved):
    made, _ = saved
    assert made.captured.text() == (
        "arg0_1: float32[2,3] = placeholder arg0_1()\n"
        "arg1_1: float32[3,4] = placeholder arg1_1()\n"
        "mm: float32[2,4] = aten.mm.default(arg0_1, arg1_1)\n"
        "gelu: float32[2,4] = aten.gelu.default(mm)\n"
        "sum_1: float32[4] = aten.sum.dim_IntList(gelu, [0])\n"
        "output: (float32[4]) = output output((sum_1,))"
    ).replace("output: (float32[4])", made.captured.text().splitlines()[-1].split(" =")[0])
    assert "3 operations, 1 cluster," in made.clustered.text()
    (lowered,), (compiled,) = made.lowered, made.compiled
    assert "stablehlo.dot_general" in lowered.text()
    assert "ENTRY" in compiled.text()
    for heading in ("Captured", "Clustered", "Lowered xla_", "Compiled xla_"):
        assert f"== {heading}" in made.text()


def test_loaded_stages_are_equal(saved):
    made, folder = saved
    loaded = Stages.load(folder)
    assert loaded.text() == made.text()
    assert loaded.to_json() == made.to_json()
    assert json.loads(json.dumps(made.to_json())) == made.to_json()


def test_each_stage_by_itself(saved, tmp_path):
    made, _ = saved
    values = (made.captured, made.clustered, made.lowered[0], made.compiled[0])
    for number, value in enumerate(values):
        value.save(tmp_path / str(number))
        loaded = type(value).load(tmp_path / str(number))
        assert type(loaded) in (Captured, Clustered, Lowered, Compiled)
        assert (loaded.text(), loaded.to_json()) == (value.text(), value.to_json())


def test_a_loaded_graph_runs_and_is_cut_again(saved):
    made, folder = saved
    loaded = Captured.load(folder)
    (given,) = loaded.graph(*arguments())
    torch.testing.assert_close(given, small(*arguments()))
    assert partition(loaded, has_device).text() == made.clustered.text()
    assert loaded.config == made.captured.config


def test_a_loaded_cluster_lowers_again(saved):
    made, folder = saved
    loaded = Lowered.load(folder / made.lowered[0].name)
    again = lower(loaded.cluster, loaded.arguments, {}, loaded.config)
    assert again.text() == made.lowered[0].text()


def test_what_a_loaded_value_can_not(saved):
    made, folder = saved
    loaded = Compiled.load(folder / made.lowered[0].name)
    with pytest.raises(ToolError, match="can't be run"):
        loaded.executable.run([])
    with pytest.raises(ToolError, match="can't be compiled"):
        compile(loaded.lowered)


def test_arguments_of_all_kinds_come_back(tmp_path):
    def function(x):
        y = x.to(torch.float64).masked_fill(x > 2, float("-inf"))
        first, second = y.split([1, 2])
        z = torch.full((2, 3), 1 + 2j, dtype=torch.complex64)
        index = torch.tensor([1, 0])
        return first * index[0], second[index], z, torch.empty(2).fill_(True), x.view(torch.int32)

    x = torch.ones(3, 2)
    for number, made in enumerate(torch_galley.stages(function, x)):
        made.save(tmp_path / str(number))
        loaded = Stages.load(tmp_path / str(number))
        assert loaded.text() == made.text()
        assert loaded.to_json() == made.to_json()
    wanted = made.captured.graph(x)
    torch.testing.assert_close(loaded.captured.graph(x), wanted, equal_nan=True)


def test_symbolic_sizes_come_back(tmp_path):
    x = torch.ones(5, 2)
    torch._dynamo.mark_dynamic(x, 0)
    (made,) = torch_galley.stages(lambda x: x.reshape(-1)[x.shape[0] // 2 :] * x.shape[0], x)
    assert made.lowered[0].arguments[0].spec.shape == (5, 2)
    made.save(tmp_path)
    loaded = Stages.load(tmp_path)
    assert loaded.text() == made.text()
    assert loaded.to_json() == made.to_json()
    assert loaded.captured.save(tmp_path / "again")
    assert (tmp_path / "again" / "captured.json").read_text() == (
        tmp_path / "captured.json"
    ).read_text()


def test_a_branch_comes_back(tmp_path):
    def function(p, x):
        return torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,))

    (made,) = torch_galley.stages(function, torch.tensor(True), torch.ones(2))
    made.save(tmp_path)
    loaded = Stages.load(tmp_path)
    assert loaded.text() == made.text()
    assert "true_graph_0" in made.captured.text()
    (given,) = loaded.captured.graph(torch.tensor(True), torch.ones(2))
    torch.testing.assert_close(given, torch.ones(2).sin())


def test_backward_and_native_nodes(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    options = {"deny_ops": ["aten.gelu"]}
    made = torch_galley.stages(model, torch.ones(2, 4), options=options)
    assert [one.captured.role for one in made] == ["forward", "backward"]
    assert repr(made[0]).startswith("<Stages of forward graph ")
    made[0].clustered.save(tmp_path)
    loaded = Clustered.load(tmp_path)
    assert [str(reason) for reason in loaded.native.values()] == [
        "aten.gelu.default denied by deny_ops"
    ]


def test_nothing_to_read(tmp_path):
    with pytest.raises(ToolError, match=r"can't read .*captured\.json"):
        Captured.load(tmp_path)


def test_no_json(copy):
    (copy / "captured.json").write_text("{")
    with pytest.raises(ToolError, match=r"captured\.json is no JSON"):
        Captured.load(copy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "galley is missing"),
        ('{"galley": "lowered"}', "galley is 'lowered', not 'captured'"),
        ('{"galley": "captured", "format": 99}', "format is 99; this version reads 1"),
        ('{"galley": "captured", "format": 1, "value": 3}', "value is 3, not a dict"),
    ],
)
def test_a_foreign_file(copy, text, words):
    (copy / "captured.json").write_text(text)
    with pytest.raises(ToolError) as caught:
        Captured.load(copy)
    assert str(caught.value) == f"{copy / 'captured.json'}: {words}"


def node(number, **changed):
    return lambda value: value["graph"]["nodes"][number].update(changed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (node(2, target="os.system"), "nodes[2].target is 'os.system', no operator here"),
        (node(2, target="torch:load"), "nodes[2].target is 'torch:load', no operator here"),
        (node(2, op="call_module"), "nodes[2].op is 'call_module', which no graph here has"),
        (node(2, args=[{"node": "later"}]), "nodes[2].args uses node 'later', which does not"),
        (node(2, args=[{"dtype": "load"}]), "nodes[2].args has dtype='load', which is no argument"),
        (node(2, args=[{"a": 1, "b": 2}]), "nodes[2].args is {'a': 1, 'b': 2}, which is no"),
        (node(2, name="arg0_1"), "nodes[2].name is 'arg0_1', which is no name here, or the"),
        (node(2, val={"tensor": [2]}), "nodes[2].val is no value"),
        (node(2, val=7), "nodes[2].val is 7, not a dict"),
        (node(0, op="get_attr"), "nodes[0].target is 'arg0_1', which the file does not hold"),
        (lambda value: value["config"].update(speed=9), "config.speed is no setting"),
        (lambda value: value["config"].update(strict=9), "config.strict is 9, not a bool"),
        (lambda value: value["graph"].pop("nodes"), "graph.nodes is missing"),
    ],
)
def test_a_corrupt_graph(copy, change, words):
    edit(copy, "captured.json", change)
    with pytest.raises(ToolError) as caught:
        Captured.load(copy)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{copy / 'captured.json'}: value.")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value["steps"].append("zzz"), "steps names 'zzz', which is no cluster"),
        (lambda value: value["clusters"][0]["nodes"].append("zzz"), "nodes names 'zzz', which is"),
        (lambda value: value.update(fingerprint="0"), "fingerprint is not that of the graph"),
        (lambda value: value["native"].update(mm={"code": "X"}), "native.mm has code 'X'"),
        (lambda value: value["native"].update(mm={"code": "Random"}), "mm has op=None, not a str"),
    ],
)
def test_a_corrupt_partition(copy, change, words):
    edit(copy, "clustered.json", change)
    with pytest.raises(ToolError) as caught:
        Clustered.load(copy)
    assert words in str(caught.value)


def test_a_changed_text(saved, copy):
    name = saved[0].lowered[0].name
    (copy / name / "stablehlo.mlir").write_text("module {}")
    with pytest.raises(ToolError, match="content does not fit the checksum"):
        Stages.load(copy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value["arguments"][0].update(dtype="x"), "arguments[0].dtype is 'x'"),
        (lambda value: value["arguments"][0].update(shape=[None]), "shape is [None], not whole"),
        (lambda value: value["checks"].append({"error": "SystemExit"}), "error is 'SystemExit'"),
    ],
)
def test_a_corrupt_lowered(saved, copy, change, words):
    name = saved[0].lowered[0].name
    edit(copy / name, "lowered.json", change)
    with pytest.raises(ToolError) as caught:
        Lowered.load(copy / name)
    assert words in str(caught.value)


def test_no_place_to_write(saved, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="can't write"):
        saved[0].captured.save(tmp_path / "file" / "folder")


def test_a_failed_write_leaves_the_old_file(saved, copy, monkeypatch):
    before = (copy / "captured.json").read_text()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("torch_galley.core.store.os.replace", full)
    with pytest.raises(ToolError, match="disk full"):
        saved[0].captured.save(copy)
    assert (copy / "captured.json").read_text() == before
    assert not list(copy.glob(".captured*"))
