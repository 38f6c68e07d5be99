"""Reports of graphs that were not captured here: any torch.fx graph, and the seed's JSON."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from torch_galley.capture.encode import kind_of
from torch_galley.capture.fx import Captured
from torch_galley.cluster import seed
from torch_galley.cluster.blame import SIZES
from torch_galley.cluster.dag import Dag
from torch_galley.cluster.level import unavoidable
from torch_galley.cluster.seed import GraphOp, SeedGraph
from torch_galley.cluster.total import Total
from torch_galley.compile.client import has_device
from torch_galley.core.config import current
from torch_galley.core.errors import ToolError
from torch_galley.core.reasons import NoLowering, TooSmall
from torch_galley.core.site import module_path, site_of
from torch_galley.ops.registry import lookup
from torch_galley.pipeline import settle
from torch_galley.tools.report import build
from torch_galley.tools.report.model import Blame, Cluster, Crossing, Graph, Node
from torch_galley.tools.report.report import Report

MOST_RECUT = 20_000
"""Operations of the largest graph that is cut again for each operator XLA can't take."""


def of_graph(module: fx.GraphModule, options: Mapping[str, Any] | None = None) -> Report:
    """Return the report of a torch.fx graph, without running it.

    A graph of ATen operators with fake values, as torch.export and AOTAutograd make them, is cut
    as torch.compile would. In any other, names are all there is to go by: an operation counts as
    one that XLA can take if ATen has one of its name that it can take, and sizes are known only
    where the graph records them.

    Example: `print(torch_galley.report_graph(torch.fx.symbolic_trace(model)))`

    Raises:
        ConfigError: an unknown setting.
        ToolError: a graph without operations.
    """
    config = current(options)
    name = type(module).__name__
    calls = [n for n in module.graph.nodes if n.op.startswith("call_")]
    if not calls:
        raise ToolError(f"{name} has no operations")
    if all(isinstance(n.target, OpOverload) or n.target is operator.getitem for n in calls) and all(
        "val" in n.meta for n in module.graph.nodes if n.op != "output"
    ):
        # A copy: cutting rewrites the graph.
        copied = fx.Graph()
        results: list[fx.Node] = []  # in whatever structure they are returned
        fx.map_arg(copied.graph_copy(module.graph, {}), results.append)
        copied.output(tuple(results))
        captured = Captured(fx.GraphModule(module, copied), "given", config)
        clustered = settle(captured, lambda it: it)
        return Report(name, (build.graph(clustered, has_device),))
    ops = tuple(
        GraphOp(n.name, _name(module, n), tuple(dict.fromkeys(a.name for a in n.all_input_nodes)))
        for n in calls
    )
    supported = frozenset(op.op_type for op in ops if _is_known(op.op_type))
    told = _cut(SeedGraph(ops, supported, name), "given", config.min_cluster_size)
    return Report(name, (_with_meta(told, module),))


def of_seed(graph: SeedGraph) -> Report:
    """Return the report of a graph of named operations.

    Example: `of_seed(seed.load("graph.json")).text()`

    Raises:
        ClusterError: an empty graph, a duplicate name, a cycle.
    """
    return Report(Path(graph.origin).name, (_cut(graph, "named", 1),))


def _name(module: fx.GraphModule, node: fx.Node) -> str:
    """Return what a node calls, by the name that ATen is likely to have for it."""
    target = node.target
    if node.op == "call_module":
        return type(module.get_submodule(str(target))).__name__
    if isinstance(target, OpOverload):
        return str(target)
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _is_known(name: str) -> bool:
    """Whether XLA can take an operator of ATen of that name, or a module's like it.

    Example: "relu", "aten.mm.default", and the modules' "LayerNorm" and "BatchNorm2d"
    """
    plain = name.removeprefix("aten.").partition(".")[0]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).lower()
    for tried in (plain.lower(), snake, re.sub(r"\dd$", "", snake)):
        packet = getattr(torch.ops.aten, tried, None)
        if isinstance(packet, OpOverloadPacket):
            overloads = [getattr(packet, overload) for overload in packet.overloads()]
            return any(lookup(o) is not None or _is_composite(o) for o in overloads)
    return False


def _is_composite(overload: OpOverload) -> bool:
    """Whether capture takes an operator apart into others (linear, layer_norm)."""
    return overload._can_decompose()


def _with_meta(graph: Graph, module: fx.GraphModule) -> Graph:
    """Return the report with what else the nodes of a graph say of themselves."""
    given = {node.name: node for node in module.graph.nodes}

    def more(node: Node) -> Node:
        meta = given[node.name].meta if node.name in given else {}
        value = meta.get("val", meta.get("example_value", meta.get("tensor_meta")))
        nbytes = 0
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            sizes = [s for s in value.shape if isinstance(s, int)]  # type: ignore[union-attr]
            nbytes = torch.Size(sizes).numel() * value.dtype.itemsize  # type: ignore[union-attr]
        kind = kind_of(value) if isinstance(value, torch.Tensor) else ""
        place = site_of(meta)
        return replace(node, nbytes=nbytes, type=kind, module=module_path(meta), site=place)

    nodes = tuple(map(more, graph.nodes))
    known = all(node.nbytes for node in nodes if node.kind == "operation")
    made = replace(graph, nodes=nodes, sizes_known=known)
    border = [c.node for cluster in made.clusters for c in cluster.outputs]
    border += [
        c.node
        for cluster in made.clusters
        for c in cluster.inputs
        if nodes[c.node].kind == "operation"
    ]
    return build.finished(replace(made, total=replace(made.total, nbytes=made.bytes_of(border))))


