"""A fixed part of torch's op_db, judged against eager; `python -m tests.ops.sweep` does it all."""

from __future__ import annotations

import pytest
import torch

from tests.ops.judge import Verdict, compare, entries, judge, label

pytestmark = pytest.mark.filterwarnings("ignore")

SINGLE = """
abs acos acosh add addcdiv addcmul addmm all amax amin aminmax angle any argmax argmin argsort asin
asinh atan atan2 atanh baddbmm bmm bucketize cat ceil chunk clamp clamp_max clamp_min clone copysign
cos cosh count_nonzero cross cummax cummin cumprod cumsum deg2rad diag_embed diagonal diff digamma
dist div dot erf erfc erfinv exp exp2 expand expm1 flip floor floor_divide fmax fmin fmod frac
frexp gather gt heaviside hypot i0 igamma index_add index_copy index_fill index_put index_select
isclose isfinite isin isinf isnan kthvalue ldexp lerp lgamma log log10 log1p log2 logaddexp
logcumsumexp logit logsumexp masked_fill matmul max maximum mean median min minimum mm movedim
mul mv nan_to_num nanmean nanmedian nansum narrow neg nextafter nn.functional.avg_pool2d
nn.functional.conv2d nn.functional.elu nn.functional.embedding nn.functional.gelu
nn.functional.glu nn.functional.hardswish nn.functional.hardtanh nn.functional.layer_norm
nn.functional.leaky_relu nn.functional.linear nn.functional.logsigmoid
nn.functional.max_pool2d nn.functional.mish nn.functional.mse_loss nn.functional.relu
nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.threshold
permute pow prod quantile reciprocal remainder repeat reshape roll round rsqrt scatter scatter_add
searchsorted select sgn sigmoid sign signbit sin sinc sinh softmax log_softmax sort split sqrt
square squeeze stack std sub sum tan tanh tile topk trapezoid tril trunc unbind
unfold unsqueeze var var_mean vstack where xlogy special.i0e special.i1 special.ndtri
linalg.vector_norm
"""
OTHERS = """
abs add all amax any argmax bitwise_and bitwise_left_shift bitwise_not bitwise_right_shift cat clamp
cumprod cumsum cummax div eq floor_divide fmod gather lt max maximum mean mul neg pow prod
remainder sort square sub sum topk where
"""
CASES = [(name, torch.float32) for name in SINGLE.split()]
CASES += [
    (name, dtype) for name in OTHERS.split() for dtype in (torch.int64, torch.bool, torch.bfloat16)
]
TASKS = [
    pytest.param(op, dtype, id=f"{label(op)}-{str(dtype).removeprefix('torch.')}")
    for name, dtype in CASES
    for op in entries([name])[:1]
    if op.supports_dtype(dtype, "cpu")
]


@pytest.mark.parametrize(("op", "dtype"), TASKS)
def test_gives_what_eager_gives(op, dtype):
    verdict = judge(op, dtype, limit=2)
    assert verdict.status in ("lowered", "mixed", "native", "uncaptured"), verdict


def test_names_are_of_this_torch():
    known = {op.name for op in entries()}
    assert {name for name, _ in CASES} <= known


def test_most_of_them_run_in_xla():
    names = ["add", "sum", "softmax", "sort", "nn.functional.gelu", "where", "cumsum"]
    verdicts = [judge(op, torch.float32, limit=1) for op in entries(names)]
    assert {verdict.status for verdict in verdicts} == {"lowered"}, verdicts


# The judge itself


def test_judge_sees_a_wrong_lowering(monkeypatch):
    from torch_galley.ops import registry
    from torch_galley.pipeline import executables

    right = registry.lookup(torch.ops.aten.digamma.default)
    wrong = registry.Lowering(right.overload, lambda x: x + 1)
    monkeypatch.setitem(registry._table, right.overload, wrong)
    executables().clear()  # one made by the right lowering would be found again
    verdict = judge(entries(["digamma"])[0], torch.float32, limit=1)
    executables().clear()
    assert verdict.status == "wrong"


def test_judge_sees_a_lowering_that_raises(monkeypatch):
    from torch_galley.ops import registry

    right = registry.lookup(torch.ops.aten.erfinv.default)
    broken = registry.Lowering(right.overload, lambda x: x.no_such_thing)
    monkeypatch.setitem(registry._table, right.overload, broken)
    from torch_galley.pipeline import executables

    executables().clear()
    verdict: Verdict = judge(entries(["erfinv"])[0], torch.float32, limit=1)
    assert verdict.status == "error"
    assert "LoweringError" in verdict.detail


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
