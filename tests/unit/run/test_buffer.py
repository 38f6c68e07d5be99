"""Tensors and arrays share memory, by jaxlib's entry points or by the public ones."""

from __future__ import annotations

import pytest
import torch

from torch_galley.core.spec import wide_types
from torch_galley.run import buffer


@pytest.fixture(params=["low level", "public"])
def functions(request, monkeypatch):
    buffer._functions.cache_clear()
    if request.param == "public":

        def gone():
            raise ImportError("this jaxlib has no such entry point")

        monkeypatch.setattr(buffer, "_low_level", gone)
    yield buffer._functions()
    buffer._functions.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex128])
def test_round_trip_without_a_copy(functions, dtype):
    tensor = torch.ones(4, 3).to(dtype)
    with wide_types():
        array = buffer.to_jax(tensor, None)
    assert buffer.is_view_of(array, tensor)
    back = buffer.to_torch(array, None, (4, 3))
    assert back.dtype is dtype
    assert back.data_ptr() == tensor.data_ptr()


def test_the_low_level_pair_is_in_use_with_the_pinned_jaxlib():
    buffer._functions.cache_clear()
    assert buffer._functions()[0] is not buffer._public_import


def test_misaligned_memory_is_copied(functions):
    tensor = torch.arange(9.0)[1:]
    with wide_types():
        array = buffer.to_jax(tensor, None)
    assert not buffer.is_view_of(array, tensor)
    assert array.tolist() == tensor.tolist()
