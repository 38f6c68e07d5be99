"""metrics_report() in torch_xla's layout, and the seed's count of round trips."""

from __future__ import annotations

import math
import re

import pytest
import torch

import torch_galley
from torch_galley.compat import report
from torch_galley.core.events import Flushed, NativeExecuted, emit
from torch_galley.observe import metrics

BLOCK = re.compile(
    r"Metric: \w+\n"
    r"  TotalSamples: \d+\n"
    r"  Accumulator: \S+\n"
    r"(?:  ValueRate: \S+ / second\n  Rate: \S+ / second\n)?"
    r"  Percentiles: (?:\d+%=\S+; ){8}99%=\S+\n"
    r"|Counter: \S+\n  Value: \d+\n"
)


def test_layout() -> None:
    xla = torch_galley.device()
    torch_galley.sync()
    torch_galley.reset_metrics()
    for _ in range(3):
        x = torch.ones(4, 4, device=xla)
        (torch.relu(x @ x) * 2 + x).sum().item()
    torch.ones(3, device=xla).nonzero()
    text = report.report()
    assert "".join(match[0] for match in BLOCK.finditer(text)) == text
    found = report.counters()
    assert found["UncachedCompile"] == torch_galley.metrics()["compiles"]
    assert found["CachedCompile"] >= 2
    assert found["MarkStep"] == torch_galley.metrics()["flushes"]
    assert found["aten::nonzero"] == 1
    for name in ("CompileTime", "ExecuteTime", "TensorsGraphSize", "FusedOps", "Fusions"):
        assert f"Metric: {name}\n" in text
        count, total, recent = report.metric_data(name)  # type: ignore[misc]
        assert count == len(recent)
        assert total == pytest.approx(sum(value for _, value in recent))
    only = report.report({"CompileTime"}, {"MarkStep"})
    assert re.findall(r"^(?:Metric|Counter): (\w+)", only, re.M) == ["CompileTime", "MarkStep"]


def test_percentiles_are_those_of_the_samples() -> None:
    torch_galley.reset_metrics()
    for nodes in range(100, 0, -1):
        emit(Flushed("sync", nodes))
    text = report.report()
    assert "Metric: TensorsGraphSize\n  TotalSamples: 100\n  Accumulator: 5050.00\n" in text
    assert "  Percentiles: 1%=2.00; 5%=6.00; 10%=11.00; 20%=21.00; 50%=51.00; 80%=81.00" in text
    assert text.split("99%=")[1].startswith("100.00\n")


def test_samples_are_bounded_and_totals_are_not() -> None:
    torch_galley.reset_metrics()
    for _ in range(3000):
        emit(Flushed("sync", 2))
    kept = metrics.samples("flushed_nodes")
    assert (kept.count, kept.total, len(kept.recent)) == (3000, 6000, 1024)


def test_clearing_one_keeps_the_other() -> None:
    torch_galley.reset_metrics()
    emit(Flushed("sync", 2))
    emit(NativeExecuted(1, torch.ops.aten.nonzero.default))
    metrics.clear_samples()
    assert report.metric_names() == []
    assert report.metric_data("TensorsGraphSize") is None
    assert report.counters()["aten::nonzero"] == 1
    emit(Flushed("sync", 2))
    metrics.clear_counters()
    assert report.counters() == {}
    assert report.metric_names() == ["TensorsGraphSize"]


@pytest.mark.parametrize(("operations", "batch"), [(12, 4), (13, 4), (3, 8)])
def test_round_trips(operations: int, batch: int) -> None:
    """R_eager = N against R_xla = ceil(N / B), the seed's formula."""
    x = torch.zeros(()).to(torch_galley.device())
    torch_galley.sync()
    torch_galley.reset_metrics()
    for number in range(1, operations + 1):
        x = x + 1
        if number % batch == 0:
            torch_galley.sync()
    assert x.item() == operations
    found = report.counters()
    assert found["RoundTripsEager"] == operations
    assert found["RoundTripsXla"] == math.ceil(operations / batch)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "000.000us"),
        (0.0012345678, "001ms234.568us"),
        (31.573487494, "31s573ms487.494us"),
        (75.0, "01m15s000ms000.000us"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text
