"""Special functions where their formulas change, and polynomials of many degrees."""

import pytest
import torch
from torch import special

POLYNOMIALS = """
chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
legendre_polynomial_p
"""


@pytest.mark.parametrize("name", POLYNOMIALS.split())
def test_polynomial(same, name):
    x = torch.tensor([-1.5, -1.0, -0.7, 0.0, 0.2, 0.5, 1.0, 2.0], dtype=torch.float64)
    degree = torch.tensor([-1.0, 0.0, 1.0, 2.0, 5.0, 9.0, 20.0], dtype=torch.float64)
    function = getattr(special, name)
    same(lambda x, n: (function(x, n), function(x, 3), function(0.3, n)), x[:, None], degree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_and_polygamma(same, dtype):
    x = torch.tensor([0.1, 0.5, 2.5, 30.0, 1e4, -0.3, -2.5, 0.0, torch.nan], dtype=dtype)
    s = torch.tensor([1.0, 2.0, 3.5, 40.0, 0.5, torch.nan], dtype=dtype)

    def functions(x, s):
        return special.zeta(s[:, None], x), [torch.polygamma(n, x) for n in range(5)]

    same(functions, x, s)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_functions(same, dtype):
    x = torch.cat([torch.linspace(-9, 80, 300), torch.tensor([-40.0, 1e30, torch.inf, -torch.inf])])
    x = torch.cat([x, torch.tensor([torch.nan, -0.0])]).to(dtype)

    def functions(x):
        return special.erfcx(x), special.log_ndtr(-x), special.spherical_bessel_j0(x)

    same(functions, x, rtol=1e-5 if dtype is torch.float32 else 1e-11, atol=0)


def test_the_spherical_bessel_function_where_its_formula_changes(same):
    x = torch.linspace(-1, 1, 5001, dtype=torch.float64)
    same(special.spherical_bessel_j0, x, rtol=1e-15, atol=0)


@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 5e-7), (torch.float64, 1e-15)])
def test_the_inverse_error_function_near_its_ends(same, dtype, exact):
    near = 1 - torch.logspace(-7, -1, 50, dtype=torch.float64)
    others = torch.tensor([0.0, -0.0, 0.3, -0.5, 1.0, -1.0, 2.0, torch.nan])
    same(torch.erfinv, torch.cat([near, -near, others]).to(dtype), rtol=exact, atol=0)


def test_tanh_is_exact_where_it_nears_1(same):
    """What 1 - tanh(x)**2 makes of an error is large there."""
    x = torch.cat([torch.logspace(-20, 1.1, 500), torch.linspace(-6, 6, 2001)])
    same(
        torch.tanh,
        torch.cat([x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])]),
        rtol=1.5 * 2**-23,
        atol=0,
    )
    same(lambda x: 1 - torch.tanh(x) ** 2, torch.linspace(4, 6, 200), rtol=0, atol=2e-7)


def test_the_gradient_of_hardsigmoid_in_double_precision(same):
    """Eager's kernel has the constant in single precision."""
    grad, x = torch.randn(2, 50, dtype=torch.float64) * 3
    same(torch.ops.aten.hardsigmoid_backward, grad, x, rtol=1e-15, atol=0)
