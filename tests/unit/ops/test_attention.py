"""Scaled dot product attention: masks, scale, fully masked rows, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

sdpa = F.scaled_dot_product_attention


def qkv(queries=5, keys=7, heads=2, kv_heads=2, dtype=torch.float32):
    shape = (2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 8)
    return tuple(torch.randn(s).to(dtype) for s in shape)


MASKS = {
    "none": None,
    "bool": torch.rand(5, 7) > 0.3,
    "float": torch.randn(2, 1, 5, 7),
    "a head each": torch.randn(2, 2, 5, 7),
    "fully masked row": torch.ones(5, 7, dtype=torch.bool).index_fill(0, torch.tensor([1]), False),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_gradients(galley, name):
    mask, tensors = MASKS[name], qkv()
    twins = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
    runs = [sdpa, galley(sdpa, fullgraph=True)]
    outputs = [run(*own, attn_mask=mask) for run, own in zip(runs, twins, strict=True)]
    torch.testing.assert_close(outputs[1], outputs[0])
    weight = torch.randn_like(outputs[0])
    for output in outputs:
        (output * weight).sum().backward()
    for want, got in zip(*twins, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_causal_and_scale(same, dtype):
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    same(lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.3), *qkv(dtype=dtype), **tolerance)


def test_query_heads_share_key_heads(same):
    same(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), *qkv(heads=4, kv_heads=2))


def test_no_keys(same):
    q, k, v = qkv(keys=0)
    same(lambda q, k, v: sdpa(q, k, v) + 0, q, k, v)


def test_other_ranks(same):
    same(lambda q: sdpa(q, q, q), torch.randn(3, 5, 8))


def test_large_scores_do_not_overflow(same):
    q, k, v = qkv()
    same(lambda q, k, v: sdpa(q * 1000, k, v), q, k, v, rtol=1e-4, atol=1e-3)
