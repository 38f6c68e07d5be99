"""Whether a path gives what eager gives; where not, whether there is evidence that both are right.

Evidence is one of these, and is counted by its name:

- NEAR: in double precision, eager itself is as far from the truth as we are.
- TURNS: eager's own results move as far when each number that it is given or computes on the way
  is moved by a unit in the last place, so a rounding decides here (a comparison, an index, a
  cancellation, how many values differ).
- OTHER: eager gives the same by its plain kernel of attention; its fused one drops a NaN.
- SMALL: eager gives the same where the processor takes denormal numbers for zero, as XLA does.
- TORCH: torch.compile gives the same without us, with its backend "aot_eager".
- META: for strides only, torch's own meta functions, by which graphs are made, say what we give.
- MORE: eager has no kernel for this dtype, and says so; we take it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz import paths
from tests.fuzz.paths import Outcome
from tests.fuzz.program import Program
from tests.ops.compare import TOLERANCE, as_near, compare

NEAR, TURNS, TORCH = "as near as eager", "eager's turns too", "torch.compile's own"
META, MORE = "torch's meta functions'", "a dtype that eager lacks"
SMALL, OTHER = "denormals are zero", "eager's plain kernel"
SHAKES = 12
"""How often eager is run with its numbers moved."""
SHAKES_OF_FORMS = 60
"""As often, until a result has another shape."""
SLACK = 8
"""How many times as far as eager moved we may be away."""
TURNS_A_PROGRAM = 2
"""How many sets of values a program is run with: what was compiled for one must fit another."""


@dataclass(frozen=True)
class Verdict:
    """What became of a program in a path."""

    kind: str = ""
    """What differs, "" if nothing does; "invalid" where eager itself refuses the program."""
    detail: str = ""
    explained: str = ""
    """By what, if it is."""

    @property
    def bad(self) -> bool:
        """Whether there is an unexplained difference."""
        return bool(self.kind) and not self.explained and self.kind != "invalid"


def judge(program: Program, path: str, refused: bool = False) -> Verdict:
    """Compare a path with eager.

    Args:
        program: what is run.
        path: "compile" or "lazy".
        refused: eager refuses the program at its end, and so must we.
    """
    wanted = [paths.eager(program, turn) for turn in range(TURNS_A_PROGRAM)]
    if refused:
        return _judged_refusal(program, path, wanted[0])
    if wanted[0].error:
        return Verdict("invalid", _line(wanted[0].error))
    wanted = wanted[:1] if wanted[1].error else wanted
    run = paths.compiled if path == "compile" else paths.lazy
    first = Verdict()
    for turn, (want, got) in enumerate(zip(wanted, run(program, len(wanted)), strict=True)):
        kind, detail = difference(want, got)
        if kind:
            explained = explanation(program, path, turn, kind, want, got)
            verdict = Verdict(kind, f"turn {turn}: {detail}" if turn else detail, explained)
            if verdict.bad:
                return verdict
            first = first if first.kind else verdict
    return first


def _judged_refusal(program: Program, path: str, wanted: Outcome) -> Verdict:
    if not wanted.error:
        return Verdict("invalid", "eager takes it")
    got = (paths.compiled if path == "compile" else paths.lazy)(program)[0]
    if got.error:
        return Verdict()
    explained = MORE if "not implemented for" in str(wanted.error) else ""
    if path == "compile" and not paths.compiled(program, backend="aot_eager")[0].error:
        explained = TORCH
    return Verdict("takes what eager refuses", _line(wanted.error), explained)


def difference(want: Outcome, got: Outcome) -> tuple[str, str]:
    """Return the kind of the first difference and what it is, two empty texts if there is none."""
    if got.error:
        return f"raises {type(got.error).__name__}", _line(got.error)
    for kind in ("results", "inputs", "gradients"):
        if text := compare(getattr(want, kind), getattr(got, kind), frozenset()):
            return kind, text.replace("result", kind.removesuffix("s"), 1)
    for kind in ("memory", "strides", "differentiable"):
        ours, theirs = getattr(got, kind), getattr(want, kind)
        if ours != theirs:
            return kind, f"{ours}, not {theirs}"
    return "", ""


def explanation(
    program: Program, path: str, turn: int, kind: str, want: Outcome, got: Outcome
) -> str:
    """Return by what a difference is explained, "" if by nothing."""
    if kind in ("results", "inputs", "gradients"):

        def truth(_given: Any) -> list[Any]:
            found = paths.eager(program, turn, wide=True)
            if found.error is not None:
                raise found.error
            return found.tensors()

        same = _forms(want) == _forms(got)
        if same and as_near(truth, (), want.tensors(), got.tensors(), pointwise=False):
            return NEAR
        if not difference(paths.eager(program, turn, small=False), got)[0]:
            return SMALL
        if not difference(paths.eager(program, turn, sdpa_kernel(SDPBackend.MATH)), got)[0]:
            return OTHER
        if _turns(program, turn, want, got):
            return TURNS
    if kind == "strides" and paths.eager(program, turn, paths.AsMeta()).strides == got.strides:
        return META
    if path == "compile":
        theirs = paths.compiled(program, turn + 1, backend="aot_eager")[turn]
        alike = difference(theirs, got)[0] == "" if got.error is None else True
        if alike and difference(want, theirs)[0] == kind:
            return TORCH
    return ""


def _forms(one: Outcome) -> list[tuple[torch.Size, torch.dtype]]:
    return [(x.shape, x.dtype) for x in one.tensors()]


def _turns(program: Program, turn: int, want: Outcome, got: Outcome) -> bool:
    """Whether eager's own results move as far as ours are away, element by element."""
    if _forms(want) != _forms(got):  # a shape may depend on what is equal
        shaken = (paths.eager(program, turn, Shaken(seed)) for seed in range(SHAKES_OF_FORMS))
        return any(_forms(run) == _forms(got) for run in shaken)
    runs = [paths.eager(program, turn, Shaken(seed)) for seed in range(SHAKES)]
    moved = [run.tensors() for run in runs if not run.error]
    for place, (true, ours) in enumerate(zip(want.tensors(), got.tensors(), strict=True)):
        others = [run[place] for run in moved if place < len(run)]
        if any(x.shape != true.shape for x in others):
            continue  # even its shape is decided by a rounding
        if not _within(true, ours, others):
            return False
    return True


