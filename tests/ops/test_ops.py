"""A fixed fraction of torch's op_db, judged against eager; `make ops` does it all."""

from __future__ import annotations

import pytest
import torch

import torch_galley
from benchmarks import ops, ops_page, sweep
from tests.ops import lazy
from tests.ops.judge import compare, entries, judge, judge_errors
from tests.ops.xfails import REQUIRED, XFAILS
from torch_galley.compile.programs import executables
from torch_galley.ops import registry

pytestmark = pytest.mark.filterwarnings("ignore")

MUST = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "complex64")
STEP = 37
"""Every so many of the entries in these dtypes is judged here."""
TASKS = [
    pytest.param(op, dtype, id=f"{op.name}-{op.variant_test_name or 'plain'}-{dtype}")
    for dtype in MUST
    for op in entries()
    if op.supports_dtype(getattr(torch, dtype), "cpu")
][::STEP]


@pytest.mark.parametrize(("op", "dtype"), TASKS)
def test_gives_what_eager_gives(op, dtype):
    verdict = judge(op, getattr(torch, dtype), limit=2)
    assert verdict.status in (*ops_page.RIGHT, "skipped"), verdict


@pytest.mark.parametrize("name", ["add", "softmax", "sort", "permute"])
def test_runs_in_xla_alone(name):
    verdict = judge(entries([name])[0], torch.float32, limit=3, dynamo=True)
    assert (verdict.status, verdict.reason) == ("lowered", "")


@pytest.mark.parametrize("name", ["gather", "scatter_add", "masked_scatter"])
def test_refuses_what_eager_refuses(name):
    assert judge_errors(entries([name])[0]).reason == ""


# The page


def test_the_page_is_made_of_the_json():
    results = ops.SWEEP.load()
    assert ops.SWEEP.json.read_text("utf-8") == sweep.text(results)
    assert ops.SWEEP.json.with_suffix(".md").read_text("utf-8") == ops.SWEEP.page(results)


def test_nothing_on_the_page_is_wrong_without_a_reason():
    rows = [row for row in ops.SWEEP.load()["rows"] if row["status"] in ops_page.BAD]
    assert {(row["op"], row["variant"], row["dtype"]) for row in rows} == set(XFAILS)
    assert [row for row in rows if row["dtype"] in REQUIRED] == []


def test_a_worker_that_dies_takes_only_its_task_along():
    child = ops.SWEEP.child(limit=1, patience=60)
    verdict = sweep.asked(child, ("no such operator", "", "float32"))
    assert (verdict["op"], verdict["status"]) == ("no such operator", "crash")
    assert sweep.asked(child, ("neg", "", "int64"))["status"] == "lowered"
    child.close()


# The judge itself


def test_judge_sees_a_wrong_lowering(monkeypatch):
    right = registry.lookup(torch.ops.aten.digamma.default)
    wrong = registry.Lowering(right.overload, lambda x: x + 1)
    monkeypatch.setitem(registry._table, right.overload, wrong)
    executables().clear()  # one made by the right lowering would be found again
    verdict = judge(entries(["digamma"])[0], torch.float32, limit=1)
    executables().clear()
    assert verdict.status == "wrong"


def test_judge_sees_a_lowering_that_raises(monkeypatch):
    right = registry.lookup(torch.ops.aten.erfinv.default)
    broken = registry.Lowering(right.overload, lambda x: x.no_such_thing)
    monkeypatch.setitem(registry._table, right.overload, broken)
    executables().clear()
    verdict = judge(entries(["erfinv"])[0], torch.float32, limit=1)
    assert verdict.status == "error"
    assert "LoweringError" in verdict.reason


@pytest.mark.parametrize(
    ("expected", "actual", "word"),
    [
        (torch.ones(2), torch.ones(3), "float32[3]"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "float64"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), "at [1]"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "3, not 2"),
        (torch.tensor(float("nan")), torch.tensor(0.0), "not nan"),
    ],
)
def test_comparison_names_the_difference(expected, actual, word):
    assert word in compare([expected], [actual], frozenset())
    assert compare([expected], [expected.clone()], frozenset()) == ""


# The judge of the lazy device


@pytest.mark.parametrize("name", ["add", "sort", "scatter_add", "nn.functional.layer_norm"])
def test_the_device_gives_what_eager_gives(name):
    (op, *_) = entries([name])
    torch_galley.device()
    assert lazy.judge(op, torch.float32, limit=2) == ("right", "")


def test_the_device_refuses_what_eager_refuses():
    torch_galley.device()
    assert lazy.judge_errors(entries(["gather"])[0]) == ("right", "")


def test_the_judge_of_the_device_sees_a_wrong_lowering(monkeypatch):
    right = registry.lookup(torch.ops.aten.digamma.default)
    wrong = registry.Lowering(right.overload, lambda x: x + 1)
    monkeypatch.setitem(registry._table, right.overload, wrong)
    torch_galley.device()
    executables().clear()
    status, detail = lazy.judge(entries(["digamma"])[0], torch.float32, limit=1)
    executables().clear()
    assert (status, detail[:9]) == ("wrong", "sample 0:")


@pytest.mark.parametrize("asked", ["--dtypes nonsense", "--limit 0", "--shards 0", "--patience 0"])
def test_what_can_not_be_asked(asked, capsys):
    with pytest.raises(SystemExit, match="2"):
        sweep.main(ops.SWEEP, None, asked.split())
    assert f"argument {asked.split()[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{bad", "[1]", '{"rows": 7}', '{"rows": [{"op": "sin"}]}'])
def test_a_broken_file(text, tmp_path, capsys):
    (tmp_path / "ops.json").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        sweep.main(ops.SWEEP, None, ["--folder", str(tmp_path), "--render"])
    assert f"{tmp_path / 'ops.json'} has " in capsys.readouterr().err
