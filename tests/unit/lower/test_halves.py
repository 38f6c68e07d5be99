"""float16 and bfloat16: which operands are rounded before, and which results on the way."""

import pytest
import torch

DTYPES = [torch.bfloat16, torch.float16]


def equal(galley, function, *args):
    """Assert bitwise equality: these functions round, so that a tolerance would hide all."""
    wanted, given = function(*args), galley(function)(*args)
    for want, got in zip(wanted, given, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def numbers(dtype):
    return 5 * torch.randn(2000, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["floor", "trunc", None])
def test_division(galley, dtype, mode):
    def divide(x, y, single):
        pairs = [(x, y), (x, 3.7), (x, single), (x, single.to(dtype)), (single, y), (x, y[:1])]
        return [torch.div(a, b, rounding_mode=mode) for a, b in pairs]

    x = numbers(dtype)
    equal(galley, divide, x, x.flip(0), torch.tensor(3.7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_on_either_side(galley, dtype):
    def compute(x, single):
        return (
            *(x + 3.7, x - 3.7, 3.7 - x, x * 3.7, x / 3.7, 3.7 / x, x // 3.7, 3.7 // x, x % 3.7),
            *(x + 257, x * 257, x > 3.7, x == 3.7, torch.remainder(3.7, x)),
            *(x + single, x * single, single * x, single / x, x > single, torch.fmod(x, single)),
        )

    equal(galley, compute, numbers(dtype), torch.tensor(3.7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_ldexp_rounds_the_power(galley, dtype):
    equal(galley, lambda x, y: (torch.ldexp(x, y),), numbers(dtype), torch.arange(2000) % 60 - 30)
    equal(galley, lambda x, y: (torch.ldexp(x, y),), numbers(dtype), numbers(dtype).round())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.3, 3, -1.7])
def test_sums_round_alpha_and_then_once(galley, dtype, alpha):
    """As eager's vectorised loop; a tail, and what has gaps, eager rounds after each step."""

    def sums(x, y):
        functions = torch.add, torch.sub, torch.rsub
        return [f(x, z, alpha=alpha) for f in functions for z in (y, 1.7, y[:1])]

    x = numbers(dtype)[:1920]  # a multiple of any vector's length
    equal(galley, sums, x, x.flip(0))
