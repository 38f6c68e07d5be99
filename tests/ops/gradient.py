"""Judge the gradients of an operator of torch's op_db: are ours eager's?

First order, compiled: AOTAutograd captures forward and backward as torch.compile has them, both
become clusters, and fixed random cotangents go through both ways. Second order: torch.compile
refuses to differentiate its backward, so what is compiled is a function that asks for gradients
and for those of them, all in one graph. On the lazy device both are plain autograd.

Compared are the results that can be differentiated and all gradients, those of the cotangents
included in the second order, and which of them there are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

import torch_galley
from tests.ops.judge import (
    Compiler,
    Sample,
    Verdict,
    captured,
    copying,
    gives_views,
    judge_samples,
    line,
    run,
)
from tests.ops.lazy import function_of
from tests.ops.worker import spread
from torch_galley.core.errors import GalleyError

Call = Callable[..., Any]


def takes(op: Any, column: str) -> bool:
    """Whether op_db says that an entry has such gradients."""
    dtype = getattr(torch, column.split()[0])
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return differentiable and ("2nd" not in column or op.supports_gradgrad)


def judge(op: Any, column: str, limit: int | None = None) -> Verdict:
    """Judge an entry's gradients in a column by `limit` of its samples."""
    dtype, *ways = column.split()
    samples = op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
    prepare = partial(_prepared, second="2nd" in ways)
    if "lazy" in ways:
        return _judge_lazy(op, samples, column, prepare, limit)
    return judge_samples(op, samples, column, prepare, limit)


# What is differentiated


def _leaves(tensors: Sequence[torch.Tensor], wants: Sequence[bool]) -> list[torch.Tensor]:
    """Return tensors of their own for autograd, on the same memory."""
    return [x.detach().requires_grad_(want) for x, want in zip(tensors, wants, strict=True)]


def _differentiable(results: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(results)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]


def _first(function: Call, wants: Sequence[bool]) -> Call:
    """Return the results and the gradients as a function of tensors, then cotangents."""

    @torch.enable_grad()
    def call(*given: torch.Tensor) -> Any:
        leaves = _leaves(given[: len(wants)], wants)
        results = _differentiable(function(*leaves))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        cotangents = given[len(wants) :]
        gradients = torch.autograd.grad(results, wanted, cotangents, allow_unused=True)
        return [result.detach() for result in results], list(gradients)

    return call


def _second(function: Call, wants: Sequence[bool], count: int) -> Call:
    """Return the gradients and theirs as a function of tensors, `count` cotangents of the results,
    then cotangents of the gradients.
    """

    @torch.enable_grad()
    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        leaves = _leaves(list(islice(rest, len(wants))), wants)
        cotangents = _leaves(list(islice(rest, count)), [True] * count)
        results = _differentiable(function(*leaves))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(
            results, wanted, cotangents, create_graph=True, allow_unused=True
        )
        seconds = torch.autograd.grad(
            _differentiable(gradients), [*wanted, *cotangents], list(rest), allow_unused=True
        )
        # Copies: views that are results would be made outside of the graph's clusters.
        return [None if x is None else x.detach().clone() for x in (*gradients, *seconds)]

    return call


