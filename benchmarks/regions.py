"""Planted regions, natively and as a cluster: how good is the model's keep-or-drop decision?

    python -m benchmarks.regions [--only PATTERN] [--again] [--rates shipped] [--render]

Each region is run both ways in turn, as a plan would run it, border included. Every region's times
are written at once, and those that are there are not taken again, unless --again or --only says
so; forecasts are made anew each time, from the rates in force (`galley calibrate`). Run it on a
machine that does nothing else. The exit code is 1 if the model costs more than 5 % in the median.

Writes docs/regions.json and docs/regions.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.planted import REGIONS, Region
from torch_galley.capture.fx import PARAMETER, Captured
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.judge import forecast
from torch_galley.cluster.operation import effective
from torch_galley.cluster.rates import Rates, in_force
from torch_galley.cluster.terms import Terms
from torch_galley.core.config import Config, current
from torch_galley.core.machine import machine
from torch_galley.ops.decompose import decompositions
from torch_galley.pipeline import build, settle
from torch_galley.run.execute import Plan
from torch_galley.run.measured import in_turn, medians
from torch_galley.run.native import NativeCluster

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "regions.json", DOCS / "regions.md"
LIMIT = 1.05
"""What the model may cost in the median, as a multiple of the best choice."""
SECONDS = 1.0
"""What timing one region may take."""


def main() -> int:
    """Run what was asked for; return 1 if the model costs too much in the median."""
    parser = argparse.ArgumentParser(prog="benchmarks.regions", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", help="regions by name, such as 'softmax*'")
    parser.add_argument("--again", action="store_true", help="time those that were timed already")
    parser.add_argument("--render", action="store_true", help="time nothing")
    parser.add_argument("--rates", choices=("force", "shipped"), default="force")
    args = parser.parse_args()
    chosen = [r.name for r in REGIONS if fnmatch.fnmatch(r.name, args.only or "*")]
    if not chosen:
        parser.error(f"no region {args.only!r}; there are {', '.join(r.name for r in REGIONS)}")
    rates, origin = (Rates(), "shipped") if args.rates == "shipped" else in_force(current())
    times = json.loads(JSON.read_text("utf-8"))["times"] if JSON.exists() else {}
    rows = []
    again = args.again or args.only is not None
    for region in REGIONS:
        known = region.name in times
        due = region.name in chosen and not args.render and (again or not known)
        if not (due or known):
            continue
        inputs, captured = _captured(region)
        if due:
            times[region.name] = _timed(region.name, captured, inputs)
            shown = (f"{name} {1e6 * took:.1f} µs" for name, took in times[region.name].items())
            print(f"{region.name}: {', '.join(shown)}", flush=True)
            _write(rows, times, origin)
        rows.append(_row(region, captured, times[region.name], rates))
    _write(rows, times, origin)
    median = statistics.median(row["cost"] for row in rows) if rows else 1.0
    print(f"{len(rows)} regions; the model costs {median:.3f} of the best choice in the median")
    return int(median > LIMIT)


def _captured(region: Region) -> tuple[list[torch.Tensor], Captured]:
    """Return a region's inputs and its graph, not cut yet."""
    torch.manual_seed(0)
    function, inputs = region.make()
    traced = make_fx(function, decompositions(), tracing_mode="fake")
    graph = traced(*(tensor.detach() for tensor in inputs))
    places = (node for node in graph.graph.nodes if node.op == "placeholder")
    for node, tensor in zip(places, inputs, strict=True):
        node.meta[PARAMETER] = isinstance(tensor, torch.nn.Parameter)
    return inputs, Captured(graph, "inference", Config(min_cluster_size=1, strict=True))


def _one(clustered: Clustered, name: str) -> Any:
    if len(clustered.clusters) != 1 or clustered.native:
        why = "\n".join(f"  {node}: {reason}" for node, reason in clustered.native.items())
        raise SystemExit(f"region {name} is not one cluster:\n{clustered.text()}\n{why}")
    return clustered.clusters[0]


