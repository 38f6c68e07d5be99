"""capture -> cluster -> lower -> compile -> run: the only file that names all the stages."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from torch_galley.capture.effects import drop_unread, untie_checks
from torch_galley.capture.fx import Captured
from torch_galley.capture.outputs import replay_views
from torch_galley.capture.strided import rebase_as_strided
from torch_galley.cluster.candidate import unknown_names
from torch_galley.cluster.partition import Clustered, XlaCluster, partition
from torch_galley.compile.cache import ExecutableCache
from torch_galley.compile.client import Compiled, compile, has_device
from torch_galley.compile.key import key_of, program_text
from torch_galley.core.config import current
from torch_galley.core.errors import LoweringError
from torch_galley.core.events import GraphBuilt, Warned, emit
from torch_galley.core.reasons import LoweringFailed, Reason
from torch_galley.lower.driver import Argument, lower
from torch_galley.lower.symbol import Bindings, cluster_symbols, first_seen
from torch_galley.run.decide import decider
from torch_galley.run.execute import Plan
from torch_galley.run.measured import Execute, fastest_way

Result = TypeVar("Result")


_making = threading.Lock()


def executables() -> ExecutableCache[Compiled]:
    """The process's executables."""
    with _making:
        return _executables()


@cache
def _executables() -> ExecutableCache[Compiled]:
    return ExecutableCache(current().cache_size)


def build(captured: Captured) -> Execute:
    """Turn a captured graph into a plan that can be called with a list of inputs.

    Clusters are compiled at once, so that a lowering that fails is found before the first run: its
    node then runs natively, with a warning (or an error under `strict`).
    """

    def planned(clustered: Clustered) -> Plan:
        plan = _plan(clustered)
        if not captured.config.dry_run:
            _compile_first(plan)
        return plan

    plan = settle(captured, planned)
    emit(GraphBuilt(plan))
    if captured.config.decide == "size":
        return plan
    failed = plan.clustered.failed
    return fastest_way(plan, lambda: planned(_cut(captured, failed)))


def _cut(captured: Captured, failed: Mapping[str, Reason]) -> Clustered:
    return partition(captured, has_device, failed, decider(captured.config))


def settle(captured: Captured, use: Callable[[Clustered], Result]) -> Result:
    """Return what `use` makes of the partition, a node whose lowering fails in it made native.

    Example: `settle(captured, lambda clustered: clustered)` only cuts.

    Raises:
        LoweringError: a lowering failed, and the setting `strict` is on.
    """
    rebase_as_strided(captured.graph.graph)
    untie_checks(captured.graph.graph)
    drop_unread(captured.graph.graph)
    replay_views(captured)
    for message in unknown_names(captured):
        emit(Warned(message))
        warnings.warn(message, stacklevel=3)
    failed: dict[str, Reason] = {}
    while True:
        try:
            return use(_cut(captured, failed))
        except LoweringError as error:
            if captured.config.strict or error.facts["node"] in failed:
                raise
            failed[error.facts["node"]] = LoweringFailed(error.facts["op"], error.message)
            message = f"{error.facts['op']} runs natively: {error}"
            emit(Warned(message))
            warnings.warn(message, stacklevel=3)


def _plan(clustered: Clustered) -> Plan:
    config = clustered.captured.config
    programs = {c.name: program_text(c) for c in clustered.clusters}

    def executable(
        cluster: XlaCluster, arguments: tuple[Argument, ...], bindings: Bindings
    ) -> Compiled:
        # A dump is part of the key: an executable that is there already would write none.
        settings = (config.check_indices, config.dump_dir)
        key = key_of(programs[cluster.name], arguments, bindings, settings)
        return executables().get(key, lambda: compile(lower(cluster, arguments, bindings, config)))

    return Plan(clustered, executable)


def _compile_first(plan: Plan) -> None:
    """Compile every cluster for the sizes that capture saw, which the first call brings.

    A cluster whose sizes depend on data waits for them.
    """
    clustered = plan.clustered
    known = first_seen(clustered.captured.graph.graph.nodes)
    for cluster in clustered.clusters:
        symbols = cluster_symbols(cluster)
        if symbols <= set(known):
            bindings = {symbol: known[symbol] for symbol in symbols}
            arguments = tuple(Argument.of(node, bindings) for node in cluster.inputs)
            plan.executable(cluster, arguments, bindings)
