"""What a clustered graph costs, term by term: S = ΣT_op / (T_fused + T_sync).

ΣT_op runs each operation of a cluster natively, one by one. T_fused is the cluster's executable.
T_sync is what the border costs around it: bringing tensors in, looking up the executable, handing
results back to torch. All times are medians over repeated runs, in seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch import fx

from torch_galley.cluster.partition import XlaCluster
from torch_galley.lower.symbol import bind
from torch_galley.run.execute import Plan
from torch_galley.run.step import ClusterStep, NativeStep, value_as_torch


@dataclass(frozen=True)
class ClusterCost:
    """The terms of one cluster's speed-up, in seconds."""

    name: str
    t_ops: float
    """ΣT_op: its operations run natively one by one."""
    t_fused: float
    """T_fused: its executable, alone."""
    t_sync: float
    """T_sync: everything else that running it as a cluster costs."""
    temporary_bytes: int
    """XLA's scratch memory for it."""

    @property
    def speedup(self) -> float:
        """S of the seed: ΣT_op / (T_fused + T_sync)."""
        return self.t_ops / (self.t_fused + self.t_sync)


@dataclass
class _Samples:
    ops: dict[str, list[float]] = field(default_factory=dict)
    fused: list[float] = field(default_factory=list)
    sync: list[float] = field(default_factory=list)


def measure(plan: Plan, inputs: Sequence[Any], repeats: int = 5) -> list[ClusterCost]:
    """Return the cost of each cluster of a plan, run on `inputs` `repeats` times and once before.

    The plan's own inputs: for a graph from torch.compile these are its parameters, buffers and
    arguments in Dynamo's order. Nothing of the caller's is written.
    """
    samples = {cluster.name: _Samples() for cluster in plan.clustered.clusters}
    with torch.no_grad():
        for repeat in range(repeats + 1):
            _run(plan, inputs, samples if repeat else {})
    return [_cost(plan, cluster, samples[cluster.name]) for cluster in plan.clustered.clusters]


def _run(plan: Plan, inputs: Sequence[Any], samples: dict[str, _Samples]) -> None:
    """Run the plan's steps once, adding to `samples`."""
    env, bindings = plan.bind(inputs)
    clustered = {node for cluster in plan.clustered.clusters for node in cluster.nodes}
    for step in plan.steps:
        if isinstance(step, ClusterStep):
            taken = samples.get(step.cluster.name)
            native = {n: value_as_torch(n, dict(env), bindings) for n in step.cluster.inputs}
            _time_operations(step.cluster, native, bindings, taken)
            _time_cluster(step, env, bindings, clustered, taken)
        else:
            step(env, bindings)
            bind(step.node.meta.get("val"), env[step.node], bindings)


def _time_operations(
    cluster: XlaCluster, env: dict[fx.Node, Any], bindings: dict[Any, Any], taken: _Samples | None
) -> None:
    for node in cluster.nodes:
        started = time.perf_counter()
        NativeStep(node, False, ())(env, bindings)
        if taken is not None:
            taken.ops.setdefault(node.name, []).append(time.perf_counter() - started)


def _time_cluster(
    step: ClusterStep,
    env: dict[fx.Node, Any],
    bindings: dict[Any, Any],
    clustered: set[fx.Node],
    taken: _Samples | None,
) -> None:
    clock = time.perf_counter
    marks = [clock()]
    compiled, arrays = step.bring(env, bindings)
    marks.append(clock())
    results = jax.block_until_ready(step.run(compiled, arrays))
    marks.append(clock())
    step.leave(env, compiled, results)
    for node in step.cluster.outputs:
        if not clustered.issuperset(node.users):  # else it stays on the device
            value_as_torch(node, env, bindings)
    marks.append(clock())
    if taken is not None:
        taken.fused.append(marks[2] - marks[1])
        taken.sync.append(marks[1] - marks[0] + marks[3] - marks[2])


def _cost(plan: Plan, cluster: XlaCluster, taken: _Samples) -> ClusterCost:
    step = next(s for s in plan.steps if isinstance(s, ClusterStep) and s.cluster is cluster)
    analysis = step.compiled.stage.memory_analysis() if step.compiled else None
    return ClusterCost(
        cluster.name,
        sum(map(statistics.median, taken.ops.values())),
        statistics.median(taken.fused),
        statistics.median(taken.sync),
        getattr(analysis, "temp_size_in_bytes", 0),
    )


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
