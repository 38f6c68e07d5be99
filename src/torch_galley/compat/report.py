"""The counters in torch_xla's words and layout, as `torch_xla.debug.metrics` gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch_galley.observe.metrics import Samples, metrics, native_operators, samples


@dataclass(frozen=True)
class _Metric:
    name: str
    ours: str
    seconds: bool = False


_METRICS = (
    _Metric("CompileTime", "compile_seconds", seconds=True),
    _Metric("TensorsGraphSize", "flushed_nodes"),
    _Metric("FusedOps", "fused_ops"),
    _Metric("Fusions", "fusions"),
    _Metric("ExecuteTime", "execute_seconds", seconds=True),
    _Metric("LoweringTime", "lower_seconds", seconds=True),
)
"""FusedOps, Fusions and LoweringTime are torch-galley's own: the operations in XLA's fusions, the
fusions, one sample for each compilation, and the time from a graph to StableHLO."""

_PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)


def counters() -> dict[str, int]:
    """Return the counters that are not zero, by torch_xla's names; "aten::" ones ran natively.

    RoundTripsEager and RoundTripsXla are how often Python and the device meet: R_eager = N, once
    for each recorded operation, and R_xla = ceil(N / B), once for each graph of B operations.
    """
    ours = metrics()
    found = {
        "CachedCompile": max(0, ours["graph_runs"] - ours["graphs"]),
        "UncachedCompile": ours["compiles"],
        "MarkStep": ours["flushes"],
        "RoundTripsEager": ours["flushed_nodes"],
        "RoundTripsXla": ours["flushes"],
    }
    shown = {name: int(value) for name, value in found.items() if value}
    return shown | dict(sorted(native_operators().items()))


def metric_names() -> list[str]:
    """Return the names of the metrics that have samples."""
    return [metric.name for metric in _METRICS if samples(metric.ours).count]


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Return count, sum and the latest (time, value) of a metric; times in nanoseconds."""
    for metric in _METRICS:
        found = samples(metric.ours)
        if metric.name == name and found.count:
            scale = 1e9 if metric.seconds else 1.0
            recent = [(when * 1e9, value * scale) for when, value in found.recent]
            return found.count, found.total * scale, recent
    return None


def report(
    metric_names: Iterable[str] | None = None, counter_names: Iterable[str] | None = None
) -> str:
    """Return a block for each metric and counter, or for those named."""
    blocks = [
        _block(metric, samples(metric.ours))
        for metric in _METRICS
        if metric_names is None or metric.name in metric_names
    ]
    blocks += [
        f"Counter: {name}\n  Value: {value}\n"
        for name, value in counters().items()
        if counter_names is None or name in counter_names
    ]
    return "".join(blocks)


def _block(metric: _Metric, found: Samples) -> str:
    if not found.count:
        return ""
    shown: Callable[[float], str] = duration if metric.seconds else "{:.2f}".format
    lines = [
        f"Metric: {metric.name}",
        f"  TotalSamples: {found.count}",
        f"  Accumulator: {shown(found.total)}",
    ]
    span = found.recent[-1][0] - found.recent[0][0]
    if span > 0:
        added = sum(value for _, value in found.recent)
        lines.append(f"  ValueRate: {shown(added / span)} / second")
        lines.append(f"  Rate: {len(found.recent) / span:.6g} / second")
    values = sorted(value for _, value in found.recent)
    marks = [f"{p}%={shown(values[p * len(values) // 100])}" for p in _PERCENTILES]
    lines.append(f"  Percentiles: {'; '.join(marks)}")
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    """Return a time as torch_xla writes it.

    Example:
        >>> duration(0.226137620), duration(75.5), duration(6.378e-6)
        ('226ms137.620us', '01m15s500ms000.000us', '006.378us')
    """
    nanoseconds = round(seconds * 1e9)
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    whole, rest = divmod(rest, 1_000_000_000)
    thousandths, rest = divmod(rest, 1_000_000)
    parts = [(f"{minutes:02}m", minutes), (f"{whole:02}s", whole)]
    parts.append((f"{thousandths:03}ms", thousandths))
    while parts and not parts[0][1]:
        parts.pop(0)
    return "".join(text for text, _ in parts) + f"{rest / 1000:07.3f}us"
