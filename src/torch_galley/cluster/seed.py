"""Clusters of a graph that is only named operations: no torch, no tensors.

The graph is a list of operations with a name, a type and the names of their inputs, and a set of
operation types that XLA can take. An input that no operation has as its name is an input of the
graph (a weight, say).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.dag import Dag, topological_order
from torch_galley.core.errors import ClusterError

Edges = Sequence[tuple[int, int]]
Groups = list[list[int]]


@dataclass(frozen=True)
class GraphOp:
    """One operation of the graph."""

    name: str
    """Unique in the graph."""
    op_type: str
    """What it computes, such as "conv2d"."""
    inputs: tuple[str, ...] = ()
    """Names of operations or of graph inputs."""


@dataclass(frozen=True)
class SeedCluster:
    """Operations that XLA would compile as one, or one native operation."""

    number: int
    """Its place in the list, from 0."""
    native: bool
    """Whether it is an operation that XLA can't take."""
    op_names: tuple[str, ...]
    """Its operations, each after those it uses."""
    entry_points: tuple[str, ...]
    """Operations that use nothing made inside."""
    exit_points: tuple[str, ...]
    """Operations that nothing inside uses."""
    border: tuple[tuple[str, str], ...]
    """The edges that leave it: all (u, v) with u inside and v an operation outside."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, a native operation without a number."""
        number = {} if self.native else {"cluster_id": self.number}
        return {
            "cluster_type": "native" if self.native else "xla",
            **number,
            "op_names": list(self.op_names),
            "entry_points": list(self.entry_points),
            "exit_points": list(self.exit_points),
        }


@dataclass(frozen=True)
class SeedGraph:
    """Operations in the order given, which may be any."""

    ops: tuple[GraphOp, ...]
    supported: frozenset[str]
    origin: str = field(default="the graph", compare=False)
    """Where it comes from, for messages."""


def clusters(graph: SeedGraph, policy: str = "dependencies") -> list[SeedCluster]:
    """Cut a graph into clusters and native operations, listed in an order they can run in.

    Policy "dependencies" merges supported operations along their edges as far as no cycle comes
    of it. "scan" goes through the list, each operation after its inputs, and starts a cluster
    after each unsupported one, whether or not anything depends on that.

    Example:
        >>> chain = [GraphOp("a", "add"), GraphOp("b", "nms"), GraphOp("c", "add", ("a",))]
        >>> graph = SeedGraph(tuple(chain), frozenset({"add"}))
        >>> [cluster.op_names for cluster in clusters(graph)]
        [('a', 'c'), ('b',)]
        >>> [cluster.op_names for cluster in clusters(graph, "scan")]
        [('a',), ('b',), ('c',)]

    Raises:
        ClusterError: an empty graph, a duplicate name, a cycle, an unknown policy.
    """
    if policy not in POLICIES:
        raise ClusterError(f"unknown policy {policy!r}", hint=f"one of {', '.join(POLICIES)}")
    if not graph.ops:
        raise ClusterError(f"{graph.origin}: no operations")
    ops, edges = _sorted(graph.ops, graph.origin)
    supported = [op.op_type in graph.supported for op in ops]
    groups = POLICIES[policy](ops, edges, supported)
    return _described(ops, edges, supported, groups)


def _sorted(ops: Sequence[GraphOp], origin: str) -> tuple[list[GraphOp], Edges]:
    """Return the operations so that each comes after its inputs, else as given, and the edges."""
    index: dict[str, int] = {}
    for position, op in enumerate(ops):
        if op.name in index:
            raise ClusterError(f"{origin}: two operations are named {op.name!r}")
        index[op.name] = position
    edges = [(index[name], v) for v, op in enumerate(ops) for name in op.inputs if name in index]
    order = topological_order(len(ops), edges, range(len(ops)))
    if len(order) < len(ops):
        raise ClusterError(f"{origin}: a cycle: {_drawn_cycle(ops, index, set(order))}")
    place = {v: rank for rank, v in enumerate(order)}
    return [ops[v] for v in order], sorted({(place[a], place[b]) for a, b in edges})


def _drawn_cycle(ops: Sequence[GraphOp], index: dict[str, int], sorted_: set[int]) -> str:
    """Walk inputs backwards among the operations that could not be sorted until one repeats."""
    walk = [next(v for v in range(len(ops)) if v not in sorted_)]
    seen: dict[int, int] = {}
    while walk[-1] not in seen:
        seen[walk[-1]] = len(walk) - 1
        inputs = (index[name] for name in ops[walk[-1]].inputs if name in index)
        walk.append(next(v for v in inputs if v not in sorted_))
    names = [ops[v].name for v in reversed(walk[seen[walk[-1]] :])]
    if len(names) > 12:
        names = [*names[:6], f"... ({len(names) - 12} more)", *names[-6:]]
    return " -> ".join(names)


