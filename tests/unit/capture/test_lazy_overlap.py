"""How tensors of the device lie in memory, and what happens where writes and reads meet."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.unit.capture.alike import both


def test_writes_to_overlapping_windows(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x = torch.arange(10.0).to(dev)
        x.as_strided((4, 3), (2, 1)).add_(1)
        x.as_strided((2, 3), (2, 1), 4).fill_(7)
        repeated = torch.arange(2.0).to(dev).expand(3, 2)
        repeated.zero_()
        x[1:3] = x[2]
        x[3][None][None, 0] = x[3]
        y = torch.arange(6.0).view(2, 3).to(dev)
        corner = y[1:]
        y.t_()
        y.unsqueeze_(0)
        y.mul_(2)
        return x, y, corner, repeated

    both(program, xla)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[:, 1:].add_(x[:, :-1]),
        lambda x: x.mul_(x[:, :1]),
        lambda x: x.view(-1)[::2].add_(x.view(-1)[:12]),
        lambda x: x.as_strided((5, 3), (2, 1)).add_(x.as_strided((5, 3), (2, 1))),
        lambda x: x.view(torch.int32).add_(x.view(torch.int32)[:, :1]),
        lambda x: x.to(torch.complex64).t().conj_physical_(),
    ],
)
def test_what_is_read_while_it_is_written_is_read_in_eagers_order(xla, write) -> None:
    def program(dev: torch.device) -> object:
        x = torch.arange(24.0).view(6, 4).to(dev)
        return write(x), x

    both(program, xla)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_convolutions_lie_in_memory_as_in_eager(xla: torch.device, name, dtype) -> None:
    def program(dev: torch.device) -> object:
        torch.manual_seed(0)
        x = torch.randn(2, 5, 6, 4, dtype=dtype).movedim(3, 1).to(dev).requires_grad_()
        weight = torch.randn(4, 4, 2, 2, dtype=dtype).to(dev).requires_grad_()
        y = getattr(F, name)(x, weight)
        return y, y.relu() + 1, *torch.autograd.grad(y.sum(), (x, weight))

    both(program, xla)


def test_results_lie_in_memory_as_in_eager(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x = torch.arange(24.0).view(2, 3, 4).to(dev).transpose(1, 2)
        flags = x.logical_not(), torch.logical_xor(x, x), x.isposinf(), x.bool().diff(dim=1)
        over_all = x.nansum(dim=()), x.nanmean(dim=(), keepdim=True)
        places = torch.nonzero_static(x[0], size=5)
        places = places, torch.nn.functional.dropout(x[..., ::2], 0.0)
        return *places, *flags, *over_all, torch.add(x, 1, out=torch.empty(0, device=dev)), x.sum(1)

    both(program, xla)


def test_a_slice_of_another_shape_is_refused_if_it_is_empty_too(xla: torch.device) -> None:
    for dev in ("cpu", xla):
        x, y = torch.ones(2, 4).to(dev), torch.ones(3, 4).to(dev)
        with pytest.raises(RuntimeError, match="src to have a size equal to the slice"):
            torch.slice_scatter(x[:0], y)
        torch.slice_scatter(x, y[:1], end=1)


@pytest.mark.parametrize(
    ("values", "write"),
    [
        ([True, False], lambda x: x.mul_(1)),
        ([True, False], lambda x: x.__imul__(2)),
        ([1, 2], lambda x: x.logit_()),
        ([1, 2], lambda x: x.div_(2)),
        ([1, 2], lambda x: x.mul_(1.5)),
    ],
)
def test_a_result_that_does_not_fit_what_is_written_is_refused(xla, values, write) -> None:
    for dev in ("cpu", xla):
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            write(torch.tensor(values).to(dev))


def test_copies_of_numbers_and_of_a_tensor_to_itself(xla: torch.device) -> None:
    def program(dev: torch.device) -> object:
        x, whole = torch.zeros(2, 3).to(dev), torch.zeros(3, dtype=torch.int64).to(dev)
        wide = torch.arange(3.0).to(dev).expand(2, 3)
        wide[0:2] = wide[:, :]
        return x.copy_(1.5), whole.copy_(True), whole.clone().copy_(2.7), wide

    both(program, xla)
