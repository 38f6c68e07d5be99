"""Matrix products: dtypes, empty inner sizes, beta and alpha."""

from __future__ import annotations

import pytest
import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.complex64])
def test_products(same, dtype):
    a, b = (torch.randn(2, 3, 4) * 3).to(dtype), (torch.randn(2, 4, 5) * 3).to(dtype)
    same(lambda a, b: (a @ b, a[0] @ b[0], a[0] @ b[0, :, 0], torch.dot(a[0, 0], b[0, :, 0])), a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_sums_with_factors(same, dtype):
    m, a, b = (torch.randn(*s).to(dtype) for s in ((5,), (2, 3, 4), (2, 4, 5)))
    scaled = {"beta": 2, "alpha": 3}

    def f(m, a, b):
        return (
            torch.addmm(m, a[0], b[0], **scaled),
            torch.baddbmm(m, a, b, **scaled),
            torch.addmv(m[:3], a[0], b[0, :, 0], **scaled),
        )

    same(f, m, a, b)
    same(lambda m, a, b: torch.addmm(m, a[0], b[0]), m, a, b)


def test_half_products_are_summed_in_float32(galley):
    a = torch.full((1, 4096), 1.0, dtype=torch.bfloat16)
    assert galley(lambda a: a @ a.T)(a).item() == 4096  # sums in bfloat16 stop at 256


def test_beta_zero_ignores_self(same):
    nan = torch.full((3, 5), torch.nan)
    same(lambda m, a, b: torch.addmm(m, a, b, beta=0), nan, torch.randn(3, 4), torch.randn(4, 5))


def test_empty_inner_size_gives_zeros(same):
    same(lambda a, b: a @ b, torch.ones(3, 0), torch.ones(0, 2))


def test_vdot_conjugates_its_first(same):
    a, b = torch.randn(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    same(torch.vdot, a, b)


def test_float32_is_not_rounded_to_less(galley):
    a = torch.tensor([[1 + 2**-20, 1.0]])
    b = torch.tensor([[1.0], [-1.0]])
    assert galley(lambda a, b: a @ b)(a, b).item() == 2**-20