def _by_dependencies(ops: Sequence[GraphOp], edges: Edges, supported: Sequence[bool]) -> Groups:
    dag = Dag.of([op.name for op in ops], edges)
    merged = contract(dag, supported)
    check(dag, merged)
    groups = [*merged, *([v] for v in range(len(ops)) if not supported[v])]
    owner = {v: number for number, group in enumerate(groups) for v in group}
    outer = {(owner[a], owner[b]) for a, b in edges if owner[a] != owner[b]}
    return [groups[g] for g in topological_order(len(groups), outer, [g[0] for g in groups])]


def _by_scan(ops: Sequence[GraphOp], edges: Edges, supported: Sequence[bool]) -> Groups:
    groups: Groups = []
    for v in range(len(ops)):
        if v > 0 and supported[v] and supported[v - 1]:
            groups[-1].append(v)
        else:
            groups.append([v])
    return groups


POLICIES: dict[str, Callable[[Sequence[GraphOp], Edges, Sequence[bool]], Groups]] = {
    "dependencies": _by_dependencies,
    "scan": _by_scan,
}
"""How operations are grouped, the default first."""


def _described(
    ops: Sequence[GraphOp], edges: Edges, supported: Sequence[bool], groups: Groups
) -> list[SeedCluster]:
    """Give each group its entries, exits and border."""
    owner = {v: number for number, group in enumerate(groups) for v in group}
    inner = [(a, b) for a, b in edges if owner[a] == owner[b]]
    fed, used = {b for _, b in inner}, {a for a, _ in inner}
    border: list[list[tuple[str, str]]] = [[] for _ in groups]
    for a, b in edges:
        if owner[a] != owner[b]:
            border[owner[a]].append((ops[a].name, ops[b].name))
    return [
        SeedCluster(
            number,
            native=not supported[group[0]],
            op_names=tuple(ops[v].name for v in group),
            entry_points=tuple(ops[v].name for v in group if v not in fed),
            exit_points=tuple(ops[v].name for v in group if v not in used),
            border=tuple(border[number]),
        )
        for number, group in enumerate(groups)
    ]


def load(path: str | Path, supported: Collection[str] | None = None) -> SeedGraph:
    """Read a graph from a JSON file.

    The file holds {"ops": [...], "supported": [...]}, or only the list of operations; each is
    {"name": ..., "op_type": ..., "inputs": [...]}. `supported`, if given, is used instead of the
    file's.

    Raises:
        ClusterError: a file that can't be read or is no JSON, and an entry that is not as above;
            the message names the file and the entry.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text, object_pairs_hook=_without_doubles)
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path}: not UTF-8 text") from error
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise ClusterError(f"{place}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ClusterError(f"{path}: nested too deeply") from error
    except ValueError as error:  # a double field, or a number longer than Python reads
        raise ClusterError(f"{path}: {error}") from error
    return parse(data, str(path), supported)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"field {name!r} is given twice in one object")
        found[name] = value
    return found


def parse(data: Any, origin: str, supported: Collection[str] | None = None) -> SeedGraph:
    """Return the graph that JSON data describes, see `load`; `origin` starts the messages.

    Example:
        >>> parse([{"name": "a", "op_type": "add"}], "here", ["add"]).ops
        (GraphOp(name='a', op_type='add', inputs=()),)
    """
    if isinstance(data, list):
        data = {"ops": data}
    _check_fields(data, {"ops": list, "supported": list}, {"ops"}, origin)
    types = data.get("supported") if supported is None else supported
    if types is None:
        raise ClusterError(
            f"{origin}: which operation types are supported is not said",
            hint='add "supported": [...] to the file, or --supported conv2d,add',
        )
    _check_strings(types, f"{origin}: supported")
    ops = []
    for position, entry in enumerate(data["ops"]):
        where = f"{origin}: ops[{position}]"
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            where += f" ({entry['name']!r})"
        fields = {"name": str, "op_type": str, "inputs": list}
        _check_fields(entry, fields, {"name", "op_type"}, where)
        _check_strings(entry.get("inputs", []), f"{where}: inputs")
        ops.append(GraphOp(entry["name"], entry["op_type"], tuple(entry.get("inputs", []))))
    return SeedGraph(tuple(ops), frozenset(types), origin)


_JSON_NAME = {dict: "an object", list: "a list", str: "a string"}


def _check_fields(data: Any, fields: dict[str, type], needed: set[str], where: str) -> None:
    if not isinstance(data, dict):
        raise ClusterError(f"{where}: {data!r:.40} is not an object")
    for name, value in data.items():
        if name not in fields:
            raise ClusterError(
                f"{where}: unknown field {name!r}", hint=f"known: {', '.join(fields)}"
            )
        if not isinstance(value, fields[name]):
            raise ClusterError(f"{where}: {name} is {value!r:.40}, not {_JSON_NAME[fields[name]]}")
    for name in fields:
        if name in needed and name not in data:
            raise ClusterError(f"{where}: field {name!r} is missing")


def _check_strings(values: Iterable[Any], where: str) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ClusterError(f"{where} has {value!r:.40}, which is not a string")