def _cut(graph: SeedGraph, role: str, minimum: int) -> Graph:
    """Cut a graph of named operations and report it."""
    found = seed.clusters(graph)
    ops = {op.name: op for op in graph.ops}
    order = [name for cluster in found for name in cluster.op_names]
    outside = dict.fromkeys(i for op in graph.ops for i in op.inputs if i not in ops)
    place = {name: number for number, name in enumerate([*outside, *order])}
    kept = [c for c in found if not c.native and len(c.op_names) >= minimum]
    small = {
        n: len(c.op_names) for c in found if not c.native and c not in kept for n in c.op_names
    }
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for source in dict.fromkeys(op.inputs):
            readers.setdefault(source, []).append(op.name)
    nodes = [Node(name, "input", "input") for name in outside]
    for name in order:
        op = ops[name]
        sources = tuple(dict.fromkeys(place[i] for i in op.inputs))
        reason = None
        if op.op_type not in graph.supported:
            reason = NoLowering(op.op_type)
        elif name in small:
            reason = TooSmall(small[name], minimum)
        nodes.append(
            Node(
                name,
                "operation",
                op.op_type,
                sources,
                tuple(s for s in sources if s >= len(outside)),
                result=name not in readers,
                native=reason,
            )
        )
    clusters = _described(kept, ops, place, readers)
    numbers = {c.op_names: number for number, c in enumerate(kept)}
    steps: list[int] = []
    for cluster in found:
        if cluster.op_names in numbers:
            steps.append(numbers[cluster.op_names])
        else:
            steps += [-1 - place[name] for name in cluster.op_names]
    native = {op.op_type: 0 for op in graph.ops if op.op_type not in graph.supported}
    for op in graph.ops:
        if op.op_type in native:
            native[op.op_type] += 1
    most = build.MOST_BLAMED if len(graph.ops) <= MOST_RECUT else 0
    blame = []
    for kind, count in sorted(native.items(), key=lambda item: -item[1])[:most]:
        then = seed.clusters(replace(graph, supported=graph.supported | {kind}))
        total = _totals(graph, then)
        blame.append(Blame(kind, NoLowering(kind).group, count, total(minimum), total(1)))
    total = _totals(graph, found)
    made = Graph(
        role=role,
        fingerprint="",
        nodes=tuple(nodes),
        clusters=tuple(clusters),
        steps=tuple(steps),
        total=total(minimum),
        unavoidable=_least(nodes),
        uncut=total(1),
        blame=build.ranked(blame),
        unblamed=len(native) - len(blame),
        what_if=tuple((size, total(size)) for size in SIZES),
        min_size=minimum,
        sizes_known=False,
    )
    return build.finished(made)


def _least(nodes: Sequence[Node]) -> int:
    edges = [(source, number) for number, node in enumerate(nodes) for source in node.before]
    ours = [node.kind == "operation" and not node.refused for node in nodes]
    return unavoidable(Dag.of([node.name for node in nodes], edges), ours)


def _described(
    kept: Sequence[seed.SeedCluster],
    ops: Mapping[str, GraphOp],
    place: Mapping[str, int],
    readers: Mapping[str, Sequence[str]],
) -> Iterable[Cluster]:
    owner = {name: f"xla_{number}" for number, c in enumerate(kept) for name in c.op_names}

    def at(name: str) -> str:
        return owner.get(name, name if name in ops else "inputs")

    for number, cluster in enumerate(kept):
        inside = set(cluster.op_names)
        inputs = dict.fromkeys(
            i for n in cluster.op_names for i in ops[n].inputs if i not in inside
        )
        outputs = []
        for name in cluster.op_names:
            takers = [at(r) for r in readers.get(name, ()) if r not in inside]
            if takers or name not in readers:
                outputs.append(Crossing(place[name], tuple(dict.fromkeys(takers or ["results"]))))
        yield Cluster(
            f"xla_{number}",
            tuple(place[name] for name in cluster.op_names),
            tuple(place[name] for name in cluster.entry_points),
            tuple(place[name] for name in cluster.exit_points),
            tuple(Crossing(place[name], (at(name),)) for name in inputs),
            tuple(outputs),
            tuple((place[a], place[b]) for a, b in cluster.border),
        )


def _totals(graph: SeedGraph, found: Iterable[seed.SeedCluster]) -> Callable[[int], Total]:
    """Return what gives the figures of a graph that is cut so, without clusters below a size."""
    ops = {op.name: op for op in graph.ops}
    used = {name for op in graph.ops for name in op.inputs}
    sizes: list[tuple[int, int, int]] = []
    """Of each cluster: operations, tensors that cross its border, edges that do."""
    for cluster in found:
        if not cluster.native:
            inside = set(cluster.op_names)
            given = {a for a, _ in cluster.border} | {n for n in inside if n not in used}
            taken = {i for n in inside for i in ops[n].inputs if i in ops and i not in inside}
            sizes.append((len(inside), len(given) + len(taken), len(cluster.border)))

    def total(minimum: int) -> Total:
        kept = [size for size in sizes if size[0] >= minimum]
        inside, tensors, edges = (sum(size[n] for size in kept) for n in range(3))
        return Total(len(kept), len(graph.ops), inside, tensors, 0, edges)

    return total
