"""XLA behind its seam: known crashes are avoided, errors become ours."""

from __future__ import annotations

import jax
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from torch_galley.compile import client
from torch_galley.compile.client import compiler_options, has_device, xla_error
from torch_galley.core.errors import RunError
from torch_galley.core.site import Site


def test_rank_seven_does_not_crash(same):
    a = torch.ones(3, 1, 2, 2, 8, 8, 8)
    same(lambda a, b: (a * b).sum(3), a, torch.full_like(a, 2.0))


def test_the_crash_option_is_paid_for_only_where_it_is_needed():
    assert compiler_options("tensor<1x2x3x4x5x6xf32>") == {}
    assert compiler_options("tensor<1x2x3x4x5x6x7xf32>") != {}


@pytest.mark.parametrize("wrong", range(5))
def test_programs_that_would_be_wrong_are_compiled_otherwise(galley, monkeypatch, wrong):
    verdicts = [["add_fusion"]] * wrong + [[]]
    monkeypatch.setattr(client, "overwritten", lambda hlo: verdicts.pop(0))
    x = torch.arange(float(7 + wrong))  # an executable of its own
    if wrong <= len(client._RETREATS):
        assert torch.equal(galley(lambda x: (x + 1) * x)(x), (x + 1) * x)
        assert verdicts == []
    else:
        words = r"CompileError: .* rightly: add_fusion would write over what it still reads"
        with pytest.raises(BackendCompilerFailed, match=words):
            galley(lambda x: (x + 1) * x)(x)


def test_xla_errors_become_ours_with_the_users_place():
    xla = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")
    error = xla_error(xla, RunError, "xla_0 failed", Site("model.py", 3))
    assert str(error) == (
        "xla_0 failed: RESOURCE_EXHAUSTED: Out of memory\n"
        "  at model.py:3\n"
        "  hint: out of memory: use a smaller batch, or keep this operator native with deny_ops"
    )


def test_devices():
    assert has_device(torch.device("cpu"))
    assert not has_device(torch.device("meta"))
