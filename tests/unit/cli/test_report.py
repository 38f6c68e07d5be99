"""galley report: targets and outputs."""

import json
import sys
from pathlib import Path

import pytest

from torch_galley.cli.main import main
from torch_galley.cluster import seed
from torch_galley.tools.report import others

GRAPH = str(Path(__file__).parents[3] / "docs" / "examples" / "seed-graph.json")
FILE = """\
import torch

def net(x):
    return (x @ x).relu().sum()
net_inputs = (torch.ones(2, 2),)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "user_net.py"
    path.write_text(FILE)
    yield str(path)
    sys.modules.pop("galley_target_user_net", None)


def test_everything_at_once(file, tmp_path, capsys):
    page, dot, folder = (str(tmp_path / name) for name in ("p.html", "g.dot", "run"))
    assert main(["report", f"{file}:net", "-o", page, "--dot", dot, "--bundle", folder]) == 0
    assert capsys.readouterr().out == f"wrote {page}\nwrote {folder}\nwrote {dot}\n"
    assert Path(page).read_text("utf-8").startswith("<!doctype html>")
    assert Path(dot).read_text("utf-8").startswith('digraph "net" {')
    assert main(["report", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["coverage"] == 1.0
    assert told["compile_seconds"] > 0
    assert main(["report", folder, "--against", folder]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_the_seeds_graph_as_text(capsys):
    assert main(["report", GRAPH]) == 0
    assert "custom_nms: 1 operation more in XLA, 1 cut fewer" in capsys.readouterr().out


def test_without_the_compiler_and_source(file, tmp_path, capsys):
    folder = str(tmp_path / "run")
    arguments = ["--no-compile", "--no-source", "--deny", "aten.relu", "--bundle", folder]
    assert main(["report", f"{file}:net", *arguments]) == 0
    assert main(["report", folder]) == 0
    out = capsys.readouterr().out
    assert "denied by deny_ops" in out
    assert "x @ x" not in out
    assert "compiled" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.json"], "nowhere.json: No such file"),
        (["."], "is a folder, and no bundle"),
        ([GRAPH, "--against", "."], "manifest.json can't be read"),
        ([GRAPH, "-o", "/dev/null/x.html"], "can't write"),
        (["m.py:f", "--measure", "--no-compile"], "--measure needs the compiler"),
    ],
)
def test_errors_are_one_clear_message(arguments, said, capsys):
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_explain_answers_about_operations(file, capsys):
    target = ["explain", f"{file}:net", "--deny", "aten.relu", "--options", "min_cluster_size=1"]
    assert main([*target, "--node", "relu"]) == 0
    assert "kept out of XLA" in capsys.readouterr().out
    assert main([*target, "--why-not", "mm", "sum_1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["native"] == ["relu"]
    assert main([*target, "--why-not", "mm", "sum_9"]) == 2
    assert "did you mean 'sum_1'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--options", "fuel=3"], ["--deny", "aten.mm"], ["--measure"], ["--no-compile"]]
)
def test_flags_of_a_call_are_refused_where_nothing_is_called(flags, tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["report", GRAPH, "--bundle", folder]) == 0
    for target in (GRAPH, folder):
        assert main(["report", target, *flags]) == 2
        assert f"{flags[0]} would change nothing" in capsys.readouterr().err


def test_a_folder_that_is_no_bundle(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is a folder, and no bundle" in capsys.readouterr().err


def test_a_bundle_that_could_not_be_read_is_not_written(tmp_path, capsys):
    graph, folder = tmp_path / "graph.json", tmp_path / "run"
    ops = [{"name": "x" * 100_000, "op_type": "add", "inputs": []}]
    graph.write_text(json.dumps({"ops": ops, "supported": ["add"]}))
    assert main(["report", str(graph), "--bundle", str(folder)]) == 2
    assert "has 100000 characters\n  hint: at most 65536" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["\ud800", "a\x1b[31m\u202eb"], ids=ascii)
def test_names_that_a_terminal_or_a_file_may_not_take(name, tmp_path, capsys):
    graph, folder = tmp_path / "graph.json", str(tmp_path / "run")
    ops = [{"name": name, "op_type": "add", "inputs": []}]
    graph.write_text(json.dumps({"ops": ops, "supported": ["add"]}))
    page = str(tmp_path / "p.html")
    dot = str(tmp_path / "g.dot")
    assert main(["report", str(graph), "--bundle", folder, "-o", page, "--dot", dot]) == 0
    capsys.readouterr()
    shown = []
    for target in (str(graph), folder):
        assert main(["report", target]) == 0
        shown.append(capsys.readouterr().out)
    assert all(c.isprintable() or c == "\n" for c in shown[0])
    assert shown[0].split("\n", 1)[1] == shown[1].split("\n", 1)[1]


def test_large_graphs_are_cut_once(tmp_path, monkeypatch):
    cuts = []
    cut = seed.clusters
    monkeypatch.setattr(seed, "clusters", lambda graph: cuts.append(1) or cut(graph))
    monkeypatch.setattr(others, "MOST_RECUT", 10)
    for count in (10, 11):
        kinds = ["add", "nms"] * 6
        ops = [seed.GraphOp(f"v{n}", kinds[n], (f"v{n - 1}",) * (n > 0)) for n in range(count)]
        others.of_seed(seed.SeedGraph(tuple(ops), frozenset({"add"})))
        assert len(cuts) == {10: 2, 11: 3}[count]  # once more for nms, in the small one
