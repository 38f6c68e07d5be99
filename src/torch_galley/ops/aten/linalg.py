"""Dense linear algebra. On CPU XLA calls LAPACK, as torch does, so conventions of sign are equal.

Eigenvectors and singular vectors are not here: LAPACKs differ in their signs.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_galley.core.reasons import ArgumentForm, BetterNatively, Reason
from torch_galley.ops.aten.matmul import product
from torch_galley.ops.check import require
from torch_galley.ops.half import wide
from torch_galley.ops.registry import lowers

aten = torch.ops.aten


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(x.swapaxes(-1, -2))


def _batched(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two batches of matrices with a common batch shape."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        jnp.broadcast_to(a, batch + a.shape[-2:]),
        jnp.broadcast_to(b, batch + b.shape[-2:]),
    )


def _solve_triangle(a, b, *, upper, left=True, unit=False, transpose=False, adjoint=False):
    """Solve op(a) x = b, or x op(a) = b, reading one triangle of a only."""
    a, b = _batched(a, b)
    if b.size == 0:
        return b
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        unit_diagonal=unit,
        transpose_a=transpose or adjoint,
        conjugate_a=adjoint,
    )


# Eager's check of what a factorisation reports.

_FAILURES = (
    (
        "cholesky",
        "The factorization could not be completed because the input is not positive-definite "
        "(the leading minor of order {value} is not positive-definite).",
    ),
    (
        "inv",
        "The diagonal element {value} is zero, the inversion could not be completed because "
        "the input matrix is singular.",
    ),
    ("solve", "The solver failed because the input matrix is singular."),
    ("svd", "The algorithm failed to converge (error code: {value})."),
    ("eigh", "The algorithm failed to converge (error code: {value})."),
)


@lowers(aten._linalg_check_errors.default)
def check_errors(info, api_name, *, is_matrix):
    known = (text for name, text in _FAILURES if name in api_name)
    text = next(known, "U[{value},{value}] is zero: the matrix is singular.")
    refusal = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    require(info == 0, info, refusal, f"{api_name}: {text}")


# Triangles


@lowers(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(self, B, *, upper, left=True, unitriangular=False):
    return _solve_triangle(self, B, upper=upper, left=left, unit=unitriangular)


@lowers(aten.triangular_solve.default)
def triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    b, a = _batched(self, A)
    return _solve_triangle(a, b, upper=upper, unit=unitriangular, transpose=transpose), a


# Cholesky


@lowers(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(self, *, upper=False, check_errors=False):
    a = _adjoint(self) if upper else self  # only the lower triangle is read
    if a.size == 0:
        return self, jnp.zeros(a.shape[:-2], jnp.int32)
    factor = lax.linalg.cholesky(a, symmetrize_input=False)
    failed = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any()
    info = lax.cond(failed, _failing_minor, lambda a: jnp.zeros(a.shape[:-2], jnp.int32), a)
    return _adjoint(factor) if upper else factor, info


def _failing_minor(a: jax.Array) -> jax.Array:
    """Return the order of the first leading minor that is not positive, 0 if all are."""

    def eliminate(k, state):
        a, info = state
        pivot = jnp.real(a[..., k, k])
        info = jnp.where((info == 0) & ~(pivot > 0), k + 1, info)
        column = a[..., :, k]
        outer = column[..., :, None] * jnp.conj(column)[..., None, :]
        return a - outer / pivot[..., None, None].astype(a.dtype), info

    a = jnp.tril(a) + _adjoint(jnp.tril(a, -1))
    start = (a, jnp.zeros(a.shape[:-2], jnp.int32))
    return lax.fori_loop(0, a.shape[-1], eliminate, start)[1].astype(jnp.int32)


@lowers(aten.cholesky.default)
def cholesky(self, upper=False):
    factor, info = linalg_cholesky_ex(self, upper=upper)
    check_errors(info, "cholesky", is_matrix=info.ndim == 0)
    return factor


@lowers(aten.cholesky_solve.default)
def cholesky_solve(self, input2, upper=False):
    first = _solve_triangle(input2, self, upper=upper, adjoint=upper)
    return _solve_triangle(input2, first, upper=upper, adjoint=not upper)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(self, upper=False):
    return cholesky_solve(jnp.eye(self.shape[-1], dtype=self.dtype), self, upper)


# LU


def _factored(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return LU, LAPACK's pivots (from 1), the permutation of rows and the first zero pivot."""
    if a.size == 0:
        batch, (rows, columns) = a.shape[:-2], a.shape[-2:]
        pivots = jnp.zeros((*batch, min(rows, columns)), jnp.int32)
        permutation = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*batch, rows))
        return a, pivots, permutation, jnp.zeros(batch, jnp.int32)
    lu, pivots, permutation = lax.linalg.lu(a)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0)
    return lu, pivots + 1, permutation, info.astype(jnp.int32)


