"""How a compiled model is judged: eager first, float64 where float32 is too coarse to tell.

The error of a result is its largest difference from eager's, relative to the largest value of the
same tensor. Where that is above the limit, eager in float64 is the judge of both: ours passes if
it is within the limit of the truth, or no farther from it than twice what float32 eager is.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_galley.core.events import (
    ClusterCompiled,
    ClusterLowered,
    Event,
    GraphBuilt,
    PlanExecuted,
    listen,
)
from torch_galley.core.reasons import DataDependentShape, Random, Seed, SharedMemory

LIMIT = 1e-4
"""The largest error that passes, relative to scale."""

Inputs = dict[str, Any]


@dataclass
class Seen:
    """What the stages told while a model was compiled."""

    graphs: list[Any] = field(default_factory=list)
    """Each graph, clustered."""
    runs: int = 0
    """How often a compiled graph ran; Dynamo may fall back to eager without a word."""
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case GraphBuilt(plan=plan):
                self.graphs.append(plan.clustered)
            case PlanExecuted():
                self.runs += 1
            case ClusterLowered(seconds=seconds):
                self.lower_seconds += seconds
            case ClusterCompiled(seconds=seconds):
                self.compile_seconds += seconds
            case _:
                pass

    def watch(self, call: Callable[[], Any]) -> Any:
        """Return `call()`, having listened meanwhile."""
        stop = listen(self)
        try:
            return call()
        finally:
            stop()

    @property
    def nodes(self) -> int:
        """Operations of all graphs."""
        return sum(graph.operations for graph in self.graphs)

    @property
    def clusters(self) -> int:
        """Clusters of all graphs."""
        return sum(len(graph.clusters) for graph in self.graphs)

    @property
    def coverage(self) -> float:
        """η over all graphs."""
        inside = sum(graph.clustered_operations for graph in self.graphs)
        return inside / self.nodes if self.nodes else 0.0

    def native(self) -> list[str]:
        """Return a line for each native operator and reason: count, name, why."""
        counts = Counter(
            f"{node.target}: {reason.group}"
            for graph in self.graphs
            for node, reason in graph.native.items()
        )
        return [f"{count} x {line}" for line, count in sorted(counts.items())]

    def unexcused(self) -> list[str]:
        """Return the native operators that XLA should have taken.

        Excused are those that depend on the data or draw random numbers, and views of results,
        which compute nothing: they show the caller a cluster's memory as eager would have.
        """
        return [
            f"{node.target}: {reason}"
            for graph in self.graphs
            for node, reason in graph.native.items()
            if not isinstance(reason, DataDependentShape | Random | Seed | SharedMemory)
        ]


def tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output, detached, in a fixed order.

    A cache is left out: its class is no container. What it holds is in the other results.
    """
    return [leaf.detach() for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def error(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest difference, relative to scale; infinite where the results can't be met.

    Example: `error([torch.ones(2)], [torch.full((2,), 2.0)])` is 0.5.
    """
    if len(given) != len(wanted):
        return math.inf
    return max([_error(g, w) for g, w in zip(given, wanted, strict=True)], default=math.inf)


def _error(given: torch.Tensor, wanted: torch.Tensor) -> float:
    if given.shape != wanted.shape or given.dtype.is_floating_point != wanted.is_floating_point():
        return math.inf
    if wanted.numel() == 0:
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return 0.0 if torch.equal(given, wanted) else math.inf
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    given, wanted = given.to(wide), wanted.to(wide)
    apart = (given - wanted).abs()
    apart[(given == wanted) | (given.isnan() & wanted.isnan())] = 0.0  # infinities and NaN alike
    if not apart.isfinite().all():
        return math.inf
    finite = wanted.abs()[wanted.isfinite()]
    scale = finite.max().item() if finite.numel() else 0.0
    return apart.max().item() / max(scale, 1e-30)


@dataclass(frozen=True)
class Verdict:
    """How far a result is from eager's."""

    error: float
    """From float32 eager, relative to scale."""
    against_float64: float | None = None
    """From float64 eager, where that was asked."""
    eager_against_float64: float | None = None

    @property
    def equal(self) -> bool:
        """Whether the result passes."""
        if self.error <= LIMIT:
            return True
        if self.against_float64 is None or self.eager_against_float64 is None:
            return False
        return self.against_float64 <= max(LIMIT, 2 * self.eager_against_float64)


def judge(
    model: torch.nn.Module,
    inputs: Inputs,
    given: list[torch.Tensor],
    wanted: list[torch.Tensor],
) -> Verdict:
    """Compare results with float32 eager's, and with float64 eager's where they differ."""
    apart = error(given, wanted)
    if apart <= LIMIT:
        return Verdict(apart)
    try:
        truth = tensors(run(copy.deepcopy(model).double(), widened(inputs)))
    except Exception:  # a model that insists on float32 has no judge
        return Verdict(apart)
    return Verdict(apart, error(given, truth), error(wanted, truth))


def widened(inputs: Inputs) -> Inputs:
    """Return inputs with their floats in float64."""
    return {
        name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def run(model: Callable[..., Any], inputs: Inputs, seed: int = 0) -> Any:
    """Return the model's output without gradients, random numbers from a fixed seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(**inputs)
