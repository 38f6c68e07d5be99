"""capture -> cluster -> lower -> compile -> run: the only file that names all the stages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

from torch_galley.capture.body import graphs_of
from torch_galley.capture.effects import drop_unread, untie_checks
from torch_galley.capture.fx import Captured
from torch_galley.capture.loop import carry_tensors
from torch_galley.capture.outputs import replay_views
from torch_galley.capture.strided import rebase_as_strided
from torch_galley.cluster.candidate import unknown_names
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.partition import partition
from torch_galley.compile.client import has_device
from torch_galley.core.errors import LoweringError
from torch_galley.core.events import GraphBuilt, Warned, emit
from torch_galley.core.reasons import LoweringFailed, Reason
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import cluster_symbols, first_seen
from torch_galley.run.decide import decider
from torch_galley.run.execute import Plan
from torch_galley.run.measured import Execute, fastest_way

Result = TypeVar("Result")


def build(captured: Captured) -> Execute:
    """Turn a captured graph into a plan that can be called with a list of inputs.

    With compile="now", clusters are compiled at once, so that a lowering that fails is found before
    the first run: its node then runs natively, with a warning (or an error under `strict`).

    With decide="measure", what is returned finds out at its first call how to run the graph.
    """
    config = captured.config

    def planned(clustered: Clustered) -> Plan:
        plan = Plan(clustered, _recut)
        if not config.dry_run and (config.compile == "now" or clustered.undecided):
            _compile_first(plan)
        return plan

    plan = settle(captured, planned)
    emit(GraphBuilt(plan))
    if config.decide == "size":
        return plan
    return fastest_way(plan, lambda old: _lowerable(captured, old.failed, planned))


def settle(captured: Captured, use: Callable[[Clustered], Result]) -> Result:
    """Return what `use` makes of the partition, a node whose lowering fails in it made native.

    Example: `settle(captured, lambda clustered: clustered)` only cuts.

    Raises:
        LoweringError: a lowering failed, and the setting `strict` is on.
    """
    carry_tensors(captured.graph.graph)
    for graph in graphs_of(captured.graph):
        rebase_as_strided(graph)
        untie_checks(graph)
        drop_unread(graph)
    replay_views(captured)
    for message in unknown_names(captured):
        emit(Warned(message))
        warnings.warn(message, stacklevel=3)
    return _lowerable(captured, {}, use)


def _lowerable(
    captured: Captured, failed: Mapping[str, Reason], use: Callable[[Clustered], Result]
) -> Result:
    while True:
        try:
            return use(_cut(captured, failed))
        except LoweringError as error:
            failed = _with_failure(captured, failed, error)


def _with_failure(
    captured: Captured, failed: Mapping[str, Reason], error: LoweringError
) -> Mapping[str, Reason]:
    """Return `failed` with the node that could not be lowered, and tell.

    Raises:
        LoweringError: under `strict`, and where the lowering is the user's own: that is not
            something we don't support but a mistake, which it would not help to hide.
    """
    if captured.config.strict or error.facts.get("users") or error.facts["node"] in failed:
        raise error
    message = f"{error.facts['op']} runs natively: {error}"
    emit(Warned(message))
    warnings.warn(message, stacklevel=4)
    return {**failed, error.facts["node"]: LoweringFailed(error.facts["op"], error.message)}


def _recut(clustered: Clustered, error: LoweringError | None) -> Clustered:
    captured, failed = clustered.captured, clustered.failed
    return _cut(captured, _with_failure(captured, failed, error) if error else failed)


def _cut(captured: Captured, failed: Mapping[str, Reason]) -> Clustered:
    return partition(captured, has_device, failed, decider(captured.config))


def _compile_first(plan: Plan) -> None:
    """Compile every cluster for the sizes that capture saw, which the first call brings.

    A cluster whose sizes depend on data waits for them.
    """
    known = first_seen(plan.clustered.captured.graph.graph.nodes)
    for step in plan.cluster_steps:
        symbols = cluster_symbols(step.cluster)
        if symbols <= set(known):
            bindings = {symbol: known[symbol] for symbol in symbols}
            arguments = tuple(Argument.of(node, bindings) for node in step.cluster.inputs)
            step.policy.make(arguments, bindings)
