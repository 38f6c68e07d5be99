"""galley explain: targets, inputs, options, and its errors."""

import json
import sys

import pytest
import torch

from torch_galley.cli.main import main

FILE = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        print("the model speaks")
        return self.layer(x).relu()

def Net_inputs():
    return (torch.ones(2, 8),)

net = Net()
net_inputs = {"x": torch.ones(3, 8)}

def double(x):
    return x * 2
double_inputs = torch.ones(2)

def factory():
    return (lambda x: x.sin()), torch.ones(3)

def constant():
    return torch.ones(2).cos()

def bad(x):
    raise ValueError("no way")
bad_inputs = [torch.ones(2)]

def hungry(x, y, z=1):
    return x

def broken_inputs():
    return 1 // 0
def broken(x):
    return x

number = 3
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "user_model.py"
    path.write_text(FILE)
    yield str(path)
    sys.modules.pop("galley_target_user_model", None)


def test_page(capsys, file):
    assert main(["explain", f"{file}:Net"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("Net: ")
    assert lines[0].endswith("coverage η = 100.0%")
    assert "forward" in lines[1]
    assert "1 graph break:" in lines
    assert "the model speaks" not in lines
    assert "the model speaks" in err
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("name", ["net", "double", "factory", "constant"])
def test_kinds_of_targets(capsys, file, name):
    assert main(["explain", f"{file}:{name}", "--json", "--no-grad"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["operations"] > 0
    assert {graph["role"] for graph in told["graphs"]} == {"inference"}


def test_a_module_of_python(capsys, file, monkeypatch):
    monkeypatch.syspath_prepend(str(file).rpartition("/")[0])
    assert main(["explain", "user_model:double"]) == 0
    sys.modules.pop("user_model")
    assert capsys.readouterr().out.startswith("double: 1 of 1 operation in 1 XLA cluster")


def test_options(capsys, file):
    arguments = ["--options", "min_cluster_size=2", "strict=0", "--deny", "aten.sin"]
    assert main(["explain", f"{file}:factory", *arguments]) == 0
    assert "denied by deny_ops: 1" in capsys.readouterr().out
    assert main(["explain", f"{file}:double", "--options", "min_cluster_size=2"]) == 0
    assert "in clusters below min_cluster_size=2: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{file}", "names no function\n  hint: write path/to/file.py:name"),
        ("nosuch.py:f", "no such file: nosuch.py"),
        ("nosuch_package.x:f", "no module named nosuch_package.x"),
        ("{file}:doubl", "has no doubl\n  hint: did you mean 'double'?"),
        ("{file}:zzzzz", "has no zzzzz\n  hint: there are Net, Net_inputs, net, double"),
        ("{file}:number", "is a int\n  hint: name a function, an nn.Module"),
        ("{file}:hungry", "needs inputs: x, y\n  hint: define hungry_inputs or example_inputs"),
        ("{file}:bad", "bad raised ValueError: no way\n  at {file}:29 in bad\n  hint: see that it"),
        ("{file}:broken", "broken_inputs() raised ZeroDivisionError: integer"),
    ],
)
def test_errors(capsys, file, target, words):
    assert main(["explain", target.format(file=file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("galley: error: ")
    assert words.format(file=file) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--options", "min_clustr_size=1"], "did you mean 'min_cluster_size'?"),
        (["--options", "min_cluster_size"], "'min_cluster_size' sets nothing"),
        (["--options", "min_cluster_size=two"], "min_cluster_size='two' is no whole number"),
        (["--deny", "aten.nope"], "deny_ops names 'aten.nope', which is no operator here"),
    ],
)
def test_wrong_options(capsys, file, options, words):
    assert main(["explain", f"{file}:double", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_file_that_raises(capsys, tmp_path):
    path = tmp_path / "raising.py"
    path.write_text("import torch\nraise RuntimeError('early')\n")
    assert main(["explain", f"{path}:f"]) == 2
    err = capsys.readouterr().err
    assert f"{path} raised RuntimeError: early\n  at {path}:2 in <module>" in err
    path.write_text("import sys\nsys.exit(3)\n")
    assert main(["explain", f"{path}:f"]) == 2
    assert f"{path} raised SystemExit: 3\n  at {path}:2 in <module>" in capsys.readouterr().err


def test_grad_mode_is_left_as_it_was(file):
    assert main(["explain", f"{file}:net", "--no-grad"]) == 0
    assert torch.is_grad_enabled()
