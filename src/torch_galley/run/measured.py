"""A plan that finds out at its first call what is fastest, and stays with it.

First the regions in doubt: each is timed as a cluster and natively where it stands in the plan, on
the values that have come there. Then, if that is in doubt, the whole graph: with the clusters that
are left, natively, and by inductor if the user allows it. The first call's result is that of its
first run; the others are thrown away, and nothing with an effect is run for the sake of time.
They run without dispatch modes: AOTAutograd has one around each first call, a check in Python that
would make native operators seem slow, and a mode of the user's has no business with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_galley.capture.fx import Captured
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.judge import Choice, crossing
from torch_galley.cluster.support import draws
from torch_galley.compile import client
from torch_galley.core.events import Decided, GraphRecut, PlanExecuted, emit
from torch_galley.run.buffer import has_tangent, is_wrapper
from torch_galley.run.decide import decision
from torch_galley.run.decisions import Decision, Decisions
from torch_galley.run.device import OnDevice, as_tensor, as_torch
from torch_galley.run.execute import Plan
from torch_galley.run.inductor import by_inductor
from torch_galley.run.native import NativeCluster
from torch_galley.run.step import ClusterStep, Step

SECONDS = 4.0
"""What timing the regions of a graph may take in all, and timing the whole; each contender gets at
least a warm-up and one run."""
ROUNDS = 7
"""Timed runs of each contender, at most."""
_SAMPLE = 2e-4
"""A sample is of so many runs that it takes this long."""
_LONG = 0.05
"""Runs of this many seconds need no warm-up before each sample."""

Clock = Callable[[], float]
Execute = Callable[[list[Any]], Sequence[Any]]


Remake = Callable[[Clustered], Plan]
"""Makes a plan anew when more has been decided, for the graph that is cut so now."""


def fastest_way(plan: Plan, remake: Remake) -> Execute:
    """Return what runs a plan's graph: the plan, eager if it has no clusters, or a Measured.

    Args:
        plan: for the choices that are known.
        remake: makes the plan anew when more have been made.
    """
    clustered = plan.clustered
    waits = clustered.undecided or any(one.kept == "inductor" for one in clustered.choices)
    return Measured(plan, remake) if waits else _settled(plan, None)


class Measured:
    """Runs a plan, having found out at its first call what is the fastest way to do so.

    Safe to call from several threads: all but the first wait for the decision.
    """

    def __init__(self, plan: Plan, remake: Remake, clock: Clock = time.perf_counter):
        self.plan = plan
        """What is run, or would be if the graph as a whole were not run otherwise."""
        self._remake = remake
        self._clock = clock
        self._deciding = threading.Lock()
        self._run: Execute | None = None

    @property
    def clustered(self) -> Clustered:
        """The partition in force."""
        return self.plan.clustered

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if (run := self._run) is not None:
            return run(inputs)
        if client.forked or self.clustered.captured.config.dry_run:
            return self.plan(inputs)
        if any(is_wrapper(value) or has_tangent(value) for value in inputs):  # nothing to compare
            return self.plan(inputs)
        with self._deciding:
            if self._run is None:
                return self._decide(inputs)
        return self._run(inputs)

    def _decide(self, inputs: list[Any]) -> Sequence[Any]:
        """Run once, and find out how to run from then on."""
        given = list(inputs)
        config = self.clustered.captured.config
        decisions = Decisions.of(config)
        results, found = self._regions(inputs)
        if found:
            decisions.add(found)
            self._adopt()
        inductor: Execute | None = None
        whole = _whole(self.clustered)
        if whole is not None and (whole.by == "undecided" or whole.kept == "inductor"):
            if config.native == "inductor":
                graph = self.clustered.captured.graph
                with _draws_undone(graph.graph):
                    inductor = by_inductor(graph, given, self.plan)
            if whole.by == "undecided" and whole.key is not None:
                seconds = self._contend(given, inductor)
                failed = ["inductor"] if config.native == "inductor" and inductor is None else []
                decisions.add({whole.key: decision(self.clustered, None, seconds, failed)})
                self._adopt()
        self._run = _settled(self.plan, inductor)
        emit(Decided(self.plan, self.clustered.choices))
        return results

    def _adopt(self) -> None:
        """Cut the graph by what is decided now."""
        before = self.clustered
        self.plan = self._remake(before)
        emit(GraphRecut(self.plan, before))

    def _regions(self, inputs: list[Any]) -> tuple[Sequence[Any], dict[str, Decision]]:
        """Run the plan, timing the regions in doubt where they stand; return what was decided."""
        plan, clustered = self.plan, self.clustered
        keys = {c.name: c.key for c in clustered.choices if c.by == "undecided" and c.key}
        share = SECONDS / max(len(keys), 1)
        contests: list[_Contest] = []

        def contested(step: Step) -> Step:
            if not (isinstance(step, ClusterStep) and step.cluster.name in keys):
                return step
            contests.append(_Contest(step, clustered, self._clock, share))
            return contests[-1]

        before = plan.instructions
        during = [dataclasses.replace(i, step=contested(i.step)) for i in before]
        with plan.compiling_at_once():  # or the native stand-in would be timed
            plan.instructions = during
            try:
                results = plan(inputs)
            finally:
                if plan.instructions is during:  # else a lowering failed, and it was cut anew
                    plan.instructions = before
        found = {}
        for contest in contests:
            cluster = contest.step.cluster
            if contest.seconds and (key := keys[cluster.name]):
                found[key] = decision(clustered, cluster, contest.seconds)
        return results, found

    def _contend(self, given: Sequence[Any], inductor: Execute | None) -> dict[str, float]:
        """Time the whole graph by each that could run it."""
        captured = self.clustered.captured
        ways: dict[str, Execute] = {"clusters": self.plan, "eager": Eager(captured, self.plan)}
        if inductor is not None:
            ways["inductor"] = inductor
        calls = {name: lambda way=way: way(list(given)) for name, way in ways.items()}
        quiet = _draws_undone(captured.graph.graph)
        with self.plan.compiling_at_once(), quiet, _disable_current_modes():
            return medians(in_turn(calls, self._clock, SECONDS))


def _whole(clustered: Clustered) -> Choice | None:
    return next((choice for choice in clustered.choices if choice.name == "graph"), None)


def _settled(plan: Plan, inductor: Execute | None) -> Execute:
    """Return what runs from now on."""
    whole = _whole(plan.clustered)
    if whole is not None and whole.kept == "inductor" and inductor is not None:
        return inductor
    if not plan.clustered.clusters:
        return Eager(plan.clustered.captured, plan)
    return plan


class Eager:
    """Runs a captured graph natively, as one function: with less between operators than a plan."""

    def __init__(self, captured: Captured, plan: Plan):
        captured.graph.recompile()  # later stages have rewritten the graph
        self._forward = captured.graph.forward
        self._plan = plan

    def __call__(self, inputs: list[Any]) -> list[Any]:
        started = time.perf_counter()
        given = list(inputs)
        inputs.clear()
        results = list(self._forward(*given))
        emit(PlanExecuted(self._plan, time.perf_counter() - started))
        return results


class _Contest:
    """Stands in for a cluster's step once: gives its results, and times it against its operations.

    A cluster is pure, so that running it again changes nothing. Either way is timed with its
    border: what comes from other clusters has to be handed to torch, what goes there handed over.
    """

    def __init__(self, step: ClusterStep, clustered: Clustered, clock: Clock, seconds: float):
        self.step = step
        self.seconds: dict[str, float] = {}
        _, taken = crossing(clustered, step.cluster)
        self._taken = [node in taken for node in step.cluster.outputs]
        self._clock = clock
        self._budget = seconds

    def __call__(self, values: list[Any], bindings: dict[Any, Any]) -> Sequence[Any]:
        results = self.step(values, bindings)
        if self.step.compiled is None:  # it can't be lowered, and ran natively
            return results
        native = NativeCluster(self.step.cluster)

        def cluster() -> None:
            for value, taken in zip(self.step(values, bindings), self._taken, strict=True):
                if taken:
                    as_torch(value)
                elif isinstance(value, OnDevice):
                    value.array.block_until_ready()

        def natively() -> None:
            native([_handed(value) for value in values], bindings)

        calls = {"cluster": cluster, "native": natively}
        with _disable_current_modes():
            self.seconds = medians(in_turn(calls, self._clock, self._budget))
        return results


def _handed(value: Any) -> Any:
    """Return what torch gets for a value, handed over anew where XLA has it."""
    if isinstance(value, OnDevice):
        return as_tensor(value.array, value.argument, value.engine)
    return value


def in_turn(
    calls: Mapping[str, Callable[[], Any]], clock: Clock, seconds: float
) -> dict[str, list[float]]:
    """Time calls in turn, A B B A, each sample after a run of its own that warms it up.

    What one leaves behind (threads that still spin, memory, caches) thus meets no other's sample.
    Long calls go without: it does not matter to them.
    """
    single = {}
    for name, call in calls.items():
        call()
        started = clock()
        call()
        single[name] = max(clock() - started, 1e-9)
    found: dict[str, list[float]] = {name: [] for name in calls}
    begun, order = clock(), list(calls)
    for _ in range(ROUNDS):
        for name in order:
            call, count = calls[name], max(1, min(64, int(_SAMPLE / single[name])))
            if single[name] < _LONG:
                call()
            started = clock()
            for _ in range(count):
                call()
            found[name].append((clock() - started) / count)
        order.reverse()
        if clock() - begun > seconds:
            break
    return found


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each contender's samples.

    Example:
        >>> medians({"a": [1.0, 3.0, 2.0]})
        {'a': 2.0}
    """
    return {name: statistics.median(found) for name, found in samples.items()}


@contextlib.contextmanager
def _draws_undone(graph: fx.Graph) -> Iterator[None]:
    """Leave torch's random numbers as they were, if a graph draws some."""
    if not any(draws(node.target) for node in graph.nodes):
        yield
        return
    with torch.random.fork_rng():
        yield
