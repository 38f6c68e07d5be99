"""Our own XLA client, and the public way when jaxlib has no such entry points."""

from __future__ import annotations

import threading
from dataclasses import replace

import jax
import pytest
import torch

import torch_galley
from torch_galley.capture.fx import Captured
from torch_galley.cluster.partition import partition
from torch_galley.compile import client
from torch_galley.compile import engine as engines
from torch_galley.compile.programs import executables
from torch_galley.core.config import current
from torch_galley.core.errors import CompileError, LoweringError, RunError
from torch_galley.core.spec import TensorSpec, wide_types
from torch_galley.lower.driver import Argument, lower
from torch_galley.ops import registry


def test_the_pinned_jaxlib_gives_us_our_own_client():
    assert isinstance(engines.engine(), engines.OwnEngine)


@pytest.fixture
def public(monkeypatch):
    """A jaxlib whose private entry points are gone."""

    def gone(self):
        raise ImportError("no such entry point")

    monkeypatch.setattr(engines.OwnEngine, "__init__", gone)
    engines._engine.cache_clear()
    executables().clear()
    yield
    engines._engine.cache_clear()
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
    ways = engines.OwnEngine._ways

    def wrong(self, jaxlib):
        return ways(self, jaxlib)[0], lambda array: torch.zeros(2, 3)

    monkeypatch.setattr(engines.OwnEngine, "_ways", wrong)
    engines._engine.cache_clear()
    try:
        assert isinstance(engines.engine(), engines.PublicEngine)
    finally:
        engines._engine.cache_clear()


def test_the_users_own_jax_stays_as_it_was(galley):
    galley(lambda x: x * 2)(torch.ones(2, dtype=torch.float64))
    assert jax.numpy.ones(2).dtype == "float32"
    assert not jax.config.read("jax_enable_x64")


@pytest.fixture
def lowered():
    """A small cluster, lowered."""
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x + 1,), tracing_mode="fake")(
        torch.ones(2)
    )
    captured = Captured(graph, "inference", current())
    (cluster,) = partition(captured, client.has_device).clusters
    argument = Argument(TensorSpec((2,), torch.float32))
    return lambda: lower(cluster, [argument], {}, current())


def test_what_xla_refuses_is_a_compile_error(lowered, monkeypatch):
    monkeypatch.setattr(client, "compiler_options", lambda text: {"xla_no_such_option": True})
    with pytest.raises(CompileError, match=r"XLA could not compile xla_.* option"):
        client.compile(lowered())


def test_a_lowering_that_raises_is_named(lowered, monkeypatch):
    def broken(self, other, *, alpha=1):
        raise ValueError("a planted fault")

    op = torch.ops.aten.add.Tensor
    monkeypatch.setitem(registry._table, op, replace(registry.table()[op], function=broken))
    with pytest.raises(
        LoweringError, match=r"aten\.add\.Tensor failed: .*a planted fault"
    ) as caught:
        lowered()
    assert caught.value.facts["node"] == "add"


@pytest.mark.parametrize("calls", [1, 2], ids=["at the first call", "later"])
def test_a_run_that_fails_is_ours(galley, monkeypatch, calls):
    init, left = engines._OwnExecutable.__init__, [calls]

    def failing_later(self, loaded):
        def run(arrays):
            left[0] -= 1
            if not left[0]:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory, 9 bytes.")
            return loaded.execute(arrays)

        init(self, loaded)
        self.run = run

    monkeypatch.setattr(engines._OwnExecutable, "__init__", failing_later)
    executables().clear()
    compiled = galley(lambda x: x + 1)
    for _ in range(calls - 1):
        compiled(torch.ones(2))
    with pytest.raises(RunError, match="failed: RESOURCE_EXHAUSTED") as caught:
        compiled(torch.ones(2))
    assert "smaller batch" in str(caught.value)
    assert "test_engine.py" in str(caught.value)  # the user's line
    executables().clear()


def test_threads_that_come_first_together_get_one_engine():
    engines._engine.cache_clear()
    barrier, found = threading.Barrier(4), []

    def ask():
        barrier.wait()
        found.append(engines.engine())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    executables().clear()


def test_donated_memory_is_reused_only_if_it_is_xlas_own():
    """What docs/decisions/0011-no-donation.md rests on."""
    own = engines.OwnEngine()
    with wide_types():
        spec = jax.ShapeDtypeStruct((4096,), "float32")
        stage = jax.jit(lambda x: (x * 2,), donate_argnums=(0,)).lower(spec)
    program = own.compile(stage, {})
    assert program.memory().alias_size_in_bytes == 4 * 4096
    alignment = torch.ones(4096 + 16).data_ptr() % 64
    tensor = torch.ones(4096 + 16)[(64 - alignment) % 64 // 4 :][:4096]

    def reuses(array):
        memory = array.unsafe_buffer_pointer()
        result = program.run([array])[0]
        return result, result.unsafe_buffer_pointer() == memory

    viewed = own.bring(tensor)
    result, reused = reuses(viewed)
    assert (tensor.sum(), reused) == (4096, False)
    exported = own.take(result)
    result, reused = reuses(result)
    assert (exported.sum(), reused) == (2 * 4096, False)
    again, reused = reuses(own.bring(own.take(result)))
    assert not reused
    last, reused = reuses(again)
    assert (own.take(last).sum(), reused) == (16 * 4096, True)
