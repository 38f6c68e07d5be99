"""`torch_xla.debug.metrics`, usually imported as `met`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch_galley
from torch_galley.compat import report
from torch_galley.compat.finder import missing
from torch_galley.compat.report import metric_data, metric_names
from torch_galley.observe.metrics import clear_counters
from torch_galley.observe.metrics import clear_samples as clear_metrics

__all__ = ["clear_counters", "clear_metrics", "metric_data", "metric_names"]


def metrics_report() -> str:
    """Return every metric and counter, in torch_xla's layout."""
    return report.report()


def short_metrics_report(
    counter_names: Iterable[str] | None = None, metric_names: Iterable[str] | None = None
) -> str:
    """Return the metrics and counters named, by default those that matter most."""
    names = ("CompileTime", "ExecuteTime") if metric_names is None else metric_names
    counters = ("CachedCompile", "MarkStep") if counter_names is None else counter_names
    return report.report(set(names), {*counters, *executed_fallback_ops()})


def clear_all() -> None:
    """Set all metrics and counters to zero."""
    torch_galley.reset_metrics()


def counter_names() -> list[str]:
    """Return the names of the counters that are not zero."""
    return list(report.counters())


def counter_value(name: str) -> int | None:
    """Return a counter's value, None for one that isn't there."""
    return report.counters().get(name)


def executed_fallback_ops() -> list[str]:
    """Return the operators that ran outside XLA."""
    return [name for name in report.counters() if "::" in name]


def __getattr__(name: str) -> Any:
    missing(__name__, name)
