"""Counters of what was done, as plain numbers."""

from __future__ import annotations

import re
import threading
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
_values: dict[str, float] = {}


def _count(name: str, by: float = 1) -> None:
    with _lock:
        _values[name] = _values.get(name, 0) + by


def _on_event(event: Event) -> None:
    match event:
        case events.GraphBuilt(plan=plan):
            _count("graphs")
            _count("graph_nodes", plan.clustered.operations)
            _count("clusters", len(plan.clustered.clusters))
            _count("clustered_nodes", plan.clustered.clustered_operations)
        case events.ClusterLowered(seconds=seconds):
            _count("lowerings")
            _count("lower_seconds", seconds)
        case events.ClusterCompiled(compiled=compiled, seconds=seconds):
            _count("compiles")
            _count("fusions", fusions(compiled.hlo()))
            _count("compile_seconds", seconds)
        case events.CacheHit():
            _count("cache_hits")
        case events.ClustersExecuted(count=count):
            _count("executions", count)
        case events.NativeExecuted(count=count):
            _count("native_ops", count)
        case events.Flushed(nodes=nodes, seconds=seconds):
            _count("flushes")
            _count("flushed_nodes", nodes)
            _count("flush_seconds", seconds)
        case events.Warned():
            _count("warnings")
        case _:
            pass


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
