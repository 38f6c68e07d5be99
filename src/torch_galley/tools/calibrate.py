"""Measures in a few seconds what things take here: the rates by which clusters are judged.

Each probe is a small program run both ways, in turn: its operations natively, step by step, and as
a cluster, each as a plan would run it. What is known already (a call, a tensor handed over) is
taken off, and the rest is divided by the probe's units of work. Of the samples of each, the lower
quartile counts: other work on the machine only ever adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_galley.capture.fx import Captured
from torch_galley.cluster.rates import MEANING, Rates, calibrated, notes
from torch_galley.core.config import Config, current
from torch_galley.core.errors import ToolError
from torch_galley.core.machine import machine
from torch_galley.pipeline import build
from torch_galley.run.execute import Plan
from torch_galley.run.native import NativeCluster

Clock = Callable[[], float]
_LEAST = 1e-14
"""Nothing takes no time: a difference below the clock's noise counts as this."""


@dataclass(frozen=True)
class Calibration:
    """What was measured, and where it is kept."""

    machine: str
    rates: Rates
    file: str
    problem: str | None
    """What was wrong with what had been kept before, or why this could not be kept."""
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return vars(self) | {"rates": self.rates.to_json()}


@dataclass(frozen=True)
class Probe:
    """A program that does much of one kind of work."""

    kind: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    units: float
    """How much of it."""


def calibrate(config: Config | None = None) -> Calibration:
    """Measure the rates of this machine's CPU and keep them in a file of the user's cache folder.

    Example: `calibrate().rates.call`
    """
    config = config or current()
    _, problem = calibrated(config)
    rates = measured()
    file, kept = notes(config), True
    try:
        file.add({machine(): rates.to_json()})
    except ToolError as error:
        problem, kept = str(error), False
    return Calibration(machine(), rates, str(file.path), problem, kept)


def measured(clock: Clock = time.perf_counter, seconds: float = 0.02) -> Rates:
    """Return what things take on this machine.

    Args:
        clock: what tells the time.
        seconds: how long each program is run.
    """
    generator = torch.Generator().manual_seed(0)

    def timed(probe: Probe) -> tuple[float, float]:
        return _both(probe, clock, seconds)

    small = torch.ones(8)
    native, one = timed(Probe("", lambda x: (x.neg(),), (small,), 1))
    _, nine_in = timed(Probe("", lambda *xs: (sum(xs[1:], xs[0]),), (small,) * 9, 1))
    _, nine_out = timed(Probe("", lambda x: tuple(x + i for i in range(9)), (small,), 1))
    bring = max((nine_in - one) / 8, _LEAST)
    square = torch.rand(8, 8, generator=generator)
    _, products = timed(Probe("", _products(16), (square,), 1))
    _, product = timed(Probe("", _products(1), (square,), 1))
    kernel = max((products - product) / 15, _LEAST)
    take = max((nine_out - one) / 8 - kernel, _LEAST)  # each result is a kernel of its own
    call = max(one - bring - take, _LEAST)
    work: dict[str, tuple[float, float]] = {}
    for probe in _probes(generator):
        natively, in_xla = timed(probe)
        border = call + bring * len(probe.inputs) + take
        pair = (natively - native * _PROBE_OPERATIONS.get(probe.kind, 1), in_xla - border)
        work[probe.kind] = (
            max(pair[0] / probe.units, _LEAST),
            max(pair[1] / probe.units, _LEAST),
        )
    work["element"] = (_LEAST, work["element"][1])  # natively, it is in reading and writing
    return Rates(call, kernel, bring, take, native, work)


_PROBE_OPERATIONS = {"element": 32, "special": 3}


def _products(count: int) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        for _ in range(count):
            x = x @ x
        return (x,)

    return function


def _chain(x: torch.Tensor) -> Any:
    for _ in range(16):
        x = torch.maximum(x * x, x)
    return (x,)


