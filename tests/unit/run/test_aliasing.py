"""A later write must never reach an earlier result: Note [Aliasing] in run/execute.py."""

from __future__ import annotations

import pytest
import torch

from torch_galley.core.spec import XLA_DTYPE


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(6):
        y = ((y @ x) * 0.02).sin()
    return y


def test_caller_writes_an_input_right_after_the_call(galley):
    compiled = galley(chain)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(500, 500)
        wanted = chain(x.clone())
        given = compiled(x)
        x.fill_(float("nan"))  # XLA runs asynchronously on x's own memory
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)


def test_parameter_stepped_in_place_and_rebound(galley):
    parameter = torch.nn.Parameter(torch.ones(4))
    compiled = galley(lambda: parameter * 2)
    with torch.no_grad():
        first = compiled()
        parameter.add_(1)
        second = compiled()
        parameter.data = torch.zeros(4)
        third = compiled()
        parameter.data.numpy()[:] = 5  # bumps no version counter
        fourth = compiled()
    assert [t[0].item() for t in (first, second, third, fourth)] == [2, 4, 0, 10]


def test_results_own_their_memory(galley):
    def f(x):
        y = x * 1
        return y, y.clone(), x.clone(), torch.ones(3)

    x = torch.arange(3.0)
    compiled = galley(f)
    results = compiled(x)
    for value, result in enumerate(results):
        result.fill_(float(value + 10))
    assert [r[0].item() for r in results] == [10, 11, 12, 13]
    assert x.tolist() == [0, 1, 2]
    assert compiled(x)[3].tolist() == [1, 1, 1]  # nor was the executable's constant written


def test_result_is_the_argument_where_eager_says_so(galley):
    x = torch.ones(3)
    same, view, other = galley(lambda x: (x, x.view(-1), x + 0))(x)
    assert same is x
    view[0] = 7
    assert x[0] == 7
    assert other.tolist() == [1, 1, 1]


def test_argument_written_through_a_view(galley):
    def f(x, k):
        x.t().mul_(10.0)
        k[1:3].copy_(x[0, :2])
        return x.view(-1), k, x.shape[0], None

    x, k = torch.arange(6.0).reshape(2, 3), torch.zeros(4)
    out = galley(f)(x, k)
    out[0][0] = -1.0
    assert x.tolist() == [[-1, 10, 20], [30, 40, 50]]
    assert out[1] is k
    assert k.tolist() == [0, 0, 10, 0]
    assert out[2:] == (2, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4),
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        lambda: torch.arange(3.0).expand(4, 3),
        lambda: torch.arange(3.0)[:, None].expand(3, 4),
        lambda: torch.arange(24.0).reshape(4, 6)[:, ::2],
        lambda: torch.arange(25.0)[1:].reshape(4, 6),  # not aligned to 64 bytes
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(2.0),
    ],
    ids=[
        "plain",
        "transposed",
        "permuted",
        "expanded",
        "expanded_inner",
        "gaps",
        "misaligned",
        "empty",
        "scalar",
    ],
)
def test_inputs_and_results_of_every_layout(galley, make):
    x = make()
    wanted = (x * 2, x.clone())
    given = galley(lambda x: (x * 2, x.clone()))(x)
    for got, want in zip(given, wanted, strict=True):
        assert torch.equal(got, want)
        if want.numel() > 1:
            assert got.stride() == want.stride()


@pytest.mark.parametrize(
    "dtype",
    sorted(XLA_DTYPE, key=str),
)
def test_every_dtype_crosses_the_border(galley, dtype):
    x = torch.tensor([1, 0, 1]).to(dtype)
    given = galley(lambda x: x.clone())(x)
    assert given.dtype is dtype
    assert torch.equal(given, x)


def test_conjugated_and_negated_views(same):
    x = torch.tensor([1 + 2j, 3 - 1j])
    same(lambda c, n: (c * 1, n * 1), x.conj(), x.conj().imag)
