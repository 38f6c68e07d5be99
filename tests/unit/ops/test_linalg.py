"""Linear algebra: factors with eager's conventions, and what eager raises on a bad matrix."""

import pytest
import torch
from torch import linalg

import torch_galley

SETS = [torch.float32, torch.complex64]


def matrices(dtype):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 4, 4, dtype=dtype, generator=generator) + 3 * torch.eye(4, dtype=dtype)
    return (
        a,
        a @ a.mH + torch.eye(4, dtype=dtype),
        torch.randn(2, 4, 3, dtype=dtype, generator=generator),
    )


FUNCTIONS = {
    "cholesky": lambda a, h, b: (linalg.cholesky(h), linalg.cholesky(h, upper=True)),
    "cholesky_solve": lambda a, h, b: (
        torch.cholesky_solve(b, linalg.cholesky(h)),
        torch.cholesky_solve(b, linalg.cholesky(h, upper=True), upper=True),
        torch.cholesky_inverse(linalg.cholesky(h)),
    ),
    "lu": lambda a, h, b: (*linalg.lu(b), *linalg.lu_factor(a), *linalg.lu(b.mH)),
    "lu_solve": lambda a, h, b: [
        linalg.lu_solve(*linalg.lu_factor(a), x, left=left, adjoint=adjoint)
        for adjoint in (False, True)
        for left, x in ((True, b), (False, b.mH))
    ],
    "solve": lambda a, h, b: (
        linalg.solve(a, b),
        linalg.solve(a.mT, b),
        linalg.solve(a, b.mH, left=False),
        linalg.solve(a, b[..., 0]),
        linalg.inv(a),
    ),
    "det": lambda a, h, b: (linalg.det(a), *linalg.slogdet(a)),
    "qr": lambda a, h, b: [
        *linalg.qr(b),
        *linalg.qr(b, "complete"),
        linalg.qr(b.mH, "r")[1],
        *torch.geqrf(b),
        linalg.householder_product(*torch.geqrf(b)),
        torch.ormqr(*torch.geqrf(b), b),
    ],
    "values": lambda a, h, b: (linalg.svdvals(a), linalg.matrix_norm(a, "nuc"), linalg.cond(a)),
    "pinv": lambda a, h, b: (linalg.pinv(b), linalg.pinv(h, hermitian=True), linalg.pinv(b, 0.9)),
    "matrix_exp": lambda a, h, b: (linalg.matrix_exp(a), linalg.matrix_exp(a / 50)),
}


@pytest.mark.parametrize("dtype", SETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(same, name, dtype):
    same(FUNCTIONS[name], *matrices(dtype), rtol=1e-4, atol=1e-4)
    assert torch_galley.metrics()["native_ops"] == 0


@pytest.mark.parametrize("name", ["inv", "cholesky", "solve"])
def test_a_singular_matrix_is_refused(galley, name):
    calls = {
        "inv": lambda a: linalg.inv(a + 0),
        "cholesky": lambda a: linalg.cholesky(a + 0),
        "solve": lambda a: linalg.solve(a + 0, a),
    }
    compiled = galley(calls[name])
    compiled(torch.eye(3))
    with pytest.raises(linalg.LinAlgError, match=f"linalg.{name}: "):
        compiled(torch.zeros(3, 3))


def test_the_minor_that_fails(galley):
    matrix = torch.diag(torch.tensor([1.0, 2.0, -1.0, 3.0]))
    info = galley(lambda a: linalg.cholesky_ex(a * 1).info)(torch.stack([matrix, torch.eye(4)]))
    assert info.tolist() == [3, 0]


GRADED = {
    "solve": linalg.solve,
    "solve_transposed": lambda a, b: linalg.solve(a.mT, b),
    "det": lambda a, b: linalg.det(a) * linalg.slogdet(a).logabsdet,
    "lu": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b),
    "qr": lambda a, b: torch.cat(linalg.qr(a), -1),
    "cholesky": lambda a, b: linalg.cholesky(a @ a.mH + torch.eye(4, dtype=a.dtype)),
}


@pytest.mark.parametrize("name", GRADED)
def test_gradient(galley, name):
    function, (a, _, b) = GRADED[name], matrices(torch.float64)
    grads = []
    for run in (function, galley(function)):
        given = a.clone().requires_grad_(), b.clone().requires_grad_()
        run(*given).square().sum().backward()
        grads.append([x.grad for x in given])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-8, atol=1e-8)