def _permuted(b: jax.Array, permutation: jax.Array) -> jax.Array:
    """Return b with its rows in the order of a permutation."""
    return jnp.take_along_axis(b, permutation[..., None].astype(jnp.int32), -2)


def _lu_solve(lu, permutation, b, adjoint=False):
    """Solve A x = b (or A^H x = b), where P A = L U."""
    permutation = jnp.broadcast_to(permutation, b.shape[:-2] + permutation.shape[-1:])
    if not adjoint:
        x = _solve_triangle(lu, _permuted(b, permutation), upper=False, unit=True)
        return _solve_triangle(lu, x, upper=True)
    x = _solve_triangle(lu, b, upper=True, adjoint=True)
    x = _solve_triangle(lu, x, upper=False, unit=True, adjoint=True)
    return _permuted(x, jnp.argsort(permutation, axis=-1))


def _pivoting(A, *, pivot=True) -> Reason | None:
    return None if pivot else ArgumentForm("linalg_lu", "without pivots")


def _pivoting_ex(A, *, pivot=True, check_errors=False) -> Reason | None:
    return _pivoting(A, pivot=pivot)


@lowers(aten.linalg_lu_factor_ex.default, when=_pivoting_ex)
def linalg_lu_factor_ex(A, *, pivot=True, check_errors=False):
    lu, pivots, _, info = _factored(A)
    return lu, pivots, info


@lowers(aten.linalg_lu.default, when=_pivoting)
def linalg_lu(A, *, pivot=True):
    lu, _, permutation, _ = _factored(A)
    return _unpacked(lu, permutation)


def _unpacked(lu, permutation):
    rows, columns = lu.shape[-2:]
    rank = min(rows, columns)
    lower = jnp.tril(lu[..., :, :rank], -1) + jnp.eye(rows, rank, dtype=lu.dtype)
    return _permutation_matrix(permutation, lu.dtype), lower, jnp.triu(lu[..., :rank, :])


def _permutation_matrix(permutation, dtype):
    """Return P with A = P L U: column i has its 1 where row i came from."""
    number = jnp.arange(permutation.shape[-1], dtype=permutation.dtype)
    return (number[:, None] == permutation[..., None, :]).astype(dtype)


@lowers(aten.lu_unpack.default)
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    permutation = _permutation(LU_pivots, LU_data.shape[-2])
    parts = _unpacked(LU_data, permutation)
    nothing = jnp.zeros((0,), LU_data.dtype)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(part if want else nothing for part, want in zip(parts, wanted, strict=True))


def _permutation(pivots, rows):
    if rows == 0 or pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


@lowers(aten.linalg_lu_solve.default)
def linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    permutation = _permutation(pivots, LU.shape[-2])
    permutation = jnp.broadcast_to(permutation, batch + permutation.shape[-1:])
    lu, b = _batched(LU, B)
    if left:
        return _lu_solve(lu, permutation, b, adjoint)
    # x A = b is A^H x^H = b^H.
    return _adjoint(_lu_solve(lu, permutation, _adjoint(b), not adjoint))


@lowers(aten._linalg_solve_ex.default)
def linalg_solve_ex(A, B, *, left=True, check_errors=False):
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    lu, pivots, permutation, info = _factored(A)
    full, b = _batched(lu, B[..., None] if is_vector else B)
    permutation = jnp.broadcast_to(permutation, full.shape[:-2] + permutation.shape[-1:])
    if left:
        x = _lu_solve(full, permutation, b)
    else:
        x = _adjoint(_lu_solve(full, permutation, _adjoint(b), adjoint=True))
    return x[..., 0] if is_vector else x, lu, pivots, info


@lowers(aten.linalg_inv_ex.default)
def linalg_inv_ex(A, *, check_errors=False):
    lu, _, permutation, info = _factored(A)
    identity = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return _lu_solve(lu, permutation, identity), info


# Determinants. Of a real row-major matrix eager factors the transpose, to spare LAPACK's
# column-major order a copy, and the gradient counts on that: so those matrices only.


def _row_major(A) -> Reason | None:
    if A.is_contiguous() or A.is_complex():
        return None
    return ArgumentForm("determinant", "the matrix is not contiguous")


