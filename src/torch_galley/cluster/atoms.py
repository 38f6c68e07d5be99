"""A captured graph as vertices, edges and tensors: what clustering decides on.

A vertex is an operation with its getitems, which no cut may part. Symbolic numbers are none: their
value follows from the inputs' shapes. Those that do depend on data come from a native operation,
and carry the dependency on to their users.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torch_galley.capture.body import bodies
from torch_galley.capture.fx import is_shape_number, is_tensor, is_view
from torch_galley.cluster.dag import Dag
from torch_galley.cluster.operation import is_operation, nbytes
from torch_galley.cluster.price import Tensor
from torch_galley.cluster.support import draws, is_getitem
from torch_galley.ops.registry import lookup
from torch_galley.ops.schema import written_by

aten = torch.ops.aten


@dataclass(frozen=True)
class Atoms:
    """The vertices of a graph."""

    graph: fx.Graph
    dag: Dag
    members: Sequence[Sequence[fx.Node]]
    """For each vertex its nodes, the producer first."""
    results: frozenset[int]
    """Vertices that make a result of the graph."""

    @staticmethod
    def of(graph: fx.Graph) -> Atoms:
        """Build the vertices of a graph."""
        vertex: dict[fx.Node, int] = {}
        behind: dict[fx.Node, frozenset[int]] = {}  # vertices that a symbolic number hangs on
        members: list[list[fx.Node]] = []
        edges: set[tuple[int, int]] = set()
        last: dict[str, int] = {}
        results: set[int] = set()
        for node in graph.nodes:
            if node.op == "output":
                results |= {vertex[arg] for arg in node.all_input_nodes if arg in vertex}
            if node.op != "call_function":
                continue
            sources: set[int] = set()
            for arg in node.all_input_nodes:
                sources |= {vertex[arg]} if arg in vertex else behind.get(arg, frozenset())
            if is_getitem(node) and node.args[0] in vertex:
                vertex[node] = vertex[node.args[0]]
                members[vertex[node]].append(node)
                continue
            if is_shape_number(node):
                behind[node] = frozenset(sources)
                continue
            number = vertex[node] = len(members)
            members.append([node])
            for kind in _effects(node):  # what happens keeps its order
                if kind in last:
                    sources.add(last[kind])
                last[kind] = number
            edges |= {(source, number) for source in sources}
        names = [nodes[0].name for nodes in members]
        return Atoms(graph, Dag.of(names, edges), members, frozenset(results))

    @cached_property
    def tensors(self) -> list[Tensor]:
        """What can cross a border, inputs of the graph included."""
        vertex = {node: number for number, nodes in enumerate(self.members) for node in nodes}
        found = []
        for node in self.graph.nodes:
            if is_tensor(node):
                readers = {vertex[user] for user in node.users if user in vertex}
                readers.discard(vertex.get(node, -1))
                result = any(user.op == "output" for user in node.users)
                maker = vertex.get(node)
                found.append(Tensor(maker, tuple(sorted(readers)), nbytes(node), result))
        return found

    def constants(self, supported: Sequence[bool]) -> list[bool]:
        """Return which vertices are cheap and depend on no data: made anew wherever they are read.

        Factories (full, arange), and views and elementwise operations on nothing but those.
        """
        found: list[bool] = []
        for number, nodes in enumerate(self.members):
            first = nodes[0]
            inputs = [arg for arg in first.all_input_nodes if not is_shape_number(arg)]
            alone = not any(arg.op in ("placeholder", "get_attr") for arg in inputs)
            behind = self.dag.predecessors[number]
            simple = not inputs or _is_simple(first)
            found.append(supported[number] and alone and simple and all(found[v] for v in behind))
        return found

    def cheap(self, free: Sequence[bool]) -> list[bool]:
        """Return which of some vertices may be computed twice: views and casts."""
        return [
            ours and (is_view(nodes[0].target) or nodes[0].target in _CASTS)
            for ours, nodes in zip(free, self.members, strict=True)
        ]

    def views(self, free: Sequence[bool]) -> list[bool]:
        """Return which of some vertices only give other views of what they read."""
        return [
            ours and is_view(nodes[0].target)
            for ours, nodes in zip(free, self.members, strict=True)
        ]

    def devices(self) -> Sequence[Any]:
        """Return the device of each vertex's results, nothing if there is only one."""
        found = [_device(nodes) for nodes in self.members]
        return found if len(set(found)) > 1 else ()


_CASTS = {aten._to_copy.default, aten.alias.default}


def _is_simple(node: fx.Node) -> bool:
    """Whether each element of a result depends on one element of each input."""
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return pointwise or is_view(node.target) or node.target in _CASTS


def _device(nodes: Iterable[fx.Node]) -> torch.device | None:
    for node in nodes:
        if is_tensor(node):
            return node.meta["val"].device
    return None


def _effects(node: fx.Node) -> Sequence[str]:
    """Return what a node does besides computing its result: draw random numbers, or anything."""
    target = node.target
    if not isinstance(target, OpOverload):
        if lookup(target) is None or node.kwargs:
            return ("draw", "act")
        # Control flow does what is done in its graphs.
        inside = [call for body in bodies(node).values() for call in body.graph.nodes]
        return sorted({kind for call in filter(is_operation, inside) for kind in _effects(call)})
    if draws(target):
        return ("draw",)
    return ("act",) if written_by(target) or not target._schema.returns else ()
