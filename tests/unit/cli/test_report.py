"""galley report: targets and outputs."""

import json
import sys
from pathlib import Path

import pytest

from torch_galley.cli.main import main

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
        (["."], "manifest.json can't be read"),
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