def _probes(generator: torch.Generator) -> list[Probe]:
    """Return a probe for each kind of work."""

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    near, far, some = random(32, 1024), random(4096, 1024), random(16, 1024)
    left = random(384, 384)
    image, kernel = random(1, 64, 28, 28), random(64, 64, 3, 3)
    table, places = random(8192, 64), torch.randint(8192, (4096,), generator=generator)
    rows = random(4096, 64)
    return [
        Probe("near", lambda x: (x + 1,), (near,), 2 * near.nbytes),
        Probe("far", lambda x: (x + 1,), (far,), 2 * far.nbytes),
        Probe("element", _chain, (some,), 32 * some.numel()),
        Probe("special", lambda x: (x.exp().tanh().erf(),), (near,), 3 * near.numel()),
        Probe("product", lambda x: (x @ x,), (left,), 2 * 384**3),
        Probe("half", lambda x: (x @ x,), (left.bfloat16(),), 2 * 384**3),
        Probe(
            "convolution",
            lambda x, w: (torch.nn.functional.conv2d(x, w, padding=1),),
            (image, kernel),
            2 * 28**2 * 64 * 64 * 9,
        ),
        Probe(
            "grouped",
            lambda x, w: (torch.nn.functional.conv2d(x, w, padding=1, groups=64),),
            (image, kernel[:, :1].contiguous()),
            2 * 28**2 * 64 * 9,
        ),
        Probe("sort", lambda x: torch.sort(x), (near,), near.numel()),
        Probe(
            "gather", lambda t, i: (torch.ops.aten.embedding(t, i),), (table, places), rows.numel()
        ),
        Probe(
            "scatter", lambda t, i, r: (t.index_add(0, i, r),), (table, places, rows), rows.numel()
        ),
        Probe("scan", lambda x: (x.cumsum(1),), (some,), some.numel()),
    ]


def _both(probe: Probe, clock: Clock, seconds: float) -> tuple[float, float]:
    """Return what a probe takes natively and as a cluster, run in turn."""
    plan = _plan(probe)
    (cluster,) = plan.clustered.clusters
    natively, step = NativeCluster(cluster), plan.instructions[0].step
    graph = plan.clustered.captured.graph.graph
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    given = dict(zip(inputs, probe.inputs, strict=True))
    values = [given[node] for node in cluster.inputs]
    with torch.no_grad():
        calls = [lambda: natively(values, {}), lambda: step(values, {})]
        samples = [[_sample(call, clock, seconds / 10)] for call in calls]  # a warm-up
        started = clock()
        while len(samples[0]) < 4 or clock() - started < seconds:
            for call, found in zip(calls, samples, strict=True):
                found.append(_sample(call, clock, seconds / 10))
            if len(samples[0]) >= 12:
                break
    first, second = (statistics.quantiles(found[1:], n=4)[0] for found in samples)
    return first, second


def _sample(call: Callable[[], Any], clock: Clock, seconds: float) -> float:
    """Return what a call takes, over so many that a clock's tick does not matter."""
    count, spent = 0, 0.0
    while count < 64 and spent < seconds:
        started = clock()
        for _ in range(4):
            call()
        spent += clock() - started
        count += 4
    return spent / count


def _plan(probe: Probe) -> Plan:
    config = Config(min_cluster_size=1, strict=True)
    graph = make_fx(probe.function, tracing_mode="fake")(*probe.inputs)
    plan = build(Captured(graph, "inference", config))
    assert isinstance(plan, Plan)  # decide="size" measures nothing
    return plan


def table(rates: Rates) -> list[tuple[str, str, str, str]]:
    """Return the rates for people: a name, natively, in XLA, and what is measured.

    Example:
        >>> table(Rates())[0]
        ('call', '', '3.0 µs', 'a run of an executable, its inputs and results apart')
    """
    plain = [
        (f.name, f"{1e6 * getattr(rates, f.name):.1f} µs", f.metadata["doc"])
        for f in fields(rates)
        if f.name != "work"
    ]
    rows = [(n, v if n == "native" else "", "" if n == "native" else v, d) for n, v, d in plain]
    for kind, (natively, in_xla) in rates.work.items():
        shown = _SHOWN.get(kind, lambda second: f"{1e9 * second:.2f} ns")
        first = "" if natively <= _LEAST else shown(natively)
        rows.append((kind, first, shown(in_xla), MEANING[kind]))
    return rows


def _giga(unit: str) -> Callable[[float], str]:
    return lambda second: f"{1e-9 / second:.1f} {unit}"


_SHOWN = {kind: _giga("GB/s") for kind in ("near", "far")} | {
    kind: _giga("GFLOP/s") for kind in ("product", "half", "convolution", "grouped")
}
