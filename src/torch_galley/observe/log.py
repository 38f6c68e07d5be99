"""XLA_DEBUG=1: a line on stderr for each stage, as it happens.

The variable is read while graphs are built, because scripts set it after their imports.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torch_galley.core import events
from torch_galley.core.events import Event, listen
from torch_galley.core.site import Site, site_of
from torch_galley.core.words import counted
from torch_galley.observe.metrics import fusions


def line(event: Event) -> str | None:
    """Return what the log says of an event, None for nothing."""
    match event:
        case events.GraphBuilt(plan=plan):
            return f"record   {_cut(plan.clustered)}"
        case events.GraphRecut(plan=plan):
            return f"cut      {_cut(plan.clustered)}"
        case events.ClusterLowered(lowered=lowered, seconds=seconds):
            count = len(lowered.cluster.nodes)
            place = _at(lowered.first_site)
            return f"lower    {lowered.name}: {counted(count, 'operation')}, {_ms(seconds)}{place}"
        case events.ClusterCompiled(compiled=compiled, seconds=seconds):
            count = fusions(compiled.hlo())
            lowered = compiled.lowered
            place = _at(lowered.first_site)
            return f"compile  {lowered.name}: {count} fusions, {_ms(seconds)}{place}"
        case events.CacheHit():
            return "compile  found in memory"
        case events.PlanExecuted(plan=plan, seconds=seconds):
            found = plan.clustered
            shown = ", ".join(cluster.name for cluster in found.clusters) or "no cluster"
            outside = (
                f", {counted(len(plan.native_operators), 'operation')} outside XLA"
                if plan.native_operators
                else ""
            )
            return f"run      {shown}{outside}: {_ms(seconds)}{_first(found)}"
        case events.NativeExecuted(count=count, op=op):
            return f"run      {op or counted(count, 'operation')} outside XLA"
        case events.ClusterRanNatively(cluster=cluster, cause=cause):
            return f"run      {cluster.name} outside XLA: {_CAUSES[cause]}"
        case events.RecompilesStopped(cluster=cluster, compiles=compiles):
            return f"compile  {cluster.name}: {compiles} shapes, no more"
        case events.Flushed(cause=cause, nodes=nodes, site=site, seconds=seconds):
            return f"flush    {cause}: {counted(nodes, 'operation')}, {_ms(seconds)}{_at(site)}"
        case _:
            return None


_CAUSES = {
    "compiling": "being compiled",
    "rare": "its shapes have not come often enough",
    "limit": "too many shapes",
    "failed": "a lowering failed",
    "wrapped": "an input has no memory of its own",
    "tangent": "an input has a tangent",
}


def _cut(found: Any) -> str:
    return (
        f"graph {found.captured.fingerprint}: {counted(found.operations, 'operation')}, "
        f"{counted(len(found.clusters), 'cluster')}, {len(found.native)} native{_first(found)}"
    )


def _at(site: Site | None) -> str:
    return f" at {site}" if site else ""


def _first(found: Any) -> str:
    """Return the place of a graph's first operation that has one."""
    nodes = found.captured.graph.graph.nodes
    return next((_at(site) for node in nodes if (site := site_of(node.meta))), "")


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
