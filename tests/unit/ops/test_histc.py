"""Counts in bins of a given range."""

import pytest
import torch


@pytest.mark.parametrize("bins", [1, 4, 100])
def test_histc(same, bins):
    values = torch.cat([torch.randn(200), torch.tensor([-1.0, 1.0, 5.0, float("nan")])])
    same(lambda x: torch.histc(x, bins, -1, 1), values)
    same(lambda x: torch.histc(x.int().float(), bins, 0, 3), values[:-1] * 3)


def test_the_range_of_the_data(same):
    same(lambda x: torch.histc(x * 2, 5), torch.randn(50))
    same(lambda x: torch.histc(x * 2, 4), torch.ones(50))


def test_a_range_that_is_not_finite(galley):
    values = torch.tensor([1.0, float("inf")])
    with pytest.raises(RuntimeError, match="not finite"):
        galley(lambda x: torch.histc(x * 2, 5))(values)
