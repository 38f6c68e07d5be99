"""Judge an operator of torch's op_db: do our clusters give what eager gives?

`judge` captures an entry with AOTAutograd (the way torch.compile does, without Dynamo), cuts,
lowers and runs it, and compares with eager. Where the two differ, eager in double precision
decides: we are right if we are about as near to it as eager is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_galley.capture.fx import Captured
from torch_galley.core.config import Config
from torch_galley.core.errors import GalleyError
from torch_galley.ops.decompose import decompositions
from torch_galley.pipeline import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from functorch.compile import aot_function, nop
    from torch.testing._internal.common_methods_invocations import op_db

CONFIG = Config(min_cluster_size=1, strict=True)

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


@dataclass(frozen=True)
class Verdict:
    """What became of one entry in one dtype."""

    op: str
    dtype: str
    status: str
    """lowered, mixed or native: right, and run so. wrong: other results than eager. error: we
    raised. uncaptured: torch itself can't trace it. skipped: no samples."""
    samples: int = 0
    reasons: tuple[str, ...] = ()
    """Why nodes stayed native."""
    detail: str = ""


@dataclass
class _Seen:
    """What the backend met over the samples of one entry."""

    clusters: int = 0
    reasons: set[str] = field(default_factory=set)
    error: BaseException | None = None


def entries(names: Iterable[str] | None = None) -> list[Any]:
    """Return op_db's entries, those of some names (variants included), or all."""
    wanted = None if names is None else set(names)
    return [op for op in op_db if wanted is None or op.name in wanted]


def label(op: Any) -> str:
    """Return an entry's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def judge(op: Any, dtype: torch.dtype, limit: int | None = None) -> Verdict:
    """Judge an entry in a dtype by its first `limit` samples."""
    name, dtype_name = label(op), str(dtype).removeprefix("torch.")
    seen, count = _Seen(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs("cpu", dtype, requires_grad=False)
        for number, sample in enumerate(islice(samples, limit)):
            status, detail = _sample(op, sample, seen)
            if status == "skipped":
                continue
            count += 1
            if status:
                detail = f"sample {number}: {detail}"
                return Verdict(name, dtype_name, status, count, tuple(sorted(seen.reasons)), detail)
    if not count:
        return Verdict(name, dtype_name, "skipped")
    status = "native" if not seen.clusters else "mixed" if seen.reasons else "lowered"
    return Verdict(name, dtype_name, status, count, tuple(sorted(seen.reasons)))


def _sample(op: Any, sample: Any, seen: _Seen) -> tuple[str, str]:
    """Run one sample both ways; an empty status means all is well."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i] for i in places]

    def call(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        source, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(source, *args, **kwargs)

    try:
        expected = _run(call, tensors)
    except Exception:  # the entry's own matter: not for this dtype, or wants other conditions
        return "skipped", ""
    compiled = aot_function(
        call,
        fw_compiler=_backend(seen),
        inference_compiler=_backend(seen),
        decompositions=decompositions(),
    )
    try:
        actual = _run(compiled, tensors)
    except GalleyError as error:
        return "error", f"{type(error).__name__}: {error}"
    except Exception as error:
        if seen.error is not None:
            return "error", f"{type(seen.error).__name__}: {seen.error}"
        return "uncaptured", f"{type(error).__name__}: {str(error)[:300]}"
    if any("random" in reason for reason in seen.reasons):  # capture may draw in another order
        expected = _run(aot_function(call, nop, decompositions=decompositions()), tensors)
    difference = compare(expected, actual, _free(op, sample, expected, actual))
    if difference and not _as_near(call, tensors, expected, actual):
        return "wrong", difference
    return "", ""


def _run(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    torch.manual_seed(0)
    with torch.no_grad():
        copies = [tensor.detach().clone() for tensor in tensors]
        return pytree.tree_leaves(function(*copies))


def _backend(seen: _Seen) -> Callable[..., Any]:
    def compile_part(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[[list[Any]], Any]:
        plan = _build(graph, seen)
        seen.clusters += len(plan.clustered.clusters)
        seen.reasons.update(str(reason) for reason in plan.clustered.native.values())

        def run(inputs: list[Any]) -> Any:
            try:
                return plan(inputs)
            except Exception as error:
                seen.error = error
                raise

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return compile_part


def _build(graph: torch.fx.GraphModule, seen: _Seen) -> Any:
    try:
        return build(Captured(graph, "inference", CONFIG))
    except Exception as error:
        seen.error = error
        raise


def compare(expected: Sequence[Any], actual: Sequence[Any], skip: frozenset[int]) -> str:
    """Return the first difference in words, "" if there is none."""
    if len(expected) != len(actual):
        return f"{len(actual)} results, not {len(expected)}"
    for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
        if not isinstance(want, torch.Tensor):
            if want != got and not (want != want and got != got):
                return f"result {number} is {got!r}, not {want!r}"
            continue
        if want.shape != got.shape or want.dtype != got.dtype:
            return f"result {number} is {_kind(got)}, not {_kind(want)}"
        if number not in skip and (text := _values(want, got)):
            return f"result {number} ({_kind(want)}): {text}"
    return ""


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")


def _values(want: torch.Tensor, got: torch.Tensor) -> str:
    if want.layout is not torch.strided:
        return ""  # never ours
    tolerance = TOLERANCE.get(want.dtype, 0.0)
    near = torch.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    if near.all():
        return ""
    place = tuple((~near).nonzero()[0].tolist())
    return f"at {list(place)} {got[place].item()}, not {want[place].item()}"


def _free(op: Any, sample: Any, expected: Any, actual: Any) -> frozenset[int]:
    """Return which results are indices that may differ, having checked that they lead to values."""
    stable = "stable" in op.variant_test_name or sample.kwargs.get("stable")
    if op.name not in FREE_INDICES or stable or not expected or sample.input.ndim == 0:
        return frozenset()
    source, places, wanted = sample.input, actual[-1], expected[-1]
    if places.dtype != torch.int64 or places.shape != wanted.shape:
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


def _as_near(call: Any, tensors: Any, expected: Any, actual: Any) -> bool:
    """Whether we are, in every result, at most twice as far from the truth as eager is."""
    wide = [t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t for t in tensors]
    try:
        truth = _run(call, wide)
    except Exception:  # no such kernel in double precision: then eager's word stands
        return False
    for true, want, got in zip(truth, expected, actual, strict=True):
        if not isinstance(true, torch.Tensor) or want.dtype not in _WIDE:
            if _values(want, got):
                return False
            continue
        if true.shape != want.shape:
            return False
        one = TOLERANCE[want.dtype]
        eager, ours = ((x.to(true.dtype) - true).abs() for x in (want, got))
        allowed = 2 * eager + one * (1 + true.abs())
        same = (got == want) | (got.isnan() & want.isnan()) | (got.to(true.dtype) == true)
        if not (same | (ours <= allowed)).all():
            return False
    return True
