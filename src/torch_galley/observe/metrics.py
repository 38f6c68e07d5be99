"""Counters of what was done, as plain numbers."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from dataclasses import dataclass

from torch_galley.core import events
from torch_galley.core.events import Event, listen


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
    Metric("fusions", "fusions in the optimised HLO"),
    Metric("cache_hits", "clusters that found their executable in memory"),
    Metric("executions", "cluster executions"),
    Metric("native_ops", "operator calls outside XLA, by our plans or by the lazy device"),
    Metric("flushes", "times the lazy device ran what it had recorded"),
    Metric("flushed_nodes", "operations run by those"),
    Metric("flush_seconds", "time they took, compilation included"),
    Metric("warnings", "warnings shown"),
)
"""All counters, in the order in which a report shows them."""

_lock = threading.Lock()
_values: defaultdict[str, float] = defaultdict(int)


def _of(event: Event) -> dict[str, float]:
    """Return what an event adds to the counters."""
    match event:
        case events.NativeExecuted(count=count):
            return {"native_ops": count}
        case events.CacheHit():
            return {"cache_hits": 1}
        case events.Flushed(nodes=nodes, seconds=seconds):
            return {"flushes": 1, "flushed_nodes": nodes, "flush_seconds": seconds}
        case events.GraphBuilt(plan=plan):
            return {
                "graphs": 1,
                "graph_nodes": plan.clustered.operations,
                "clusters": len(plan.clustered.clusters),
                "clustered_nodes": plan.clustered.clustered_operations,
            }
        case events.ClusterLowered(seconds=seconds):
            return {"lowerings": 1, "lower_seconds": seconds}
        case events.ClusterCompiled(compiled=compiled, seconds=seconds):
            hlo = compiled.hlo()
            return {"compiles": 1, "fusions": fusions(hlo), "compile_seconds": seconds}
        case events.Warned():
            return {"warnings": 1}
        case _:
            return {}


def _on_event(event: Event) -> None:
    if type(event) is events.PlanExecuted:  # the one event that must cost next to nothing
        with _lock:
            _values["executions"] += event.plan.executions
            _values["native_ops"] += event.plan.natives
        return
    added = _of(event)
    with _lock:
        for name, by in added.items():
            _values[name] += by


def fusions(hlo: str) -> int:
    """Return how many fusion instructions optimised HLO text has.

    Example:
        >>> fusions("  a = f32[2] fusion(b), kind=kLoop")
        1
    """
    return len(re.findall(r" fusion\(", hlo))


listen(_on_event)


def metrics() -> dict[str, float]:
    """Return all counters since the process or `reset_metrics()` began. Times are in seconds.

    Example:
        >>> reset_metrics(); metrics()["compiles"]
        0
    """
    with _lock:
        return {metric.name: _values.get(metric.name, 0) for metric in METRICS}


def reset_metrics() -> None:
    """Set all counters to zero."""
    with _lock:
        _values.clear()


def metrics_report() -> str:
    """Return the counters as a table, each with a sentence of meaning."""
    lines = []
    for metric in METRICS:
        value = metrics()[metric.name]
        shown = f"{value:.3f} s" if metric.name.endswith("_seconds") else f"{value:.0f}"
        lines.append(f"{metric.name:<16} {shown:>12}  {metric.meaning}")
    return "\n".join(lines)
