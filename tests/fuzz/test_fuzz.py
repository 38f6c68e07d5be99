"""The fuzzer itself, and a few of its programs; `make fuzz` runs thousands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fuzz import judge, run
from tests.fuzz.generator import generate
from tests.fuzz.judge import META, NEAR, SMALL, TURNS, Shaken, explanation
from tests.fuzz.paths import Outcome, eager
from tests.fuzz.program import Input, Program
from tests.fuzz.shrink import shrink
from torch_galley.compile.programs import executables
from torch_galley.ops import registry

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("path", ["compile", "lazy"])
@pytest.mark.parametrize("number", range(1000, 1015))
def test_gives_what_eager_gives(number, path):
    program, refused = generate(f"0-{number}")
    verdict = judge.judge(program, path, refused)
    assert not verdict.bad, f"{verdict}\n{program.script(path)}"


def test_a_seed_is_one_program():
    program, refused = generate("0-5")
    assert (program, refused) == generate("0-5")
    assert Program.from_json(program.to_json()) == program


@pytest.mark.parametrize("path", ["compile", "lazy"])
def test_a_finding_is_a_script(path, capsys):
    one = Input("v0", (2, 2), "float32", (1.0, float("nan")), "transposed", grad=True)
    exec(Program((one,), ("v1 = v0.sum(1)",), ("v1",)).script(path), {})
    eager, ours = capsys.readouterr().out.splitlines()
    assert "tensor([2., nan]" in eager
    assert "tensor([2., nan]" in ours


@pytest.mark.parametrize("path", ["compile", "lazy"])
def test_a_wrong_lowering_is_found_and_made_small(path, monkeypatch):
    right = registry.lookup(torch.ops.aten.mul.Tensor)
    wrong = registry.Lowering(right.overload, lambda x, y: x * y + 1)
    monkeypatch.setitem(registry._table, right.overload, wrong)
    executables().clear()  # one made by the right lowering would be found again

    def shows(program):
        return judge.judge(program, path).kind == kind and judge.judge(program, path).bad

    for number in range(60):
        program, refused = generate(f"1-{number}")
        kind = judge.judge(program, path, refused).kind if not refused else ""
        if kind and shows(program):
            break
    small = shrink(program, shows, patience=150)
    executables().clear()
    assert len(small.lines) <= 3
    assert len(small.inputs) == 1
    monkeypatch.undo()
    assert judge.judge(small, path).kind == "", small.source()


ONE = Input("v0", (3,), "float32", (0.1, 0.7, 2.3))


def _explained(line: str, by: float) -> str:
    program = Program((ONE,), (f"v1 = {line}",), ("v1",))
    wanted, moved = eager(program), eager(program)
    moved.results = [wanted.results[0] + by]
    return explanation(program, "lazy", 0, "results", wanted, moved)


def test_a_difference_needs_evidence():
    assert _explained("v0.exp()", 1e-7) == NEAR
    assert _explained("(v0.exp().log() - v0) * 1e5", 1e-2) in (NEAR, TURNS)
    assert _explained("(v0 * 3).floor()", -1.0) == ""
    assert _explained("v0.exp()", 1e-4) == ""


def test_short_numbers_are_not_moved():
    program = Program((ONE,), ("v1 = (v0 * 0 + 2.5).floor()", "v2 = v0.exp()"), ("v1", "v2"))
    still, moved = eager(program, mode=Shaken(0)), eager(program)
    assert torch.equal(still.results[0], moved.results[0])
    assert not torch.equal(still.results[1], moved.results[1])
    torch.testing.assert_close(still.results[1], moved.results[1], rtol=1e-6, atol=0)


def _evidence(lines: tuple[str, ...], kind: str, **theirs: Any) -> str:
    """Return the explanation for what differs from eager in some fields of the outcome."""
    program = Program((ONE,), lines, ("v1",))
    wanted, other = eager(program), replace(eager(program), **theirs)
    return explanation(program, "lazy", 0, kind, wanted, other)


def test_how_many_values_differ_may_be_a_rounding():
    lines = ("v1 = torch.unique(torch.cat([v0 * 3, v0 + v0 + v0]))",)
    assert _evidence(lines, "results", results=[torch.ones(4)]) == TURNS
    assert _evidence(lines, "results", results=[torch.ones(7)]) == ""


def test_denormals_may_be_zero():
    lines = ("v1 = v0 * 1e-20 * 1e-20 * 1e30 * 1e12",)
    assert _evidence(lines, "results", results=[torch.zeros(3)]) == SMALL
    assert _evidence(lines, "results", results=[torch.ones(3)]) == ""


def test_strides_where_a_value_decides_the_way():
    lines = (
        "v1 = torch.ops.aten.pow.Scalar(2.5, v0.expand(2, 3).clone().t())",
        "v1.sum().item()",
    )
    assert _evidence(lines, "strides", strides=[(1, 3)]) == META
    assert _evidence(lines, "strides", strides=[(5, 1)]) == ""


def test_a_run_goes_on_where_it_stopped(tmp_path, capsys):
    asked = ["--paths", "lazy", "--folder", str(tmp_path), "--seed", "7", "--count"]
    assert run.main([*asked, "1"]) == 0
    rows = (tmp_path / "lazy-7.jsonl").read_text()
    assert run.main([*asked, "1"]) == 0
    assert (tmp_path / "lazy-7.jsonl").read_text() == rows
    assert [json.loads(row)["number"] for row in rows.splitlines()] == [0]
    assert "lazy: 1 programs, 0 unexplained" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("--paths bogus", "'bogus' is none of compile, lazy"),
        ("--paths=", "'' is none of"),
        ("--count -3", "-3 is less than 1"),
        ("--count some", "invalid positive value"),
        ("--start -1", "-1 is less than 0"),
    ],
)
def test_what_can_not_be_asked(asked, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main(asked.split())
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{bad", '{"number": 0}', "[1]", "7", "\udcff"])
def test_a_broken_file(tmp_path, line, capsys):
    good = '{"number": 0, "kind": "", "explained": "", "bad": false}'
    file = tmp_path / "lazy-0.jsonl"
    file.write_text(f"{good}\n{line}\n", errors="surrogateescape")
    with pytest.raises(SystemExit, match="2"):
        run.main(["--paths", "lazy", "--folder", str(tmp_path)])
    assert f"{file}:2 is no row of a program; --again forgets" in capsys.readouterr().err


def test_a_folder_in_place_of_the_file(tmp_path, capsys):
    (tmp_path / "lazy-0.jsonl").mkdir()
    with pytest.raises(SystemExit, match="2"):
        run.main(["--paths", "lazy", "--folder", str(tmp_path)])
    assert "lazy-0.jsonl" in capsys.readouterr().err


def test_a_child_that_dies_is_a_finding():
    class Dead:
        def ask(self, _what):
            return "crash"

    assert run._asked(Dead(), {})["kind"] == "crash"
    assert run._asked(Dead(), {})["bad"]


def test_what_is_not_compared_by_value_is_named():
    want = Outcome(memory=[(0, 0), (0, 0)])
    assert judge.difference(want, Outcome(memory=[(0, 0), (1, 0)]))[0] == "memory"
    assert judge.difference(want, Outcome(error=ValueError("no")))[0] == "raises ValueError"
