"""What all tests share: every cluster goes to XLA, and no test inherits another's captures."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_galley

_NUMBER = itertools.count()

# The first call of one of MKL's vector functions in a process, if it is by two threads at once, may
# give half the digits (3 of 60 processes: tanh 9e-5 off): one thread makes it here.
_OF_MKL = """
acos asin atan cos cosh erf erfc erfinv exp expm1 log log10 log1p sin tan tanh
"""
for _name in _OF_MKL.split():
    for _dtype in (torch.float32, torch.float64):
        getattr(torch, _name)(torch.zeros(1, dtype=_dtype))


@pytest.fixture(autouse=True)
def _fresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Force clusters of one operation, and forget captures: past eight recompiles Dynamo would
    run eagerly without a word, and eager would be tested against eager. What was measured on this
    machine, or by another test, is no test's business."""
    cache = tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBER)}"
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # for settings made without the environment
    monkeypatch.setenv("GALLEY_DECIDE", "size")
    monkeypatch.setenv("GALLEY_MIN_CLUSTER_SIZE", "1")
    monkeypatch.setenv("GALLEY_STRICT", "1")
    torch_galley.reset_metrics()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def forgets_torch_xla() -> Iterator[None]:
    """Undo torch_galley.compat.install(), which makes libraries take us for torch_xla."""
    path, finders = list(sys.path), list(sys.meta_path)
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in [name for name in sys.modules if name.split(".")[0] == "torch_xla"]:
        del sys.modules[name]


@pytest.fixture
def galley() -> Callable[..., Any]:
    """torch.compile with our backend."""
    return lambda function, **kwargs: torch.compile(function, backend="galley", **kwargs)


@pytest.fixture
def eagers_numbers() -> Iterator[None]:
    """Have random numbers drawn as in eager, to be compared with eager's."""
    with torch_galley.config(rng="native"):
        yield


@pytest.fixture
def same() -> Callable[..., None]:
    """Assert that a function compiled by us equals eager, and that XLA did the work."""

    def check(function: Callable[..., Any], *args: Any, **tolerance: float) -> None:
        wanted = function(*args)
        before = torch_galley.metrics()["executions"]
        given = torch.compile(function, backend="galley", fullgraph=True)(*args)
        assert torch_galley.metrics()["executions"] > before, "no cluster was executed"
        torch.testing.assert_close(given, wanted, equal_nan=True, **tolerance)

    return check
