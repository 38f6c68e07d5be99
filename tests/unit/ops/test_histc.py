"""Counts in bins of a given range."""

import pytest
import torch

import torch_galley


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_whole_numbers_are_refused(galley, dtype):
    """Eager counts floats alone. Of a compiled function torch says so while it traces."""
    values = torch.tensor([0, 1, 1, 3]).to(dtype)
    with pytest.raises(NotImplementedError, match="not implemented for") as eagers:
        torch.histc(values, 4, 0, 3)
    with pytest.raises(NotImplementedError) as devices:
        torch.histc(values.to(torch_galley.device()), 4, 0, 3)
    assert str(devices.value) == str(eagers.value)
    with pytest.raises(RuntimeError, match=r"histogram_cpu.* not implemented for"):
        galley(lambda x: torch.histc(x, 4, 0, 3))(values)
    counted = galley(lambda x: torch.histc(x.float(), 4, 0, 3))(values)
    torch.testing.assert_close(counted, torch.histc(values.float(), 4, 0, 3))
