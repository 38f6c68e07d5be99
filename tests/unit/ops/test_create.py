"""Tensors made of nothing, each fed to an operation so that XLA makes it."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    ("args", "dtype"),
    [
        ((2**31 - 1, 2**31 + 3), None),
        ((2**53 + 1, 2**53 + 8, 3), None),
        ((10, -3, -4), None),
        ((5, 5), None),
        ((0.5, 3), None),
        ((1, 0, -0.25), torch.float64),
        ((0, 5), torch.bfloat16),
        ((0.5, 5.5, 1.5), torch.int64),
        ((0.5, 5.5, 1.5), torch.int32),
        ((-3, 3), torch.int8),
        ((True, 4), None),
    ],
)
def test_arange(same, args, dtype):
    same(lambda x: torch.arange(*args, dtype=dtype) + x, torch.tensor(0, dtype=torch.int8))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**53 + 1, None),
        (1.5, None),
        (True, None),
        (1j, None),
        (-1, torch.uint8),
        (2.9, torch.int32),
        (float("-inf"), torch.float16),
        (2, torch.bool),
        (float("nan"), torch.complex64),
    ],
)
def test_full(same, value, dtype):
    def f(x):
        like = torch.full_like(x, value, dtype=dtype or x.dtype) if value == 1.5 else x
        return (
            torch.full((2, 0), value, dtype=dtype),
            torch.full((3,), value, dtype=dtype) | x,
            like,
        )

    def g(x):
        made = torch.full((3,), value, dtype=dtype)
        return torch.cat([made, made]), x + 1

    same(g, torch.zeros(3))


def test_memory_left_open_is_zero(galley):
    def f(x):
        made = torch.empty(3), x.new_empty(3), torch.empty_like(x), x.new_empty_strided((3,), (1,))
        return [m + x for m in made]

    x = torch.tensor([1.0, 2.0, 3.0])
    assert all(torch.equal(y, x) for y in galley(f)(x))


def test_defaults(same):
    def f(x):
        return (
            torch.scalar_tensor(3) * x,
            x.new_full((2,), 7) + x,
            x.new_zeros(2, dtype=torch.int64) + x,
            torch.ones(2, dtype=torch.bool) & (x > 0),
            torch.eye(3, 2, dtype=torch.int64) * x,
            torch.zeros_like(x) + torch.ones_like(x),
        )

    same(f, torch.tensor([1.0, -2.0]))


def test_default_dtype_is_read_at_compilation(same):
    torch.set_default_dtype(torch.float64)
    try:
        same(lambda x: torch.full((2,), 0.1) + x, torch.ones(2, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_linspace(same, dtype):
    def f(x):
        ramps = [torch.linspace(-3, 10, steps, dtype=dtype) + x for steps in (0, 1, 2, 7)]
        return *ramps, torch.logspace(0, 2, 5) + x

    same(f, torch.tensor(0))


ONE = torch.tensor(1)


@pytest.mark.parametrize("start", [4.3, torch.tensor(4.3)], ids=["number", "tensor"])
def test_linspace_in_integers(same, start):
    ends = range(-30, 31, 3)
    same(lambda x: [torch.linspace(start, e, 13, dtype=torch.int64) + x for e in ends], ONE)


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (2, 5), (0, 3), (3, 0)])
def test_triangle_indices(same, rows, columns):
    def f(x):
        made = []
        for offset in (0, 1, -2, 9, -9):
            made.append(torch.tril_indices(rows, columns, offset) + x)
            made.append(torch.triu_indices(rows, columns, offset, dtype=torch.int32) + x)
        return made

    same(f, torch.tensor(0))