def _factored_for_det(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LU, the pivots, and U's diagonal, an element negated for each swap of rows."""
    lu, pivots, _, _ = _factored(a if jnp.iscomplexobj(a) else a.swapaxes(-1, -2))
    swapped = pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    return lu, pivots, jnp.where(swapped, -diagonal, diagonal)


@lowers(aten._linalg_det.default, when=_row_major)
def linalg_det(A):
    lu, pivots, diagonal = _factored_for_det(A)
    return jnp.prod(diagonal, -1), lu, pivots


@lowers(aten._linalg_slogdet.default, when=_row_major)
def linalg_slogdet(A):
    lu, pivots, diagonal = _factored_for_det(A)
    size = jnp.abs(diagonal)
    sign = jnp.where(size == 0, 0, diagonal / size.astype(diagonal.dtype))
    return jnp.prod(sign, -1), jnp.sum(jnp.log(size), -1), lu, pivots


# QR


@lowers(aten.linalg_qr.default)
def linalg_qr(A, mode="reduced"):
    q, r = lax.linalg.qr(A, full_matrices=mode == "complete")
    return jnp.zeros((0,), A.dtype) if mode == "r" else q, r


@lowers(aten.geqrf.default)
def geqrf(self):
    reflectors, tau = jnp.linalg.qr(self, mode="raw")
    return reflectors.swapaxes(-1, -2), tau


@lowers(aten.linalg_householder_product.default)
def linalg_householder_product(input, tau):
    return lax.linalg.householder_product(input, tau) if input.size else input


@lowers(aten.ormqr.default)
def ormqr(self, input2, input3, left=True, transpose=False):
    if input3.size == 0:
        return input3
    return lax.linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


# Exponential


_SERIES = 20
"""Terms of the Taylor series."""
_NEAR = {"float32": 3.0, "complex64": 3.0, "float64": 1.0, "complex128": 1.0}
"""The largest norm for which these are enough."""


def _not_half(self) -> Reason | None:
    if self.dtype is torch.float16:
        return BetterNatively("aten.linalg_matrix_exp", "powers overflow in float16, as in eager")
    return None


@lowers(aten.linalg_matrix_exp.default, when=_not_half)
def linalg_matrix_exp(self):
    """Halve the matrix until its norm is small, take the series, and square as often."""
    if self.size == 0:
        return self
    x = wide(self)
    size = jnp.abs(x).sum(-2).max(-1) / _NEAR[x.dtype.name]
    halvings = jnp.where(size > 1, jnp.ceil(jnp.log2(size)), 0)
    halvings = jnp.where(jnp.isfinite(halvings), halvings, 0)
    scale = jnp.exp2(-halvings)[..., None, None].astype(x.dtype)

    def square(state):
        done, x = state
        on = (halvings > done)[..., None, None]
        return done + 1, jnp.where(on, product(x, x), x)

    start = (jnp.zeros((), halvings.dtype), _exponential_series(x * scale))
    _, x = lax.while_loop(lambda state: jnp.any(halvings > state[0]), square, start)
    return x.astype(self.dtype)


def _exponential_series(a: jax.Array) -> jax.Array:
    """Sum a^k / k!, as a polynomial in a^4 whose coefficients are polynomials in a."""
    identity = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    square = product(a, a)
    powers = (identity, a, square, product(square, a))
    fourth = product(square, square)
    total = jnp.zeros_like(a)
    for block in reversed(range(0, _SERIES, 4)):
        part = sum(x / math.factorial(block + k) for k, x in enumerate(powers))
        total = product(total, fourth) + part
    return total


# Singular values


def _values_only(A, full_matrices=False, compute_uv=True, *, driver=None) -> Reason | None:
    if compute_uv:
        return BetterNatively("aten._linalg_svd", "the signs of singular vectors are LAPACK's own")
    return None


@lowers(aten._linalg_svd.default, when=_values_only)
def linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None):
    values = lax.linalg.svd(A, compute_uv=False) if A.size else _no_values(A)
    nothing = jnp.zeros((0,), A.dtype)
    return nothing, values, nothing


def _no_values(a):
    return jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), jnp.real(a).dtype)


@lowers(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(self, *, atol=None, rtol=None, hermitian=False):
    """Turn over the singular values, or eigenvalues, that are above the tolerance."""
    if self.size == 0:
        return self.swapaxes(-1, -2)
    if hermitian:
        right, values = lax.linalg.eigh(self, symmetrize_input=False)
        left = right
    else:
        left, values, right = lax.linalg.svd(self, full_matrices=False)
        right = _adjoint(right)
    size = jnp.abs(values)
    tolerance = _tolerance(self, atol, rtol, size.max(-1, keepdims=True))
    turned = jnp.where(size > tolerance, 1 / values, 0).astype(self.dtype)
    return product(right * turned[..., None, :], _adjoint(left))


def _tolerance(a, atol, rtol, largest):
    if rtol is None:
        rtol = jnp.asarray(max(a.shape[-2:]) * jnp.finfo(a.dtype).eps, largest.dtype)
        rtol = rtol if atol is None else jnp.where(atol > 0, 0, rtol)
    atol = jnp.zeros(()) if atol is None else atol
    return jnp.maximum(atol[..., None], rtol[..., None] * largest).astype(largest.dtype)
