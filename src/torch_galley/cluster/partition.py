"""Captured -> Clustered: candidates with Reasons, contraction, size rule, borders, names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from torch import fx

from torch_galley.capture.fx import Captured
from torch_galley.cluster.assemble import assembled
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.candidate import candidates, groups, scopes
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.contract import UNLIMITED, Limits
from torch_galley.cluster.cut import Problem, cut, joined, spread
from torch_galley.cluster.dag import Dag
from torch_galley.cluster.dissolve import dissolve_small, dissolve_unsound
from torch_galley.cluster.group import settled
from torch_galley.cluster.judge import Choice, by_model, reasons_against
from torch_galley.cluster.rates import Rates, in_force
from torch_galley.cluster.refine import cloned, pruned, trimmed
from torch_galley.cluster.support import HasDevice, name_of
from torch_galley.core.config import Config
from torch_galley.core.errors import ClusterError
from torch_galley.core.reasons import (
    CheaperOutside,
    Constant,
    GroupNative,
    Reason,
    Seed,
    SharedMemory,
)
from torch_galley.core.site import site_of

Decide = Callable[[Clustered, Rates], tuple[Choice, ...]]
"""Decides of each cluster of a graph whether it is kept, given what things take."""


def partition(
    captured: Captured,
    has_device: HasDevice,
    failed: Mapping[str, Reason] | None = None,
    decide: Decide | None = None,
    assumed: Collection[str] = (),
) -> Clustered:
    """Cut a graph into clusters.

    Args:
        captured: the graph.
        has_device: whether jax has the counterpart of a torch device.
        failed: nodes, by name, that must stay native because lowering them failed.
        decide: what to ask about clusters where the setting `decide` is more than "size"; the
            model alone if None.
        assumed: nodes, by name, that are cut as if XLA could take them: for a report of what
            each costs that it can't. The result can't be lowered.

    Raises:
        ConfigError: a setting names an operator that there is not.
        ClusterError: the setting `require_full` is on, and something would run natively.
    """
    failed = failed or {}
    config = captured.config
    rates, origin = (Rates(), "shipped") if config.decide == "size" else in_force(config)
    atoms = Atoms.of(captured.graph.graph)
    first = [nodes[0] for nodes in atoms.members]
    reasons = candidates(first, config, has_device, failed)
    reasons = [
        None if n.name in assumed else reason for n, reason in zip(first, reasons, strict=True)
    ]
    if config.require_full and any(map(_counts, reasons)):
        raise _not_full(first, reasons)
    supported = [reason is None for reason in reasons]
    limits = Limits(atoms.devices(), scopes(first, config), config.max_cluster_size or None)
    full = all(reason is None or isinstance(reason, Seed) for reason in reasons)
    if full and limits == UNLIMITED:
        # Nothing runs between the parts of a graph that XLA takes whole (a seed is drawn before
        # all), so separate executables would only add calls. (With native operations about,
        # joining parts that no edge joins could make one wait for what only the other needs.)
        whole = [v for v, taken in enumerate(supported) if taken]
        kept, clones = [whole] if whole else [], []
        dissolve_small(kept, first, reasons, config)
    else:
        constant = atoms.constants(supported)
        dag = atoms.dag.without_edges_from(constant)
        ours = [s and not c for s, c in zip(supported, constant, strict=True)]
        together = _together(atoms, dag, first, ours, reasons, config)
        problem = Problem(dag, ours, atoms.tensors, limits, config.search_budget)
        if together:
            problem, parts = joined(problem, together)
            kept = spread(cut(problem, config.order, config.horizontal, rates), parts)
        else:
            kept = cut(problem, config.order, config.horizontal, rates)
        free = [mine and not any(v in group for group in together) for v, mine in enumerate(ours)]
        dissolve_small(kept, first, reasons, config)
        if config.refine and len(kept) > 1:
            kept = trimmed(atoms.tensors, kept, atoms.views(free), rates)
            for v in set(range(len(first))).difference(*kept):
                if ours[v] and reasons[v] is None:
                    reasons[v] = CheaperOutside(name_of(first[v].target))
        for v, node in enumerate(first):
            if constant[v]:
                reasons[v] = Constant(name_of(node.target))
        clones = cloned(
            atoms.tensors,
            kept,
            atoms.cheap(free) if config.refine and len(kept) > 1 else constant,
            constant,
            rates,
        )
        kept, clones = pruned(kept, clones, atoms.dag.successors, atoms.results)
    dissolve_unsound(atoms, kept, clones, reasons)
    clustered, names = assembled(captured, atoms, kept, clones, reasons, failed)
    if config.decide == "size" or config.require_full:
        return clustered
    choices = decide(clustered, rates) if decide else by_model(clustered, rates, config.min_speedup)
    why = reasons_against(choices, names)
    if why:
        # What is left keeps its name. That makes no cycle: in whatever order the clusters could
        # run, their operations can, too.
        for number, name in enumerate(names):
            for v in (*kept[number], *(clones[number] if clones else ())) if name in why else ():
                reasons[v] = reasons[v] or why[name]
        left = [number for number, name in enumerate(names) if name not in why]
        kept, clones = [kept[n] for n in left], [clones[n] for n in left] if clones else []
        names = [names[n] for n in left]
        clustered, _ = assembled(captured, atoms, kept, clones, reasons, failed, names)
    return replace(clustered, choices=choices, rates=origin)


def _together(
    atoms: Atoms,
    dag: Dag,
    nodes: Sequence[fx.Node],
    ours: list[bool],
    reasons: list[Reason | None],
    config: Config,
) -> list[set[int]]:
    """Return the groups that the user wants, as far as they can be; the others become native."""
    if not config.groups:
        return []
    # What is made anew wherever it is read is with every group that reads it.
    anywhere = [reason is None and not mine for reason, mine in zip(reasons, ours, strict=True)]
    wanted = [[v for v in group if not anywhere[v]] for group in groups(nodes, config)]
    devices = atoms.devices()
    found, native = settled(wanted, dag, ours, lambda v: devices[v] if devices else None)
    for v in native:
        if reasons[v] is None:
            reasons[v], ours[v] = GroupNative(name_of(nodes[v].target)), False
    return [set(group) for group in found]


def _counts(reason: Reason | None) -> bool:
    """Whether it is work that `require_full` wants in XLA: to show memory or take a seed isn't."""
    return reason is not None and not isinstance(reason, SharedMemory | Seed)


def _not_full(nodes: Sequence[fx.Node], reasons: Sequence[Reason | None]) -> ClusterError:
    lines = [
        f"  {node.name}: {reason}" + (f" at {site}" if (site := site_of(node.meta)) else "")
        for node, reason in zip(nodes, reasons, strict=True)
        if reason is not None and _counts(reason)
    ]
    message = f"{len(lines)} of {len(nodes)} operations would run natively:"
    return ClusterError("\n".join([message, *lines]), hint="turn require_full off to run them so")
