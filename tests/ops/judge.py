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
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, SavedForBackwardsAOTOutput
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from tests.ops.compare import compare, free_indices, judged
from tests.ops.worker import ERRORS, spread
from torch_galley.capture.fx import Captured
from torch_galley.core.config import Config
from torch_galley.core.errors import GalleyError
from torch_galley.core.reasons import Random, Reason, TooSmall
from torch_galley.ops.decompose import decompositions
from torch_galley.pipeline import build

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
    from torch.testing._internal.common_methods_invocations import op_db

Compiler = Callable[..., Any]
"""Makes of a graph and its example inputs a function of a list of inputs."""
OPTIONS = {"min_cluster_size": 1, "strict": True, "rng": "native"}
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
class Seen:
    """What the backend met over the samples of one entry."""

    clusters: int = 0
    reasons: dict[str, Reason | None] = field(default_factory=dict)
    error: BaseException | None = None

    def met(self, kind: type[Reason]) -> list[bool]:
        """Return of each reason whether it is of a kind."""
        return [isinstance(reason, kind) for reason in self.reasons.values()]

    def add(self, other: Seen) -> None:
        """Take in what was met elsewhere, less the views and constants that computed nothing."""
        self.clusters += other.clusters
        kept = {t: r for t, r in other.reasons.items() if not isinstance(r, TooSmall)}
        self.reasons |= kept


def entries(names: Iterable[str] | None = None) -> list[Any]:
    """Return op_db's entries, those of some names (variants included), or all."""
    wanted = None if names is None else set(names)
    return [op for op in op_db if wanted is None or op.name in wanted]


@dataclass(frozen=True)
class Sample:
    """One sample of an entry, ready to be run."""

    op: Any
    sample: Any
    number: int
    call: Callable[..., Any]
    """The operator as a function of the sample's tensors."""
    tensors: list[torch.Tensor]
    expected: list[Any]
    """What eager gives."""
    pointwise: bool
    """Whether an element of a result hangs on one element of each argument."""

    def compared(self, actual: Sequence[Any]) -> str:
        """Return what is wrong with our results, "" if nothing is."""
        free = free_indices(self.op, self.sample, self.expected, actual)
        eager = partial(run, self.call)
        return judged(eager, self.tensors, self.expected, actual, free, self.pointwise)

    def copied(self) -> Sample:
        """Return it with a copy of each result behind the operator."""
        return replace(self, call=copying(self.call))

    @staticmethod
    def compiled(samples: Sequence[Any], backend: Compiler) -> Callable[..., Any]:
        """Return a function of all tensors of some samples, compiled as one graph."""

        def call(*given: torch.Tensor) -> Any:
            rest = iter(given)
            return [sample.call(*islice(rest, len(sample.tensors))) for sample in samples]

        return captured(call, backend)

    def through_dynamo(self, **options: Any) -> Callable[..., Any]:
        """Return the function of its tensors as torch.compile makes it."""
        return torch.compile(self.call, **options)


