"""Pooling: where windows lie, what the padding counts, which element a maximum chose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

MAXIMA = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    {"kernel_size": (2, 3), "stride": (3, 2), "ceil_mode": True},
    {"kernel_size": 3, "stride": 4, "ceil_mode": True},
    {"kernel_size": 1, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
]
AVERAGES = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": (2, 3), "divisor_override": 3},
    {"kernel_size": (9, 10)},
]


def graded(galley, function, x):
    """Compare a function of `x` and its gradient with eager."""
    twins = x.clone().requires_grad_(), x.clone().requires_grad_()
    outputs = function(twins[0]), galley(function, fullgraph=True)(twins[1])
    torch.testing.assert_close(outputs[1], outputs[0])
    for output in outputs:
        first = output[0] if isinstance(output, tuple) else output
        (first * first).sum().backward()
    torch.testing.assert_close(twins[1].grad, twins[0].grad)


@pytest.mark.parametrize("settings", MAXIMA, ids=str)
def test_max_pool2d(galley, settings):
    x = torch.randint(0, 5, (2, 3, 9, 10)).float()  # many ties
    graded(galley, lambda x: F.max_pool2d(x, **settings, return_indices=True), x)


def test_max_pool_of_nan_and_minus_infinity(same):
    x = torch.full((1, 1, 4, 4), -torch.inf)
    x[0, 0, 0, 0] = x[0, 0, 1, 1] = x[0, 0, 2, 3] = torch.nan
    same(lambda x: F.max_pool2d(x, 2, padding=1, return_indices=True), x)
    same(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)


def test_max_pool_of_other_ranks(galley):
    graded(galley, lambda x: F.max_pool1d(x, 3, 2, 1), torch.randn(2, 3, 9))
    graded(galley, lambda x: F.max_pool2d(x, 2), torch.randn(3, 6, 6))
    graded(
        galley,
        lambda x: F.max_pool3d(x, 2, 2, 1, ceil_mode=True, return_indices=True),
        torch.randn(1, 2, 5, 6, 4),
    )


def test_max_pool_of_integers_and_halves(same):
    x = torch.randint(-9, 9, (1, 2, 6, 6))
    same(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x.bfloat16())


@pytest.mark.parametrize("settings", AVERAGES, ids=str)
def test_avg_pool2d(galley, settings):
    graded(galley, lambda x: F.avg_pool2d(x, **settings), torch.randn(2, 3, 9, 10))


def test_avg_pool_of_other_ranks(galley, same):
    graded(galley, lambda x: F.avg_pool1d(x, 3, 2, 1), torch.randn(2, 3, 9))
    graded(galley, lambda x: F.avg_pool3d(x, 2, 1, 1), torch.randn(1, 2, 4, 4, 4))
    graded(galley, lambda x: F.avg_pool2d(x, (40, 2), 1), torch.randn(1, 2, 50, 4))
    same(lambda x: F.avg_pool2d(x, 3), torch.randn(1, 2, 9, 9).bfloat16())


@pytest.mark.parametrize("size", [(3, 7), (1, 1), (4, 5), (None, 3)], ids=str)
def test_adaptive(galley, size):
    x = torch.randn(2, 3, 8, 10)
    graded(galley, lambda x: F.adaptive_avg_pool2d(x, size), x)
    graded(galley, lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)


def test_adaptive_of_other_ranks(galley):
    graded(galley, lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), torch.randn(1, 2, 3, 5, 4))
    graded(galley, lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)), torch.randn(1, 2, 3, 5, 4))
    graded(galley, lambda x: F.adaptive_avg_pool1d(x, 3), torch.randn(2, 3, 8))


def test_an_infinity_stays_in_its_window(same):
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 0, 0] = torch.inf
    same(lambda x: F.adaptive_avg_pool2d(x, 3), x)


@pytest.mark.parametrize("rank", [2, 3])
def test_lists_of_one_number_stand_for_all_dimensions(galley, rank):
    maximum = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices").default
    average = getattr(torch.ops.aten, f"avg_pool{rank}d").default
    x = torch.randn(2, 3, *[7, 8, 9][:rank])
    graded(galley, lambda x: maximum(x, [2], [], [1], [2], True)[0], x)
    graded(galley, lambda x: maximum(x, [3], [2])[0], x)
    graded(galley, lambda x: average(x, [2], [], [1]), x)


@pytest.mark.parametrize("out", [(2, 3), (1, 0), (0, 0)], ids=str)
def test_pooling_of_nothing_or_to_nothing(galley, out):
    def functions(x):
        return F.adaptive_max_pool2d(x, out), F.adaptive_avg_pool2d(x, out), x.relu()

    for batch in (0, 2):
        x = torch.randn(batch, 3, 4, 6)
        torch.testing.assert_close(galley(functions)(x), functions(x))
