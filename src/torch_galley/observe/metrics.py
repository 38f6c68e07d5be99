"""Counters of what was done, as plain numbers."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from torch_galley.core import events
from torch_galley.core.events import Event, listen
from torch_galley.core.lock import fork_safe_lock
from torch_galley.observe import syncs


@dataclass(frozen=True)
class Metric:
    """A counter and what it means."""

    name: str
    meaning: str


METRICS = (
    Metric("graphs", "captured graphs made into plans"),
    Metric("graph_nodes", "operations in those graphs"),
    Metric("clusters", "XLA clusters cut out of them"),
    Metric("clustered_nodes", "operations in those clusters"),
    Metric("lowerings", "clusters turned into StableHLO"),
    Metric("lower_seconds", "time that took"),
    Metric("compiles", "XLA compilations"),
    Metric("compile_seconds", "time they took"),
    Metric("background_compiles", "of those compilations, in the background"),
    Metric("recompile_stops", "clusters that are compiled for no further shapes"),
    Metric("fusions", "fusions in the optimised HLO"),
    Metric("fused_ops", "operations in those fusions"),
    Metric("cache_hits", "clusters that found their executable in memory"),
    Metric("graph_runs", "times a plan was run"),
    Metric("executions", "cluster executions, those outside XLA included"),
    Metric("native_clusters", "of those, outside XLA: there was no executable for it"),
    Metric("native_clusters_compiling", "because it was being compiled in the background"),
    Metric("native_clusters_rare", "because its shapes had not come often enough"),
    Metric("native_clusters_limit", "because there were too many shapes"),
    Metric("native_clusters_failed", "because a lowering failed"),
    Metric("native_clusters_wrapped", "because an input had no memory of its own, as under vmap"),
    Metric("native_clusters_tangent", "because an input had a forward-mode tangent"),
    Metric("execute_seconds", "time that graphs ran, their native operations included"),
    Metric("native_ops", "operator calls outside XLA, by our plans or by the lazy device"),
    Metric("flushes", "times the lazy device ran what it had recorded"),
    Metric("flushes_sync", "of those, because the program asked for it"),
    Metric("flushes_read", "because a value was read: printed, .item(), .cpu(), in an if"),
    Metric("flushes_native", "because an operator that can't be recorded needed a value"),
    Metric("flushes_limit", "because too much was recorded"),
    Metric("flushes_mode", "because the mode runs each operation at once"),
    Metric("flushes_jit", "because jit began to trace or run a step"),
    Metric("flushed_nodes", "operations run by those"),
    Metric("flush_seconds", "time they took, compilation included"),
    Metric("warnings", "warnings shown"),
)
"""All counters, in the order in which a report shows them."""

SAMPLED = (
    "lower_seconds",
    "compile_seconds",
    "execute_seconds",
    "fusions",
    "fused_ops",
    "flushed_nodes",
)
"""The counters whose single additions are kept as well, the latest of them."""
_KEPT = 1024


@dataclass
class Samples:
    """What was added to a counter, one by one."""

    count: int = 0
    total: float = 0.0
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """When (time.time()) and how much, the latest of all."""


_lock = fork_safe_lock()
_values: defaultdict[str, float] = defaultdict(int)
_samples: defaultdict[str, Samples] = defaultdict(Samples)
_native: Counter[str] = Counter()
_runs: deque[tuple[int, tuple[Any, ...], float, float]] = deque()
"""Runs of plans that are not in the counters yet: executables, native operators, seconds, when.
What a run costs is part of every call, so it is only noted then, and counted later."""


def _of(event: Event) -> dict[str, float]:
    """Return what an event adds to the counters."""
    match event:
        case events.NativeExecuted(count=count):
            return {"native_ops": count}
        case events.CacheHit():
            return {"cache_hits": 1}
        case events.Flushed(cause=cause, nodes=nodes, seconds=seconds):
            name = f"flushes_{'mode' if cause in ('eager', 'blocking') else cause}"
            return {"flushes": 1, name: 1, "flushed_nodes": nodes, "flush_seconds": seconds}
        case events.GraphBuilt(plan=plan):
            return {
                "graphs": 1,
                "graph_nodes": plan.clustered.operations,
                **_cut(plan.clustered),
            }
        case events.GraphRecut(plan=plan, before=before):
            now, then = _cut(plan.clustered), _cut(before)
            return {name: now[name] - then[name] for name in now}
        case events.ClusterLowered(seconds=seconds):
            return {"lowerings": 1, "lower_seconds": seconds}
        case events.ClusterCompiled(compiled=compiled, seconds=seconds, background=background):
            hlo = compiled.hlo()
            return {
                "compiles": 1,
                "background_compiles": background,
                "fusions": fusions(hlo),
                "fused_ops": fused_operations(hlo),
                "compile_seconds": seconds,
            }
        case events.ClusterRanNatively(operators=ops, cause=cause):
            return {
                "native_clusters": 1,
                f"native_clusters_{cause}": 1,
                "native_ops": len(ops),
            }
        case events.RecompilesStopped():
            return {"recompile_stops": 1}
        case events.Warned():
            return {"warnings": 1}
        case _:
            return {}


def _cut(clustered: Any) -> dict[str, float]:
    return {
        "clusters": len(clustered.clusters),
        "clustered_nodes": clustered.clustered_operations,
    }


def _name(op: Any) -> str:
    schema = getattr(op, "_schema", None)
    return schema.name if schema is not None else getattr(op, "__name__", str(op))


def _on_event(event: Event) -> None:
    if type(event) is events.PlanExecuted:
        plan = event.plan
        _runs.append((plan.executions, plan.native_operators, event.seconds, time.time()))
        if len(_runs) >= _KEPT:
            with _lock:
                _count_runs()
        return
    added, now = _of(event), time.time()
    with _lock:
        for name, by in added.items():
            _add(name, by, now)
        if isinstance(event, events.NativeExecuted) and event.op is not None:
            _native[_name(event.op)] += event.count
        elif isinstance(event, events.ClusterRanNatively):
            _native.update(map(_name, event.operators))


def _add(name: str, by: float, now: float) -> None:
    _values[name] = max(0, _values[name] + by)  # a reset may lie between a cut and the next
    if name in SAMPLED:
        samples = _samples[name]
        samples.count, samples.total = samples.count + 1, samples.total + by
        samples.recent.append((now, by))


def _count_runs() -> None:
    """Bring the counters up to date. The caller holds the lock."""
    while _runs:
        executions, operators, seconds, now = _runs.popleft()
        _values["graph_runs"] += 1
        _values["executions"] += executions
        _values["native_ops"] += len(operators)
        _native.update(map(_name, operators))
        _add("execute_seconds", seconds, now)


def fusions(hlo: str) -> int:
    """Return how many fusion instructions optimised HLO text has.

    Example:
        >>> fusions("  a = f32[2] fusion(b), kind=kLoop")
        1
    """
    return len(re.findall(r" fusion\(", hlo))


_COMPUTATION = re.compile(r"^%?([\w.\-]+) \(.*\{\n((?:  .*\n)*)", re.M)


def fused_operations(hlo: str) -> int:
    """Return how many operations the fusions of optimised HLO text have inside.

    Example:
        >>> fused_operations(
        ...     "%f (p: f32[2]) -> f32[2] {\\n"
        ...     "  %p = f32[2] parameter(0)\\n"
        ...     "  ROOT %n = f32[2] negate(%p)\\n"
        ...     "}\\n"
        ...     "ENTRY %e (a: f32[2]) -> f32[2] {\\n"
        ...     "  ROOT %r = f32[2] fusion(%a), kind=kLoop, calls=%f\\n"
        ...     "}\\n"
        ... )
        1
    """
    called = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", hlo))
    return sum(
        sum(" parameter(" not in line for line in body.splitlines())
        for name, body in _COMPUTATION.findall(hlo)
        if name in called
    )


listen(_on_event)


def metrics() -> dict[str, float]:
    """Return all counters since the process or `reset_metrics()` began. Times are in seconds.

    Example:
        >>> reset_metrics(); metrics()["compiles"]
        0
    """
    with _lock:
        _count_runs()
        return {metric.name: _values.get(metric.name, 0) for metric in METRICS}


def samples(name: str) -> Samples:
    """Return the single additions to a counter of SAMPLED.

    Example:
        >>> reset_metrics(); samples("compile_seconds").count
        0
    """
    with _lock:
        _count_runs()
        found = _samples[name]
        return Samples(found.count, found.total, found.recent.copy())


def native_operators() -> dict[str, int]:
    """Return how often each operator ran outside XLA, by its name, such as "aten::nonzero"."""
    with _lock:
        _count_runs()
        return dict(_native)


def reset_metrics() -> None:
    """Set all counters to zero."""
    clear_counters()
    clear_samples()


def clear_counters() -> None:
    """Set the counters to zero, and keep the samples."""
    with _lock:
        _count_runs()
        _values.clear()
        _native.clear()
    syncs.reset()


def clear_samples() -> None:
    """Forget the samples, and keep the counters."""
    with _lock:
        _count_runs()
        _samples.clear()


def metrics_report() -> str:
    """Return the counters as a table, each with a sentence of meaning."""
    lines = []
    for metric in METRICS:
        value = metrics()[metric.name]
        shown = f"{value:.3f} s" if metric.name.endswith("_seconds") else f"{value:.0f}"
        lines.append(f"{metric.name:<16} {shown:>12}  {metric.meaning}")
    return "\n".join([*lines, *syncs.lines()])
