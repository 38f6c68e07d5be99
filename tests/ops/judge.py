"""Judge an operator of torch's op_db: do our clusters give what eager gives?

`judge` captures an entry with AOTAutograd (the way torch.compile does, without Dynamo), cuts,
lowers and runs it, and compares with eager. Where the two differ, eager in double precision
decides: we are right if we are about as near to it as eager is. `judge_errors` does the same with
the inputs that eager refuses.

A result that is a view or a constant is copied behind the operator, in eager as in ours. Alone,
these compute nothing and stay outside of XLA, whereas within a model they are part of a cluster.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.ops.compare import compare, judged
from tests.ops.worker import ERRORS, spread
from torch_galley.capture.fx import Captured
from torch_galley.core.config import Config
from torch_galley.core.errors import GalleyError
from torch_galley.core.reasons import Random, Reason, TooSmall
from torch_galley.ops.decompose import decompositions
from torch_galley.pipeline import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from functorch.compile import aot_function, nop
    from torch.testing._internal.common_methods_invocations import op_db

OPTIONS = {"min_cluster_size": 1, "strict": True}
DYNAMO_SAMPLES = 2
"""How many samples of an entry are compiled with torch.compile too, in the first dtype it takes."""
BATCH = 8
"""How many samples go into one graph."""


@dataclass(frozen=True)
class Verdict:
    """What became of one entry in one dtype."""

    op: str
    variant: str
    dtype: str
    status: str
    """lowered, mixed or native: right, and run so. wrong: other results than eager. error: we
    raised. skipped: eager takes none of the samples."""
    reason: str = ""
    """Why nodes stayed native, or what is wrong."""
    samples: int = 0
    whole: bool = True
    """Whether these were all samples."""


@dataclass
class _Seen:
    """What the backend met over the samples of one entry."""

    clusters: int = 0
    reasons: dict[str, Reason | None] = field(default_factory=dict)
    error: BaseException | None = None

    def met(self, kind: type[Reason]) -> list[bool]:
        """Return of each reason whether it is of a kind."""
        return [isinstance(reason, kind) for reason in self.reasons.values()]

    def add(self, other: _Seen) -> None:
        """Take in what was met elsewhere, less the views and constants that computed nothing."""
        self.clusters += other.clusters
        kept = {t: r for t, r in other.reasons.items() if not isinstance(r, TooSmall)}
        self.reasons |= kept


def entries(names: Iterable[str] | None = None) -> list[Any]:
    """Return op_db's entries, those of some names (variants included), or all."""
    wanted = None if names is None else set(names)
    return [op for op in op_db if wanted is None or op.name in wanted]


@dataclass(frozen=True)
class _Sample:
    """One sample of an entry, ready to be run."""

    op: Any
    sample: Any
    number: int
    call: Callable[..., Any]
    """The operator as a function of the sample's tensors."""
    tensors: list[torch.Tensor]
    expected: list[Any]
    """What eager gives."""

    def compared(self, actual: Sequence[Any]) -> str:
        """Return what is wrong with our results, "" if nothing is."""
        eager = partial(_run, self.call)
        return judged(self.op, self.sample, eager, self.tensors, self.expected, actual)

    def copied(self) -> _Sample:
        """Return it with a copy of each result behind the operator."""
        call = self.call

        def copies(*given: torch.Tensor) -> Any:
            return pytree.tree_map_only(torch.Tensor, torch.clone, call(*given))

        return replace(self, call=copies)


def judge(op: Any, dtype: torch.dtype, limit: int | None = None, dynamo: bool = False) -> Verdict:
    """Judge an entry in a dtype by `limit` of its samples; `dynamo`: with torch.compile too."""
    seen, count, status, detail = _Seen(), 0, "", ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        ready = (_prepared(op, sample, n) for n, sample in spread(samples, limit))
        while not status and (batch := list(islice(ready, BATCH))):
            runs = [sample for sample in batch if sample is not None]
            together = _together(runs, seen)
            for sample in runs:
                count += 1
                if not together:
                    status, detail = _alone(sample, seen)
                if not status and dynamo and count <= DYNAMO_SAMPLES:
                    status, detail = _through_dynamo(sample)
                if status:
                    detail = f"sample {sample.number}: {detail}"
                    break
        whole = limit is None or len(samples) <= limit
    if not status and not count:
        status = "skipped"
    elif not status:
        status = "native" if not seen.clusters else "mixed" if seen.reasons else "lowered"
        detail = "; ".join(sorted(seen.reasons))
        if status == "native" and not detail:
            detail = "computes no tensor"
    name = str(dtype).removeprefix("torch.")
    return Verdict(op.name, op.variant_test_name, name, status, detail, count, whole)


def _prepared(op: Any, sample: Any, number: int) -> _Sample | None:
    """Return a sample with what eager gives for it, None if eager doesn't take it."""
    call, tensors = _function(op, sample)
    try:
        expected, views = _run(call, tensors), _gives_views(call, tensors)
    except Exception:  # the entry's own matter: not for this dtype, or wants other conditions
        return None
    prepared = _Sample(op, sample, number, call, tensors, expected)
    return prepared.copied() if views or not tensors else prepared


