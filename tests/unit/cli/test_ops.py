"""galley ops: each kind of answer."""

import json

import pytest
import torch

from torch_galley.cli.main import main
from torch_galley.cli.ops import _verdict
from torch_galley.ops.draw import ours
from torch_galley.ops.registry import table
from torch_galley.tools import operator
from torch_galley.tools.operator import overloads, resolve, supported

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("name", "op"),
    [
        *((name, "gelu") for name in ("gelu", "aten.gelu", "aten.gelu.default", "aten::gelu")),
        *((f"{prefix}.gelu", "gelu") for prefix in ("torch", "torch.ops.aten", "F")),
        *((f"{prefix}.gelu", "gelu") for prefix in ("nn.functional", "torch.nn.functional")),
        ("torch.Tensor.relu", "relu"),
        ("torch.linalg.det", "linalg_det"),
        ("torch.special.i0e", "special_i0e"),
        ("fft.rfft", "fft_rfft"),
    ],
)
def test_forms_of_a_name(name, op):
    assert resolve(name)[0] is getattr(aten, op).default


@pytest.mark.parametrize("name", ["torch.cond", "higher_order.scan", *operator.CONTROL_FLOW])
def test_control_flow(name, capsys):
    assert main(["ops", name]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{name.rpartition('.')[2]}: control flow, lowered whole by body " in told
    assert "docs/decisions/0018-control-flow.md" in told
    assert main(["ops", name, "--json"]) == 0
    assert " ".join(json.loads(capsys.readouterr().out)["control_flow"].split()) == told


def test_training_is_tried():
    assert "True" in operator.tried(aten.dropout.default)["float32"].arguments


def test_a_sweep_that_lets_eager_draw_says_so():
    row = {"status": "mixed", "reason": "aten.rand.default draws random numbers"}
    assert _verdict(row).endswith('numbers (the sweep has rng="native")')
    assert _verdict(row | {"reason": "no lowering"}) == "mixed, no lowering"


def test_a_body(capsys):
    assert main(["ops", "aten.gelu.default"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("aten.gelu.default: lowered, body gelu, torch_galley/ops/aten/activ")
    assert "    in XLA: float16, bfloat16, float32, float64" in lines
    assert any(line.startswith("    eager refuses that of: bool, uint8") for line in lines)
    assert lines[-1].startswith("devices: cpu")


def test_a_row_has_its_line():
    detail = supported(aten.neg.default).detail
    assert detail.startswith("row jnp.negative, torch_galley/ops/aten/elementwise.py:")
    path, _, number = detail.rpartition(", ")[2].rpartition(":")
    line = (operator.SOURCE / path).read_text("utf-8").splitlines()[int(number) - 1]
    assert "aten.neg.default" in line


def test_a_condition(capsys):
    assert main(["ops", "aten.embedding.default"]) == 0
    assert "  if its arguments pass: dense_only, torch_galley/" in capsys.readouterr().out


def test_decomposed_by_torch(capsys):
    assert main(["ops", "aten.linear.default"]) == 0
    out = capsys.readouterr().out
    assert "aten.linear.default: decomposed, by torch's dispatcher" in out
    assert "  into: aten.t.default (lowered), aten.mm.default (lowered)" in out


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("aten.randint_like.Tensor", "Random", "draws random numbers"),
        ("aten.nonzero.default", "DataDependentShape", "result depends on the data"),
        ("aten.linalg_eig.default", "NoLowering", "no lowering for aten.linalg_eig.default"),
        ("aten._cummax_helper.default", "SideEffect", "has a side effect"),
    ],
)
def test_native(capsys, name, code, words):
    assert main(["ops", name, "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["overloads"]
    assert told["how"] == "native"
    assert told["reason"]["code"] == code
    assert words in told["detail"]


def test_an_inplace_form():
    assert supported(aten.add_.Tensor).detail == "captured as aten.add.Tensor"


def test_a_draw():
    assert "drawn from a seed by row partial(_made, _unit), " in supported(aten.rand.default).detail


def test_json_has_the_trials(capsys):
    assert main(["ops", "aten.add.Tensor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["devices"]["cpu"] is True
    (one,) = told["overloads"]
    assert one["trials"]["bfloat16"]["verdict"] == "xla"
    assert one["trials"]["float32"]["into"] == ["aten.add.Tensor"]


def test_table(capsys):
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"overloads of ATen in torch {torch.__version__}")
    counts = {line.split()[0]: int(line.split()[1]) for line in lines[1:5]}
    drawn = [ours(op) for op in overloads().values() if ours(op) in table()]
    assert counts["lowered"] == sum(op.namespace == "aten" for op in table()) + len(drawn)
    assert sum(counts.values()) == len(overloads())


def test_list(capsys):
    assert main(["ops", "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["overloads"]) == sum(told["counts"].values())
    assert sum(told["native"].values()) == told["counts"]["native"]
    assert main(["ops", "--all"]) == 0
    assert "aten.relu.default" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "hint"),
    [("geluu", "did you mean 'gelu'"), ("12345678", "galley ops --all lists them")],
)
def test_unknown_name(capsys, name, hint):
    assert main(["ops", name]) == 2
    err = capsys.readouterr().err
    assert f"no operator named {name!r} in this torch\n  hint: {hint}" in err


def test_a_sweep_is_quoted(tmp_path, monkeypatch, capsys):
    row = {"op": "nn.functional.relu", "variant": "", "dtype": "float32", "status": "mixed"}
    other = row | {"op": "sin", "reason": ""}
    file = tmp_path / "ops.json"
    file.write_text(json.dumps({"rows": [row | {"reason": "no lowering"}, other]}))
    monkeypatch.setattr(operator, "sweep_file", lambda: file)
    assert main(["ops", "aten.relu.default"]) == 0
    quoted = [line for line in capsys.readouterr().out.splitlines() if "op_db" in line]
    assert quoted == ["  op_db sweep, float32: mixed, no lowering"]


def test_no_sweep_no_quote(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(operator, "sweep_file", lambda: tmp_path / "ops.json")
    assert main(["ops", "aten.relu.default"]) == 0
    assert "op_db" not in capsys.readouterr().out


def test_one_of_a_users(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, torch_galley\n"
        "from torch import Tensor\n"
        "def define(name):\n"
        "    @torch.library.custom_op(name, mutates_args=())\n"
        "    def op(x: Tensor, by: float) -> Tensor:\n"
        "        return x * by\n"
        "    op.register_fake(lambda x, by: torch.empty_like(x))\n"
        "    return op\n"
        "plain = define('opsverb::plain')\n"
        "def body(x, by):\n"
        "    return (x * by).astype(x.dtype)\n"
        "torch_galley.lowers(define('opsverb::lowered'))(body)\n"
    )
    load = ["--load", str(tmp_path / "mine.py")]
    assert main(["ops", *load, "opsverb.lowered"]) == 0
    out = capsys.readouterr().out
    assert f"opsverb.lowered.default: lowered, body body, {tmp_path}/mine.py:10" in out
    assert "in XLA: bfloat16" in out or "float32" in out
    assert main(["ops", "opsverb::plain"]) == 1
    assert "torch_galley.lowers takes one" in capsys.readouterr().out
    assert main(["ops", "opsverb.plane"]) == 2
    assert "did you mean 'opsverb.plain'" in capsys.readouterr().err
    assert main(["ops", "--load", str(tmp_path / "no.py")]) == 2