def _cotangents(results: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Return fixed random tensors like some results."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in results]


@dataclass(frozen=True)
class _First(Sample):
    """A sample whose graph AOTAutograd splits into forward and backward."""

    function: Call
    """Of the sample's tensors; the rest of `tensors` are cotangents."""
    wants: tuple[bool, ...]
    """Which of the sample's tensors require a gradient."""

    def copied(self) -> _First:
        """Return it with a copy of each result behind the operator."""
        function = copying(self.function)
        return replace(self, function=function, call=_first(function, self.wants))

    @staticmethod
    def compiled(samples: Sequence[Any], backend: Compiler) -> Call:
        """Return a function of all tensors of some samples, compiled as one pair of graphs."""

        def functions(*given: torch.Tensor) -> Any:
            rest = iter(given)
            return [sample.function(*islice(rest, len(sample.wants))) for sample in samples]

        wants = [want for sample in samples for want in sample.wants]
        together = _first(captured(functions, backend), wants)

        def call(*given: torch.Tensor) -> Any:
            rest, tensors, cotangents = iter(given), [], []
            for sample in samples:
                tensors += islice(rest, len(sample.wants))
                cotangents += islice(rest, len(sample.tensors) - len(sample.wants))
            results, gradients = map(iter, together(*tensors, *cotangents))
            return [
                (
                    list(islice(results, len(sample.tensors) - len(sample.wants))),
                    list(islice(gradients, sum(sample.wants))),
                )
                for sample in samples
            ]

        return call

    def through_dynamo(self, **options: Any) -> Call:
        """Return the gradients of what torch.compile makes of the operator."""
        return _first(torch.compile(self.function, **options), self.wants)


def _prepared(op: Any, sample: Any, number: int, second: bool) -> Sample | None:
    """Return a sample with eager's gradients, None if eager has none."""
    called, given = function_of(op.op, sample)
    wants = tuple(tensor.requires_grad for tensor in given)
    tensors = [tensor.detach() for tensor in given]

    def function(*inner: torch.Tensor) -> Any:
        return sample.output_process_fn_grad(called(inner[0].device.type, *inner))

    try:
        views = gives_views(function, tensors)
        if views:
            function = copying(function)
        results = _differentiable(function(*_leaves(tensors, wants)))
        tensors += _cotangents(results, 1)
        call = _first(function, wants)
        expected = run(call, tensors)
        if second:
            tensors += _cotangents(_twice_differentiable(function, wants, tensors), 2)
            call = _second(function, wants, len(results))
            expected = run(call, tensors)
    except Exception:  # the entry's own matter: not for this dtype, or without a gradient
        return None
    # Elsewhere a gradient is a sum, whose elements share their error.
    alike = len({tensor.shape for tensor in tensors}) == 1
    pointwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo) and alike
    if second:
        return Sample(op, sample, number, call, tensors, expected, pointwise)
    return _First(op, sample, number, call, tensors, expected, pointwise, function, wants)


@torch.enable_grad()
def _twice_differentiable(
    function: Call, wants: Sequence[bool], given: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return which gradients have gradients."""
    leaves = _leaves(given[: len(wants)], wants)
    cotangents = _leaves(given[len(wants) :], [True] * (len(given) - len(wants)))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    results = _differentiable(function(*leaves))
    return _differentiable(
        torch.autograd.grad(results, wanted, cotangents, create_graph=True, allow_unused=True)
    )


# The lazy device


def _judge_lazy(op: Any, samples: Any, column: str, prepare: Call, limit: int | None) -> Verdict:
    """Judge by what plain autograd gives on the device.

    The status is right, wrong, error, refused (by a named error of ours) or skipped.
    """
    torch_galley.device()
    count, status, detail = 0, "", ""
    with warnings.catch_warnings(), torch_galley.config(rng="native"):
        warnings.simplefilter("ignore")
        samples = list(samples)
        for number, sample in spread(samples, limit):
            ready = prepare(op, sample, number)
            if ready is None:
                continue
            count += 1
            status, detail = _on_device(ready)
            if status:
                detail = f"sample {number}: {detail}"
                break
    status = status or ("right" if count else "skipped")
    whole = limit is None or len(samples) <= limit
    return Verdict(op.name, op.variant_test_name, column, status, detail, count, whole)


def _on_device(ready: Sample) -> tuple[str, str]:
    """Run a sample on the device; an empty status means all is well."""
    try:
        actual = run(ready.call, [x.to("xla") for x in ready.tensors])
        actual = [x.cpu() if isinstance(x, torch.Tensor) else x for x in actual]
    except GalleyError as error:
        return "refused", line(error)
    except Exception as error:
        return "error", line(error)
    difference = ready.compared(actual)
    return ("wrong", difference) if difference else ("", "")