def _timed(name: str, captured: Captured, inputs: list[torch.Tensor]) -> dict[str, float]:
    plan = build(captured)
    assert isinstance(plan, Plan)
    cluster = _one(plan.clustered, name)
    places = (node for node in captured.graph.graph.nodes if node.op == "placeholder")
    given = dict(zip(places, inputs, strict=True))
    values = [given[node] for node in cluster.inputs]
    native, step = NativeCluster(cluster), plan.instructions[0].step
    with torch.no_grad():
        wanted, found = native(values, {}), list(step(values, {}))
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(other, one, atol=2e-2, rtol=2e-2, equal_nan=True)
        calls = {"native": lambda: native(values, {}), "cluster": lambda: step(values, {})}
        return medians(in_turn(calls, time.perf_counter, SECONDS))


def _row(
    region: Region, captured: Captured, seconds: dict[str, float], rates: Rates
) -> dict[str, Any]:
    def judged(clustered: Clustered) -> tuple[Terms, int]:
        cluster = _one(clustered, region.name)
        return forecast(clustered, cluster, rates), sum(map(effective, cluster.nodes))

    told, operations = settle(captured, judged)
    kept = told.speedup >= captured.config.min_speedup
    took = seconds["cluster" if kept else "native"]
    return {
        "name": region.name,
        "kind": region.kind,
        "operations": operations,
        "native": seconds["native"],
        "cluster": seconds["cluster"],
        "speedup": seconds["native"] / seconds["cluster"],
        "predicted": told.to_json(),
        "kept": kept,
        "doubtful": told.doubtful,
        "cost": took / min(seconds.values()),
    }


def _write(rows: list[dict[str, Any]], times: dict[str, Any], origin: str) -> None:
    data = {"machine": machine(), "rates": origin, "times": times, "rows": rows}
    JSON.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    if rows:
        PAGE.write_text(_page(rows, origin), "utf-8")


def _page(rows: list[dict[str, Any]], origin: str) -> str:
    costs = [row["cost"] for row in rows]
    misses = sorted((row for row in rows if row["cost"] > LIMIT), key=lambda row: -row["cost"])
    beyond = [row for row in misses if not row["doubtful"]]
    right = sum(row["cost"] <= LIMIT for row in rows)
    clusters = [row["cluster"] / min(row["native"], row["cluster"]) for row in rows]
    native = [row["native"] / min(row["native"], row["cluster"]) for row in rows]
    lines = [
        "# Regions",
        "",
        f"Written by `make regions` ({machine()}; rates: {origin}).",
        "",
        f"{len(rows)} planted regions, each timed natively and as a cluster, border included.",
        "The cost of a decision is the time of what it keeps, over that of the faster.",
        "",
        "| decision | median cost | mean cost | within 5 % of the best |",
        "|---|---|---|---|",
        _summary("the model's", costs),
        _summary("all in XLA", clusters),
        _summary("all natively", native),
        "",
        f"The model is within 5 % for {right} of {len(rows)}; of its {len(misses)} misses",
        f'{len(misses) - len(beyond)} are in doubt, so that `decide="measure"` would time them.',
        "",
        "## Misses",
        "",
        *_table(misses),
        "",
        "## All",
        "",
        *_table(rows),
    ]
    return "\n".join(lines) + "\n"


def _summary(name: str, costs: list[float]) -> str:
    near = sum(cost <= LIMIT for cost in costs)
    return (
        f"| {name} | {statistics.median(costs):.3f} | {statistics.mean(costs):.3f} "
        f"| {near} of {len(costs)} |"
    )


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| region | ops | native µs | cluster µs | S | predicted S | kept | in doubt | cost |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['operations']} | {1e6 * row['native']:.1f} "
        f"| {1e6 * row['cluster']:.1f} | {row['speedup']:.2f} "
        f"| {row['predicted']['speedup']:.2f} | {'yes' if row['kept'] else 'no'} "
        f"| {'yes' if row['doubtful'] else 'no'} | {row['cost']:.2f} |"
        for row in rows
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