def _function(op: Any, sample: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return the operator as a function of a sample's tensors, and these."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        source, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(source, *args, **kwargs)

    return call, [leaves[i] for i in places]


def _gives_views(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a result shares memory with an argument or another result."""
    with torch.no_grad():
        given = [tensor.detach().clone() for tensor in tensors]
        found = [x for x in pytree.tree_leaves(call(*given)) if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in found):
        return False
    memory = [x.untyped_storage().data_ptr() for x in (*given, *found) if x.numel()]
    ours = {x.untyped_storage().data_ptr() for x in found if x.numel()}
    return any(memory.count(pointer) > 1 for pointer in ours) or any(x._is_view() for x in found)


def _together(samples: Sequence[_Sample], seen: _Seen) -> bool:
    """Run samples in one graph, which is quicker; False: run each alone, to see what is wrong."""
    own = _Seen()

    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        return [sample.call(*islice(rest, len(sample.tensors))) for sample in samples]

    tensors = [tensor for sample in samples for tensor in sample.tensors]
    try:
        results = iter(_run(_captured(call, _backend(own)), tensors))
    except Exception:
        return False
    if any(own.met(Random)) or any(own.met(TooSmall)):
        return False  # eager drew from a fresh seed for each; a constant wants a copy behind it
    parts = [list(islice(results, len(sample.expected))) for sample in samples]
    if any(sample.compared(part) for sample, part in zip(samples, parts, strict=True)):
        return False
    seen.add(own)
    return True


def _alone(sample: _Sample, seen: _Seen) -> tuple[str, str]:
    """Run one sample both ways; an empty status means all is well."""
    own = _Seen()
    try:
        actual = _run(_captured(sample.call, _backend(own)), sample.tensors)
    except Exception as error:
        if own.error is not None or isinstance(error, GalleyError):
            return "error", _line(own.error or error)
        # torch itself can't trace it. With torch.compile it's left to eager at a graph break.
        seen.reasons[f"torch can't trace it: {type(error).__name__}"] = None
        return _through_dynamo(sample)
    if own.reasons and not own.clusters and all(own.met(TooSmall)):
        return _alone(sample.copied(), seen)
    if any(own.met(Random)):  # capture may draw in another order
        wanted = _run(_captured(sample.call, nop), sample.tensors)
        sample = replace(sample, expected=wanted)
    seen.add(own)
    difference = sample.compared(actual)
    return ("wrong", difference) if difference else ("", "")


def _through_dynamo(sample: _Sample) -> tuple[str, str]:
    """Run one sample through torch.compile; what it does alike without us is not ours."""

    def compiled(**backend: Any) -> list[Any]:
        torch._dynamo.reset()
        return _run(torch.compile(sample.call, **backend), sample.tensors)

    try:
        actual = compiled(backend="galley", options=OPTIONS)
        status, detail = "wrong", sample.compared(actual)
        if not detail or not compare(compiled(backend="aot_eager"), actual, frozenset()):
            return "", ""
    except Exception as error:
        status, detail = "error", _line(error)
        try:
            compiled(backend="aot_eager")
        except Exception as alone:
            if _line(alone) == detail:
                return "", ""
    finally:
        torch._dynamo.reset()
    return status, f"torch.compile: {detail}"


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"


def _run(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    torch.manual_seed(0)
    with torch.no_grad():
        copies = [tensor.detach().clone() for tensor in tensors]
        return pytree.tree_leaves(function(*copies))


def _captured(call: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    table = decompositions()
    return aot_function(call, fw_compiler=backend, inference_compiler=backend, decompositions=table)


def _backend(seen: _Seen, strict: bool = True) -> Callable[..., Any]:
    def compile_part(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[[list[Any]], Any]:
        try:
            config = Config(min_cluster_size=1, strict=strict)
            plan = build(Captured(graph, "inference", config))
        except Exception as error:
            seen.error = error
            raise
        seen.clusters += len(plan.clustered.clusters)
        seen.reasons |= {str(reason): reason for reason in plan.clustered.native.values()}

        def run(inputs: list[Any]) -> Any:
            try:
                return plan(inputs)
            except Exception as error:
                seen.error = error
                raise

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return compile_part


@dataclass
class Refusals:
    """What we make of the inputs that eager refuses."""

    op: str
    variant: str
    dtype: str = ERRORS
    """Stands in a dtype's place."""
    status: str = "refused"
    """wrong: something else than eager's refusal; skipped: no such inputs."""
    reason: str = ""
    """What is wrong."""
    traced: int = 0
    """Refused by torch's own tracing, before us, or let through by it: what it makes of them runs
    without complaint in eager as well."""
    native: int = 0
    """Refused by a native operator, in eager's words."""
    ours: int = 0
    """Refused by a cluster, with eager's type of exception and the operator's name."""


def judge_errors(op: Any) -> Refusals:
    """Judge an entry by op_db's error inputs."""
    found, bad = Refusals(op.name, op.variant_test_name), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, case in enumerate(op.error_inputs("cpu")):
            call, tensors = _function(op, case.sample_input)
            wanted = _raised(call, tensors)
            if wanted is None:
                continue  # it refuses only what we don't compare, such as a bad out=
            seen = _Seen()
            error = _raised(_captured(call, _backend(seen, strict=False)), tensors)
            if error is not None and seen.error is None:
                found.traced += 1
            elif not isinstance(error, type(wanted)):
                if not isinstance(_raised(_captured(call, nop), tensors), type(wanted)):
                    found.traced += 1
                    continue
                told = "no error" if error is None else _line(error)
                bad.append(f"error input {number}: {told}, not {_line(wanted)}")
            elif re.match(r"\w+: ", str(error)):
                found.ours += 1
            else:
                found.native += 1
    if bad:
        found.status, found.reason = "wrong", "; ".join(bad)
    elif not (found.traced or found.native or found.ours):
        found.status = "skipped"
    return found


def _raised(function: Callable[..., Any], tensors: Any) -> BaseException | None:
    try:
        _run(function, tensors)
    except Exception as error:
        return error
    return None