def copying(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that copies each of its results."""
    return lambda *given: pytree.tree_map_only(torch.Tensor, torch.clone, call(*given))


def judge(op: Any, dtype: torch.dtype, limit: int | None = None, dynamo: bool = False) -> Verdict:
    """Judge an entry in a dtype by `limit` of its samples; `dynamo`: with torch.compile too."""
    name = str(dtype).removeprefix("torch.")
    return judge_samples(op, op.sample_inputs("cpu", dtype), name, _prepared, limit, dynamo)


def judge_samples(
    op: Any,
    samples: Iterable[Any],
    name: str,
    prepare: Callable[[Any, Any, int], Sample | None],
    limit: int | None = None,
    dynamo: bool = False,
) -> Verdict:
    """Judge an entry by `limit` of its samples.

    Args:
        op: the entry.
        samples: what op_db gives for it.
        name: of the verdict's column, such as a dtype.
        prepare: makes of the entry, a sample and its number what is run; None to leave it out.
        limit: how many samples, evenly spread; None for all.
        dynamo: run the first ones through torch.compile, too.
    """
    seen, count, status, detail = Seen(), 0, "", ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(samples)
        ready = (prepare(op, sample, n) for n, sample in spread(samples, limit))
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
    return Verdict(op.name, op.variant_test_name, name, status, detail, count, whole)


def _prepared(op: Any, sample: Any, number: int) -> Sample | None:
    """Return a sample with what eager gives for it, None if eager doesn't take it."""
    call, tensors = function_of(op, sample)
    try:
        expected, views = run(call, tensors), gives_views(call, tensors)
    except Exception:  # the entry's own matter: not for this dtype, or wants other conditions
        return None
    pointwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
    prepared = Sample(op, sample, number, call, tensors, expected, pointwise)
    return prepared.copied() if views or not tensors else prepared


def function_of(op: Any, sample: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
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


def gives_views(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a result shares memory with an argument or another result."""
    with torch.no_grad():
        given = [tensor.detach().clone() for tensor in tensors]
        found = [x for x in pytree.tree_leaves(call(*given)) if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in found):
        return False
    memory = [x.untyped_storage().data_ptr() for x in (*given, *found) if x.numel()]
    ours = {x.untyped_storage().data_ptr() for x in found if x.numel()}
    return any(memory.count(pointer) > 1 for pointer in ours) or any(x._is_view() for x in found)


def _together(samples: Sequence[Sample], seen: Seen) -> bool:
    """Run samples in one graph, which is quicker; False: run each alone, to see what is wrong."""
    own = Seen()
    tensors = [tensor for sample in samples for tensor in sample.tensors]
    try:
        results = iter(run(samples[0].compiled(samples, backend_of(own)), tensors))
    except Exception:
        return False
    if any(own.met(Random)) or any(own.met(TooSmall)):
        return False  # eager drew from a fresh seed for each; a constant wants a copy behind it
    parts = [list(islice(results, len(sample.expected))) for sample in samples]
    if any(sample.compared(part) for sample, part in zip(samples, parts, strict=True)):
        return False
    seen.add(own)
    return True


def _alone(sample: Sample, seen: Seen) -> tuple[str, str]:
    """Run one sample both ways; an empty status means all is well."""
    own = Seen()
    try:
        actual = run(sample.compiled([sample], backend_of(own)), sample.tensors)
    except Exception as error:
        if own.error is not None or isinstance(error, GalleyError):
            return "error", line(own.error or error)
        # torch itself can't trace it. With torch.compile it's left to eager at a graph break.
        seen.reasons[f"torch can't trace it: {type(error).__name__}"] = None
        return _through_dynamo(sample)
    if own.reasons and not own.clusters and all(own.met(TooSmall)):
        return _alone(sample.copied(), seen)
    if any(own.met(Random)):  # capture may draw in another order
        wanted = run(sample.compiled([sample], nop), sample.tensors)
        sample = replace(sample, expected=wanted)
    difference = sample.compared(actual)
    if difference and sample.compared(run(sample.compiled([sample], nop), sample.tensors)):
        seen.reasons["torch can't trace it: it gives other results, without us too"] = None
        return _through_dynamo(sample)
    seen.add(own)
    return ("wrong", difference) if difference else ("", "")


def _through_dynamo(sample: Sample) -> tuple[str, str]:
    """Run one sample through torch.compile; what it does alike without us is not ours."""

    def compiled(**backend: Any) -> list[Any]:
        torch._dynamo.reset()
        return run(sample.through_dynamo(**backend), sample.tensors)

    try:
        actual = compiled(backend="galley", options=OPTIONS)
        status, detail = "wrong", sample.compared(actual)
        if not detail or not compare(compiled(backend="aot_eager"), actual, frozenset()):
            return "", ""
    except Exception as error:
        status, detail = "error", line(error)
        try:
            compiled(backend="aot_eager")
        except Exception as alone:
            if line(alone) == detail:
                return "", ""
    finally:
        torch._dynamo.reset()
    return status, f"torch.compile: {detail}"


def line(error: BaseException) -> str:
    """Return an error's first line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"


def run(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return all results of a function of some tensors, which it gets copies of."""
    torch.manual_seed(0)
    with torch.no_grad():
        copies = [tensor.detach().clone() for tensor in tensors]
        return pytree.tree_leaves(function(*copies))


def captured(call: Callable[..., Any], backend: Compiler) -> Callable[..., Any]:
    """Return a function captured and split as capture.functional does, without Dynamo."""
    return aot_function(
        call,
        fw_compiler=backend,
        bw_compiler=backend,
        inference_compiler=backend,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )


def backend_of(seen: Seen, strict: bool = True) -> Compiler:
    """Return what compiles a graph and notes in `seen` what it met."""

    def compile_part(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[[list[Any]], Any]:
        try:
            config = Config(min_cluster_size=1, strict=strict)
            plan = build(Captured(graph, "inference", config, _visible(graph)))
        except Exception as error:
            seen.error = error
            raise
        seen.clusters += len(plan.clustered.clusters)
        seen.reasons |= {str(reason): reason for reason in plan.clustered.native.values()}

        def execute(inputs: list[Any]) -> Any:
            try:
                return plan(inputs)
            except Exception as error:
                seen.error = error
                raise

        execute._boxed_call = True  # type: ignore[attr-defined]
        return execute

    return compile_part


def _visible(graph: torch.fx.GraphModule) -> int:
    """Return how many of a graph's results its user sees: no gradients, nothing saved for them."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    hidden = (SavedForBackwardsAOTOutput, GradAOTOutput)
    return sum(not isinstance(desc, hidden) for desc in output.meta["desc"])


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
            call, tensors = function_of(op, case.sample_input)
            wanted = _raised(call, tensors)
            if wanted is None:
                continue  # it refuses only what we don't compare, such as a bad out=
            seen = Seen()
            error = _raised(captured(call, backend_of(seen, strict=False)), tensors)
            if error is not None and seen.error is None:
                found.traced += 1
            elif not isinstance(error, type(wanted)):
                if not isinstance(_raised(captured(call, nop), tensors), type(wanted)):
                    found.traced += 1
                    continue
                told = "no error" if error is None else line(error)
                bad.append(f"error input {number}: {told}, not {line(wanted)}")
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
        run(function, tensors)
    except Exception as error:
        return error
    return None
