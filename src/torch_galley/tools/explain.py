"""What of a model goes into XLA, what does not, and why."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.terms import Terms
from torch_galley.compile.client import compile, has_device
from torch_galley.core.errors import ToolError
from torch_galley.core.events import Event, GraphBuilt, GraphRecut, listen
from torch_galley.lower.driver import Argument, Lowered, lower
from torch_galley.lower.symbol import cluster_symbols, first_seen
from torch_galley.pipeline import settle
from torch_galley.run.execute import Plan
from torch_galley.tools.measure import measure
from torch_galley.tools.report import build
from torch_galley.tools.report.model import Break, Compilation
from torch_galley.tools.report.optimised import compilation
from torch_galley.tools.report.others import of_graph
from torch_galley.tools.report.report import Report
from torch_galley.tools.watch import watch


def explain(
    function: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Report:
    """Return what torch.compile(function, backend="galley") would do for these arguments.

    Example: `print(torch_galley.explain(model, inputs))`

    Calls `function` once, natively; see Note [What watching does to a program] in tools.watch.
    Gradients are not computed, but the backward graph that would compute them is explained too.
    Clusters of static shape are lowered, so that an operator whose lowering fails shows as native.

    A torch.fx.GraphModule without arguments is not called: its graph is cut as it is, and where
    it has no fake values, names are all there is to go by; the report then says what it can't know.

    Args:
        function: a function or an nn.Module, compiled or not.
        args: what to call it with.
        options: settings, as torch.compile takes them. A keyword argument of `function` of the
            same name can't be given: wrap it in a lambda.
        kwargs: what to call it with.

    Raises:
        ConfigError: an unknown setting.
        LoweringError: a lowering failed, and the setting `strict` is on.
        ToolError: `function` can't be called.
    """
    return told(function, args, kwargs, options, compiled=False, measured=False)


def report(
    function: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    measured: bool = False,
    **kwargs: Any,
) -> Report:
    """Return what `explain` does, and what XLA makes of each cluster.

    Example: `print(torch_galley.report(model, inputs))`

    Args:
        function: a function or an nn.Module, compiled or not.
        args: what to call it with.
        options: settings, as torch.compile takes them.
        measured: also compile the program and call it a dozen times, to measure the speed-up of
            each cluster that runs in a call: those of backward graphs do not.
        kwargs: what to call it with.

    Raises:
        ConfigError: an unknown setting.
        LoweringError: a lowering failed, and the setting `strict` is on.
        CompileError: XLA refused a cluster.
        ToolError: `function` can't be called.
    """
    return told(function, args, kwargs, options, compiled=True, measured=measured)


def told(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    *,
    compiled: bool,
    measured: bool,
) -> Report:
    """Return the report of a call; see `explain` and `report`."""
    if isinstance(function, fx.GraphModule) and not args and not kwargs:
        return of_graph(function, options)
    seen = watch(function, args, kwargs, options)
    terms = _measured(function, args, kwargs, options) if measured else {}
    graphs = []
    for captured in seen.graphs:
        clustered, lowered = settle(captured, _lowered)
        made: dict[str, Compilation] = {}
        if compiled:
            made = {one.name: compilation(compile(one)) for one in lowered}
        graphs.append(build.graph(clustered, has_device, made, terms))
    breaks = tuple(Break(one.reason, one.headline, one.site) for one in seen.breaks)
    return Report(seen.name, tuple(graphs), breaks)


def _lowered(clustered: Clustered) -> tuple[Clustered, list[Lowered]]:
    """Lower all clusters, for the sizes of this call; not those with sizes that depend on data."""
    known = first_seen(clustered.captured.graph.graph.nodes)
    found = []
    for cluster in clustered.clusters:
        symbols = cluster_symbols(cluster)
        if symbols <= set(known):
            bindings = {symbol: known[symbol] for symbol in symbols}
            arguments = [Argument.of(node, bindings) for node in cluster.inputs]
            found.append(lower(cluster, arguments, bindings, clustered.captured.config))
    return clustered, found


def _measured(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Any
) -> dict[str, Terms]:
    """Return the terms of S of each cluster that runs in a call, by name."""
    plans: list[Plan] = []

    def seen(event: Event) -> None:
        if isinstance(event, GraphRecut):
            plans[:] = [plan for plan in plans if plan.clustered is not event.before]
        if isinstance(event, GraphBuilt | GraphRecut) and event.plan not in plans:
            plans.append(event.plan)

    program = torch.compile(function, backend="galley", options=dict(options or {}))
    stop = listen(seen)
    try:
        program(*args, **kwargs)
    finally:
        stop()
    if not any(plan.clustered.clusters for plan in plans):
        return {}
    try:
        costs = measure(lambda: program(*args, **kwargs), plans)
    except ToolError as error:
        warnings.warn(f"not measured: {error.message}", stacklevel=4)
        return {}
    return {c.name: c.terms for c in costs.clusters}