def _within(true: torch.Tensor, ours: torch.Tensor, others: list[torch.Tensor]) -> bool:
    wide = torch.complex128 if true.is_complex() else torch.float64
    here, there = true.to(wide), ours.to(wide)
    away = (there - here).abs()
    spread = torch.zeros_like(away)
    flips = torch.zeros_like(away, dtype=torch.bool)
    for other in others:
        that = other.to(wide)
        flips |= that.isfinite() != here.isfinite()
        spread = torch.maximum(spread, (that - here).abs().nan_to_num(0, 0))
    tolerance = TOLERANCE.get(true.dtype, 0.0)
    allowed = SLACK * spread + tolerance * (1 + here.abs().nan_to_num(0, 0))
    same = (here == there) | (here.isnan() & there.isnan())
    return bool((same | (away <= allowed) | flips).all())


class Shaken(TorchDispatchMode):
    """Moves each number that an operator computes, and each input, by a unit in the last place,
    or not.

    Numbers that need no more than half of the digits stay: they are exact on every path.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(one.alias_info is not None and not one.alias_info.is_write for one in returns):
            return results  # a view
        for one in pytree.tree_leaves(results):
            if isinstance(one, torch.Tensor) and one.dtype in TOLERANCE and one.numel():
                self._shake(one)
        return results

    def shake_inputs(self, made: Sequence[torch.Tensor]) -> None:
        """Move the numbers of a program's inputs, once where they share memory."""
        for one in {one.untyped_storage()._cdata: one for one in made}.values():
            if one.dtype in TOLERANCE and one.numel():
                whole = torch.empty(0, dtype=one.dtype).set_(one.untyped_storage())
                self._shake(whole)

    def _shake(self, one: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        by = torch.randint(-1, 2, one.shape, generator=generator).double()
        real = one.abs() if one.is_complex() else one
        half = 2.0 ** round(-math.log2(torch.finfo(one.dtype).eps) / 2)
        digits = torch.frexp(real.double()).mantissa * half
        short = digits == digits.round()
        wide = torch.complex128 if one.is_complex() else torch.float64
        moved = one.to(wide) * (1 + torch.finfo(one.dtype).eps * by)
        kept = torch.where(short | (by == 0), one, moved.to(one.dtype))
        one.copy_(kept)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
