"""Counts in bins of a given range."""

import pytest
import torch

import torch_galley


@pytest.mark.parametrize("bins", [1, 4, 100])
def test_histc(same, bins):
    values = torch.cat([torch.randn(200), torch.tensor([-1.0, 1.0, 5.0, float("nan")])])
    same(lambda x: torch.histc(x, bins, -1, 1), values)
    same(lambda x: torch.histc(x.int().float(), bins, 0, 3), values[:-1] * 3)


def test_the_range_of_the_data_is_left_to_eager(galley):
    values = torch.randn(50)
    given = galley(lambda x: torch.histc(x * 2, 5))(values)
    torch.testing.assert_close(given, torch.histc(values * 2, 5))
    assert torch_galley.metrics()["native_ops"] == 1
