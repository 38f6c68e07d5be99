"""Layout: a strided tensor as a dense array, and back."""

from __future__ import annotations

import itertools

import pytest
import torch

from torch_galley.lower.layout import Layout


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_pack_is_dense_and_unpack_its_inverse(order):
    base = torch.randn(2, 3, 1, 4).permute(order)
    layout = Layout.of(base.shape, base.stride())
    if layout is None:
        assert base.is_contiguous()
        return
    packed = layout.pack(base)
    assert packed.is_contiguous()
    assert packed.data_ptr() == base.data_ptr()
    assert tuple(packed.shape) == layout.physical(base.shape)
    back = layout.unpack(packed, base.shape)
    assert torch.equal(back, base)
    assert back.stride() == base.stride()


def test_gaps_have_no_layout():
    gaps = torch.zeros(4, 6)[:, ::2]
    assert Layout.of(gaps.shape, gaps.stride()) is None


def test_expanded_dimensions_are_stored_once():
    expanded = torch.zeros(3, 1).expand(3, 5)
    layout = Layout.of(expanded.shape, expanded.stride())
    assert layout is not None
    assert layout.physical(expanded.shape) == (3, 1)
