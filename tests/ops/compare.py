"""Whether our results are eager's: a tolerance, ties that eager leaves open, a wider judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

TOLERANCE = {
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float32: 2e-6,
    torch.float64: 1e-12,
    torch.complex64: 4e-6,
    torch.complex128: 1e-12,
}
"""Relative and absolute, about a few units in the last place."""

FREE_INDICES = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}
"""Operators whose last result is indices, and that leave open which of equal elements is meant
(unless they are told to be stable)."""

UNWRITTEN = {"empty", "empty_like", "empty_permuted", "empty_strided"}
UNWRITTEN |= {"new_empty", "new_empty_strided"}
"""Operators whose values are what happened to be in memory."""


def compare(expected: Sequence[Any], actual: Sequence[Any], skip: frozenset[int]) -> str:
    """Return the first difference in words, "" if there is none."""
    if len(expected) != len(actual):
        return f"{len(actual)} results, not {len(expected)}"
    for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
        if not _alike(want, got):
            return f"result {number} is {_kind(got)}, not {_kind(want)}"
        tensors = isinstance(want, torch.Tensor) and number not in skip
        if tensors and (text := _values(want, got)):
            return f"result {number} ({_kind(want)}): {text}"
    return ""


def _alike(want: Any, got: Any) -> bool:
    """Whether two results are tensors of a kind, or the same otherwise."""
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return want.shape == got.shape and want.dtype == got.dtype
    if isinstance(want, torch.Tensor) or isinstance(got, torch.Tensor):
        return False
    return bool(want == got or (want != want and got != got))


def _kind(result: Any) -> str:
    if not isinstance(result, torch.Tensor):
        return repr(result)
    return f"{result.dtype}{list(result.shape)}".removeprefix("torch.")


def _values(want: torch.Tensor, got: torch.Tensor) -> str:
    if want.layout is not torch.strided:
        return ""  # never ours
    tolerance = TOLERANCE.get(want.dtype, 0.0)
    near = torch.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    if near.all():
        return ""
    place = tuple((~near).nonzero()[0].tolist())
    return f"at {list(place)} {got[place].item()}, not {want[place].item()}"


def free_indices(op: Any, sample: Any, expected: Any, actual: Any) -> frozenset[int]:
    """Return which results may differ: memory that nobody wrote, and indices, having checked that
    they lead to the right values.
    """
    if op.name in UNWRITTEN:
        return frozenset({0})
    stable = "stable" in op.variant_test_name or sample.kwargs.get("stable")
    if op.name not in FREE_INDICES or stable or not expected or sample.input.ndim == 0:
        return frozenset()
    source, places, wanted = sample.input, actual[-1], expected[-1]
    whole = op.name != "argsort" and len(expected) == 1  # a median without its place
    if whole or places.dtype != torch.int64 or places.shape != wanted.shape:
        return frozenset()
    for dim in range(source.ndim):
        p, w = places, wanted
        if p.ndim < source.ndim:
            p, w = p.unsqueeze(dim), w.unsqueeze(dim)
        others = [d for d in range(source.ndim) if d != dim]
        if any(p.shape[d] != source.shape[d] for d in others):
            continue
        if p.numel() and int(torch.maximum(p, w).max()) >= source.shape[dim]:
            continue
        if torch.equal(source.gather(dim, p).nan_to_num(), source.gather(dim, w).nan_to_num()):
            return frozenset({len(actual) - 1})
    return frozenset()


_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def judged(
    run: Callable[..., list[Any]],
    tensors: Sequence[torch.Tensor],
    expected: Sequence[Any],
    actual: Sequence[Any],
    free: frozenset[int],
    pointwise: bool,
) -> str:
    """Return what is wrong with our results for a sample, "" if nothing is; see `as_near`.

    `free` has the numbers of results that may differ.
    """
    difference = compare(expected, actual, free)
    near = difference and as_near(run, tensors, expected, actual, pointwise)
    return "" if near else difference


def as_near(
    run: Callable[..., list[Any]],
    tensors: Sequence[torch.Tensor],
    expected: Sequence[Any],
    actual: Sequence[Any],
    pointwise: bool,
) -> bool:
    """Whether we are, in every result, at most twice as far from the truth as eager is.

    Args:
        run: eager, as a function of a list of tensors.
        tensors: what it was run with.
        expected: what it gave.
        actual: what we gave.
        pointwise: compare element by element. Otherwise our largest error with eager's largest,
            since in a sum or a transform all elements share theirs.
    """
    wide = [t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t for t in tensors]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        truth = run(wide)
    except Exception:  # no such kernel in double precision: then eager's word stands
        return False
    finally:
        torch.set_default_dtype(before)
    for true, want, got in zip(truth, expected, actual, strict=True):
        if not _alike(want, got):
            return False
        if not isinstance(want, torch.Tensor):
            continue
        if not isinstance(true, torch.Tensor) or want.dtype not in _WIDE:
            if _values(want, got):
                return False
        elif true.shape != want.shape or not _near(true, want, got, pointwise):
            return False
    return True


def _near(true: torch.Tensor, want: torch.Tensor, got: torch.Tensor, pointwise: bool) -> bool:
    if not true.numel():
        return True
    eager, ours = ((x.to(true.dtype) - true).abs() for x in (want, got))
    size = true.abs()
    if not pointwise:
        eager, size = eager.nan_to_num(0, 0).max(), size.nan_to_num(0, 0).max()
    allowed = 2 * eager + TOLERANCE[want.dtype] * (1 + size)
    same = (got == want) | (got.isnan() & want.isnan()) | (got.to(true.dtype) == true)
    return bool((same | (ours <= allowed)).all())
