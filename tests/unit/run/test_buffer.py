"""Tensors and arrays share memory, by jaxlib's entry points or by the public ones."""

from __future__ import annotations

import pytest
import torch

from torch_galley.compile.engine import PublicEngine, engine
from torch_galley.run import buffer


@pytest.fixture(params=["own", "public"])
def way(request):
    return engine() if request.param == "own" else PublicEngine()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex128])
def test_round_trip_without_a_copy(way, dtype):
    tensor = torch.ones(4, 3).to(dtype)
    array = buffer.to_jax(tensor, None, way)
    assert buffer.is_view_of(array, tensor)
    back = way.take(array)
    assert back.dtype is dtype
    assert back.data_ptr() == tensor.data_ptr()


def test_misaligned_memory_is_copied(way):
    tensor = torch.arange(9.0)[1:]
    array = buffer.to_jax(tensor, None, way)
    assert not buffer.is_view_of(array, tensor)
    assert array.tolist() == tensor.tolist()
