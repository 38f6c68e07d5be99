"""Our own XLA client, and the public way when jaxlib has no such entry points."""

from __future__ import annotations

import jax
import pytest
import torch

import torch_galley
from torch_galley.compile import engine as engines
from torch_galley.core.errors import CompileError
from torch_galley.pipeline import executables


def test_the_pinned_jaxlib_gives_us_our_own_client():
    assert isinstance(engines.engine(), engines.OwnEngine)


@pytest.fixture
def public(monkeypatch):
    """A jaxlib whose private entry points are gone."""

    def gone(self):
        raise ImportError("no such entry point")

    monkeypatch.setattr(engines.OwnEngine, "__init__", gone)
    engines.engine.cache_clear()
    executables().clear()
    yield
    engines.engine.cache_clear()
    executables().clear()


def test_the_public_way_gives_the_same(public, galley):
    assert isinstance(engines.engine(), engines.PublicEngine)

    def f(x, i, w):
        y = torch.nn.functional.layer_norm(x @ w, (5,)).t()
        return y, i * 5 + 1, (x > 0).any(), torch.embedding(w, i[:1] * 0)

    x, w, i = torch.randn(4, 5), torch.randn(5, 5), torch.tensor([2**40, 3])
    x.requires_grad_()
    out = galley(f)(x, i, w)
    for got, want in zip(out, f(x, i, w), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    out[0].sum().backward()
    assert x.grad is not None
    assert torch_galley.metrics()["executions"] == 2


def test_the_public_way_also_waits_for_its_results(public, galley):
    def chain(x):
        y = x
        for _ in range(6):
            y = ((y @ x) * 0.02).sin()
        return y

    x = torch.randn(400, 400)
    wanted = chain(x.clone())
    given = galley(chain)(x)
    x.zero_()
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)


def test_an_engine_that_computes_wrongly_is_not_used(monkeypatch):
    monkeypatch.setattr(engines.OwnEngine, "take", lambda self, array: torch.zeros(2, 3))
    engines.engine.cache_clear()
    try:
        assert isinstance(engines.engine(), engines.PublicEngine)
    finally:
        engines.engine.cache_clear()


def test_the_users_own_jax_stays_as_it_was(galley):
    galley(lambda x: x * 2)(torch.ones(2, dtype=torch.float64))
    assert jax.numpy.ones(2).dtype == "float32"
    assert not jax.config.read("jax_enable_x64")


def test_what_xla_refuses_is_a_compile_error():
    from torch_galley.compile.client import xla_errors

    stage = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), "float32"))
    with (
        pytest.raises(CompileError, match="No such compile option"),
        xla_errors(CompileError, "compiling"),
    ):
        engines.engine().compile(stage, {"xla_no_such_option": True})
