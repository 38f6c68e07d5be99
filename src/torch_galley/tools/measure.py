"""What a clustered graph costs, term by term: S = ΣT_op / (T_fused + T_sync).

ΣT_op runs each operation of a cluster natively, one by one. T_fused is the cluster's executable.
T_sync is what the border costs around it: bringing tensors in, looking up the executable, handing
results back to torch. All times are medians over repeated runs, in seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_galley.cluster.terms import Terms
from torch_galley.core.errors import ToolError
from torch_galley.run.device import as_torch
from torch_galley.run.execute import Plan
from torch_galley.run.native import NativeStep
from torch_galley.run.step import ClusterStep, Step


@dataclass(frozen=True)
class ClusterCost:
    """What one cluster takes."""

    name: str
    terms: Terms
    """T_sync is everything that running it as a cluster costs besides its executable."""
    temporary_bytes: int
    """XLA's scratch memory for it."""


@dataclass(frozen=True)
class Costs:
    """What a call is made of, in seconds."""

    clusters: list[ClusterCost]
    around: float
    """The call without any step's work: guards, AOTAutograd's wrappers, the plan's own loop."""

    @property
    def overhead(self) -> float:
        """What the call costs besides computing: `around` and every T_sync."""
        return self.around + sum(cost.terms.t_sync for cost in self.clusters)


class _Timed:
    """Stands in for a cluster step, doing its work with a clock and its operations natively too."""

    def __init__(self, step: ClusterStep, plan: Plan):
        self.step = step
        inside = {node for cluster in plan.clustered.clusters for node in cluster.nodes}
        # What only other clusters read stays on the device and is not handed to torch.
        self.handed = [not inside.issuperset(node.users) for node in step.cluster.outputs]
        self.operations = [NativeStep(node) for node in step.cluster.nodes]
        self.ops: dict[str, list[float]] = {node.name: [] for node in step.cluster.nodes}
        self.fused: list[float] = []
        self.sync: list[float] = []

    def __call__(self, values: list[Any], bindings: dict[Any, Any]) -> Sequence[Any]:
        native = dict(zip(self.step.cluster.inputs, map(as_torch, values), strict=True))
        for operation in self.operations:
            given = [native.get(node) for node in operation.inputs]
            started = time.perf_counter()
            (native[operation.node],) = operation(given, bindings)
            self.ops[operation.node.name].append(time.perf_counter() - started)
        del native
        marks = [time.perf_counter()]
        brought = self.step.bring(values, bindings)
        if brought is None:  # it has no executable yet
            return self.step.natively(values, bindings, self.step.policy.cause)
        compiled, arrays = brought
        marks.append(time.perf_counter())
        results = self.step.run(compiled, arrays)
        for array in results:
            array.block_until_ready()
        marks.append(time.perf_counter())
        given = self.step.give(compiled, results)
        for result, handed in zip(given, self.handed, strict=True):
            if handed:
                as_torch(result)
        marks.append(time.perf_counter())
        self.fused.append(marks[2] - marks[1])
        self.sync.append(marks[1] - marks[0] + marks[3] - marks[2])
        return given

    def cost(self) -> ClusterCost:
        """Return the medians, the first run left out."""

        def median(samples: list[float]) -> float:
            return statistics.median(samples[1:] or samples)

        compiled = self.step.compiled
        return ClusterCost(
            self.step.cluster.name,
            Terms(sum(map(median, self.ops.values())), median(self.fused), median(self.sync)),
            compiled.scratch_bytes if compiled else 0,
        )


class _Replayed:
    """Stands in for any step, giving what it gave last time: all but the work."""

    def __init__(self, step: Step):
        self.step = step
        self.kept: Sequence[Any] | None = None

    def __call__(self, values: list[Any], bindings: dict[Any, Any]) -> Sequence[Any]:
        if self.kept is None:
            self.kept = self.step(values, bindings)
        return self.kept


def measure(call: Callable[[], Any], plans: Sequence[Plan], repeats: int = 5) -> Costs:
    """Return what a call costs: each of its clusters, and all that goes on around them.

    `call` is made `repeats` times and once before, twice over: with the plans' cluster steps under
    a clock, then with every step replaced by its last result.

    Args:
        call: runs the compiled program, and so the plans.
        plans: the plans, as events GraphBuilt and GraphRecut tell them.
        repeats: runs to take the median of.

    Raises:
        ToolError: `call` ran none of the plans' clusters.
    """
    timed: list[_Timed] = []

    def clocked(step: Step, plan: Plan) -> Step:
        if not isinstance(step, ClusterStep):
            return step
        timed.append(_Timed(step, plan))
        return timed[-1]

    with _replacing(plans, clocked):
        for _ in range(repeats + 1):
            call()
    ran = [step for step in timed if step.fused]
    if not ran:
        raise ToolError("no cluster ran", hint="pass the plans of the program that `call` runs")
    with _replacing(plans, lambda step, _: _Replayed(step)):
        around = alternate({"call": call}, repeats)["call"]
    return Costs([step.cost() for step in ran], statistics.median(around))


@contextlib.contextmanager
def _replacing(plans: Sequence[Plan], replacement: Callable[[Step, Plan], Step]) -> Iterator[None]:
    """Run plans with other steps inside the block."""
    before = [(plan, plan.instructions) for plan in plans]
    try:
        for plan, instructions in before:
            plan.instructions = [
                dataclasses.replace(i, step=replacement(i.step, plan)) for i in instructions
            ]
        yield
    finally:
        for plan, instructions in before:
            plan.instructions = instructions


def alternate(contenders: dict[str, Callable[[], Any]], repeats: int = 7) -> dict[str, list[float]]:
    """Time contenders in turn, A B A B, so that a drift of the machine meets all alike.

    Each is called once before, unmeasured. Returns seconds per call for each.
    """
    for call in contenders.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return seconds
