"""A fixed fraction of op_db's gradients, judged against eager; `make gradients` does them all."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gradients, ops_page, sweep
from benchmarks.gradients_page import COLUMNS
from tests.ops import gradient
from tests.ops.compare import compare
from tests.ops.judge import entries
from tests.ops.xfails import WRONG_GRADIENTS
from torch_galley.compile.programs import executables
from torch_galley.ops import registry

pytestmark = pytest.mark.filterwarnings("ignore")

STEP = 97
"""Every so many of the entries in these columns is judged here."""
TASKS = [
    pytest.param(op, column, id=f"{op.name}-{op.variant_test_name or 'plain'}-{column}")
    for column in COLUMNS
    for op in entries()
    if gradient.takes(op, column)
][::STEP]


@pytest.mark.parametrize(("op", "column"), TASKS)
def test_gives_the_gradients_that_eager_gives(op, column):
    verdict = gradient.judge(op, column, limit=2)
    assert verdict.status in (*ops_page.RIGHT, "right", "skipped"), verdict


@pytest.mark.parametrize("column", COLUMNS[:4])
@pytest.mark.parametrize("name", ["mul", "softmax", "gather"])
def test_runs_in_xla_alone(name, column):
    verdict = gradient.judge(entries([name])[0], column, limit=2)
    assert verdict.status in ("lowered", "right"), verdict


GRADIENTS = """\
_segment_reduce _upsample_bilinear2d_aa cdist grid_sampler_2d nn.functional.embedding_bag
nn.functional.hardshrink nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss
nn.functional.pdist nn.functional.softshrink nn.functional.upsample_bilinear
nn.functional.upsample_nearest"""


@pytest.mark.parametrize("op", entries(GRADIENTS.split()), ids=lambda op: op.name)
def test_gradients_of_their_own_run_in_xla(op):
    verdict = gradient.judge(op, "float32", limit=2)
    assert (verdict.status, verdict.reason) == ("lowered", "")


# The page


def test_the_page_is_made_of_the_json():
    results = gradients.SWEEP.load()
    assert gradients.SWEEP.json.read_text("utf-8") == sweep.text(results)
    page = gradients.SWEEP.json.with_suffix(".md").read_text("utf-8")
    assert page == gradients.SWEEP.page(results)


def test_nothing_on_the_page_is_wrong_without_a_reason():
    rows = [row for row in gradients.SWEEP.load()["rows"] if row["status"] in ops_page.BAD]
    assert {(row["op"], row["variant"], row["dtype"]) for row in rows} == set(WRONG_GRADIENTS)


# The judge itself


@pytest.mark.parametrize("column", COLUMNS[:4])
def test_judge_sees_a_wrong_gradient(monkeypatch, column):
    right = registry.lookup(torch.ops.aten.sigmoid_backward.default)
    wrong = registry.Lowering(right.overload, lambda grad, out: grad * out)
    monkeypatch.setitem(registry._table, right.overload, wrong)
    executables().clear()  # one made by the right lowering would be found again
    verdict = gradient.judge(entries(["sigmoid"])[0], column, limit=1)
    executables().clear()
    assert verdict.status == "wrong", verdict


def test_judge_names_what_stays_native():
    verdict = gradient.judge(entries(["linalg.svd"])[0], "float32", limit=1)
    assert verdict.status == "mixed"
    assert "aten._linalg_svd" in verdict.reason


@pytest.mark.parametrize(("expected", "actual"), [(None, torch.ones(1)), (torch.ones(1), None)])
def test_a_gradient_that_only_one_has_is_a_difference(expected, actual):
    assert compare([expected], [actual], frozenset())
    assert compare([expected], [expected], frozenset()) == ""
