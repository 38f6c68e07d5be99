"""The command line as its user sees it."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from torch_galley.cli import main as command
from torch_galley.cli.main import VERBS, main

ROOT = Path(__file__).parents[3]
GRAPH = str(ROOT / "docs" / "examples" / "seed-graph.json")

SCAN = """\
{'cluster_type': 'native', 'op_names': ['x'], 'entry_points': ['x'], 'exit_points': ['x']}
{'cluster_type': 'xla', 'cluster_id': 1, 'op_names': ['c1', 'r1'], 'entry_points': ['c1'], 'exit_points': ['r1']}
{'cluster_type': 'native', 'op_names': ['p1'], 'entry_points': ['p1'], 'exit_points': ['p1']}
{'cluster_type': 'xla', 'cluster_id': 3, 'op_names': ['m1'], 'entry_points': ['m1'], 'exit_points': ['m1']}
{'cluster_type': 'native', 'op_names': ['l1'], 'entry_points': ['l1'], 'exit_points': ['l1']}
{'cluster_type': 'xla', 'cluster_id': 5, 'op_names': ['a1'], 'entry_points': ['a1'], 'exit_points': ['a1']}
"""  # noqa: E501

DEPENDENCIES = """\
{'cluster_type': 'native', 'op_names': ['x'], 'entry_points': ['x'], 'exit_points': ['x']}
{'cluster_type': 'xla', 'cluster_id': 1, 'op_names': ['c1', 'r1', 'm1'], 'entry_points': ['c1'], 'exit_points': ['m1'], 'border': ['r1 -> p1', 'm1 -> l1']}
{'cluster_type': 'native', 'op_names': ['p1'], 'entry_points': ['p1'], 'exit_points': ['p1']}
{'cluster_type': 'native', 'op_names': ['l1'], 'entry_points': ['l1'], 'exit_points': ['l1']}
{'cluster_type': 'xla', 'cluster_id': 4, 'op_names': ['a1'], 'entry_points': ['a1'], 'exit_points': ['a1'], 'border': []}
"""  # noqa: E501


def galley(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "torch_galley", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(("policy", "wanted"), [([], DEPENDENCIES), (["--policy", "scan"], SCAN)])
def test_cluster_of_the_seeds_graph(capsys, policy, wanted):
    assert main(["cluster", GRAPH, *policy]) == 0
    assert capsys.readouterr().out == wanted


def test_cluster_as_json(capsys):
    assert main(["cluster", GRAPH, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == "dependencies"
    assert told["coverage"] == pytest.approx(4 / 7)
    assert told["clusters"][1]["border"] == [["r1", "p1"], ["m1", "l1"]]


def test_supported_types_from_the_command_line(capsys):
    assert main(["cluster", GRAPH, "--supported", "pool, relu"]) == 0
    xla = [line for line in capsys.readouterr().out.splitlines() if "'xla'" in line]
    assert len(xla) == 1
    assert "'op_names': ['r1', 'p1']" in xla[0]


def test_an_error_is_a_message_and_exit_code_2(capsys, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(
        '[{"name": "a", "op_type": "add", "inputs": ["b"]},\n'
        ' {"name": "b", "op_type": "add", "inputs": ["a"]}]'
    )
    assert main(["cluster", str(path), "--supported", "add"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"galley: error: {path}: a cycle: a -> b -> a\n")


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {verb} " in out and line in out for verb, line in VERBS.items())
    assert max(map(len, out.splitlines())) <= 100


def test_no_arguments_is_help_and_an_error(capsys):
    assert main([]) == 2
    assert "usage: galley VERB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("clustr", "unknown verb 'clustr'\n  hint: did you mean 'cluster'?"),
        ("xyzzy", "unknown verb 'xyzzy'\n  hint: galley --help lists the verbs"),
        ("--verson", "unknown option '--verson'\n  hint: did you mean 'version'?"),
    ],
)
def test_unknown_verb(capsys, word, message):
    assert main([word]) == 2
    assert capsys.readouterr().err == f"galley: error: {message}\n"


def test_wrong_arguments_of_a_verb(capsys):
    assert main(["cluster"]) == 2
    assert "galley cluster: error: the following arguments are required" in capsys.readouterr().err


def test_verbs_help(capsys):
    assert main(["cluster", "--help"]) == 0
    assert "GRAPH.json holds" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(capsys, word):
    assert main([word]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["galley", "python", "torch", "jax", "jaxlib"]
    assert all(line.endswith(" ok") for line in lines[2:])


def test_version_of_something_too_old(capsys, monkeypatch):
    monkeypatch.setattr("torch_galley.core.versions.NEEDED", {"torch": (99, 0)})
    assert main(["version"]) == 1
    assert "needs 99.0 or newer" in capsys.readouterr().out


def test_interrupt(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", interrupted)
    assert main(["version"]) == 130
    assert capsys.readouterr().err == "galley: interrupted\n"


def test_reader_that_has_gone():
    script = f"{sys.executable} -m torch_galley cluster {GRAPH} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode in (0, 141)  # 0 if all was written before `true` was gone
    assert done.stderr == ""


def test_as_a_module():
    done = galley("nosuch")
    assert done.returncode == 2
    assert done.stderr.startswith("galley: error: unknown verb 'nosuch'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "line", ["import torch_galley", "from torch_galley.cli.main import main; main(['--help'])"]
)
def test_light(line):
    """Importing us, and galley --help, load neither torch nor jax."""
    code = f"import sys; {line}; print(sorted({{'torch', 'jax'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "run")])
def test_verb_has_its_module(verb):
    module = importlib.import_module(f"torch_galley.cli.{verb}")
    assert callable(module.add_parser)
    assert callable(module.run)
