"""XLA_DEBUG=1: a line on stderr for each stage, as it happens.

The variable is read while graphs are built, because scripts set it after their imports.
"""

from __future__ import annotations

import os
import sys

from torch_galley.core import events
from torch_galley.core.events import Event, listen
from torch_galley.observe.metrics import fusions


def line(event: Event) -> str | None:
    """Return what the log says of an event, None for nothing."""
    match event:
        case events.GraphBuilt(plan=plan):
            found = plan.clustered
            return (
                f"record   graph {found.captured.fingerprint}: {found.operations} operations, "
                f"{len(found.clusters)} clusters, {len(found.native)} native"
            )
        case events.ClusterLowered(lowered=lowered, seconds=seconds):
            count = len(lowered.cluster.nodes)
            return f"lower    {lowered.name}: {count} operations, {_ms(seconds)}"
        case events.ClusterCompiled(compiled=compiled, seconds=seconds):
            count = fusions(compiled.hlo())
            return f"compile  {compiled.lowered.name}: {count} fusions, {_ms(seconds)}"
        case events.CacheHit():
            return "compile  found in memory"
        case events.PlanExecuted(plan=plan, seconds=seconds):
            names = [cluster.name for cluster in plan.clustered.clusters]
            shown = ", ".join(names) or "no cluster"
            outside = f", {plan.natives} operations outside XLA" if plan.natives else ""
            return f"run      {shown}{outside}: {_ms(seconds)}"
        case events.NativeExecuted(count=count):
            return f"run      {count} operations outside XLA"
        case events.Flushed(cause=cause, nodes=nodes, site=site, seconds=seconds):
            place = f" at {site}" if site else ""
            return f"flush    {cause}: {nodes} operations, {_ms(seconds)}{place}"
        case _:
            return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


_on = False


def _on_event(event: Event) -> None:
    global _on
    if not isinstance(event, events.PlanExecuted):  # the one event that must cost next to nothing
        _on = os.environ.get("XLA_DEBUG", "0") not in ("", "0")
    if _on and (text := line(event)) is not None:
        print(f"[galley] {text}", file=sys.stderr)


listen(_on_event)
