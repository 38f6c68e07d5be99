"""Functions of complex numbers: infinities, NaNs, signed zeros and branch cuts as in eager."""

import math

import pytest
import torch

UNARY = """
abs acos acosh angle asin asinh atan atanh cos cosh exp exp2 expm1 log log10 log1p log2 reciprocal
rsqrt sgn sigmoid sin sinh sqrt square tan tanh
"""
VALUES = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -40.0, math.inf, -math.inf, math.nan]


def grid(dtype: torch.dtype) -> torch.Tensor:
    """Return every pair of special values."""
    values = torch.tensor(VALUES, dtype=torch.float32 if dtype is torch.complex64 else None)
    values = values.to(dtype.to_real())
    return torch.complex(*torch.meshgrid(values, values, indexing="ij")).ravel()


def parts_alike(wanted: torch.Tensor, given: torch.Tensor, **tolerance: float) -> None:
    """Assert that real and imaginary parts are equal each, down to the signs of zeros."""
    if wanted.is_complex():
        wanted, given = torch.view_as_real(wanted), torch.view_as_real(given)
        # C leaves the sign of an infinity beside a NaN open, and eager's differs by machine.
        open_sign = wanted.isinf() & wanted.isnan().any(-1, keepdim=True)
        wanted = torch.where(open_sign, wanted.abs(), wanted)
        given = torch.where(open_sign, given.abs(), given)
    torch.testing.assert_close(given, wanted, equal_nan=True, **tolerance)
    zero = wanted == 0
    assert torch.equal(given[zero].signbit(), wanted[zero].signbit())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", UNARY.split())
def test_unary(galley, name, dtype):
    function, z = getattr(torch, name), grid(dtype)
    wanted = function(z)
    if name == "acos" and dtype is torch.complex128:  # eager's zeros have no certain sign there
        uncertain = (z.imag == 0) & (wanted.imag == 0)
        imag = torch.where(uncertain, -z.imag, wanted.imag)
        wanted = torch.complex(wanted.real, imag)
    parts_alike(wanted, galley(function)(z))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("alpha", [1, 2, -0.5, 1 + 2j])
@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.rsub])
def test_sums_multiply_by_alpha_also_if_it_is_1(galley, function, alpha, dtype):
    z = grid(dtype)
    x, y = z.repeat(len(z)), z.repeat_interleave(len(z))

    def sums(x, y):
        return function(x, y, alpha=alpha), function(x, 2.5 + 1j, alpha=alpha)

    for wanted, given in zip(sums(x, y), galley(sums)(x, y), strict=True):
        parts_alike(wanted, given)


def test_neg_turns_the_sign_of_every_part(galley):
    """As eager's loop over single elements does; its vectorised one turns no zeros."""
    z = grid(torch.complex64)
    single = torch.cat([torch.neg(part) for part in z.split(1)])
    parts_alike(single, galley(torch.neg)(z))


def test_an_infinite_sine_beside_a_nan_is_positive(galley):
    z = torch.tensor([complex(a, b) for a in (math.inf, math.nan) for b in (math.inf, -math.inf)])
    sine = galley(torch.sin)(z)
    assert sine.real.isnan().all()
    assert (sine.imag == math.inf).all()
