"""Which operations may go into clusters: what XLA can take, and what the user lets it have."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from torch_galley.capture.body import bodies
from torch_galley.capture.fx import Captured
from torch_galley.cluster.operation import is_operation
from torch_galley.cluster.support import HasDevice, name_of, support
from torch_galley.core.config import Config
from torch_galley.core.errors import ConfigError
from torch_galley.core.reasons import DeniedByUser, InsideBody, NotAllowed, OutOfFuel, Reason
from torch_galley.core.site import module_path
from torch_galley.ops.draw import of_torch

Matches = Callable[[fx.Node, str], bool]
"""Whether an entry of a list means a node."""


def candidates(
    nodes: Sequence[fx.Node],
    config: Config,
    has_device: HasDevice,
    failed: Mapping[str, Reason] | None = None,
) -> list[Reason | None]:
    """Return for each operation, in graph order, None or the Reason why it stays native.

    Raises:
        ConfigError: `allow_ops` or `deny_ops` names no operator of this torch.
    """
    failed = failed or {}
    lists = [item for item in _lists(config) if item[1]]
    for name in (*config.allow_ops, *config.deny_ops):
        _check_operator(name, "allow_ops" if name in config.allow_ops else "deny_ops")
    found: list[Reason | None] = []
    fuel = config.fuel
    for node in nodes:
        reason = failed.get(node.name) or _listed(node, lists) or support(node, has_device)
        if reason is None and fuel == 0:
            reason = OutOfFuel(name_of(node.target), config.fuel)
        elif reason is None:
            fuel -= 1
        found.append(reason)
    return found


def _lists(config: Config) -> Iterator[tuple[str, tuple[str, ...], Matches]]:
    yield "deny_ops", config.deny_ops, _is_operator
    yield "deny_nodes", config.deny_nodes, _is_named
    yield "deny_modules", config.deny_modules, in_module
    yield "allow_ops", config.allow_ops, _is_operator
    yield "allow_nodes", config.allow_nodes, _is_named
    yield "allow_modules", config.allow_modules, in_module


def _listed(node: fx.Node, lists: Iterable[tuple[str, tuple[str, ...], Matches]]) -> Reason | None:
    for setting, entries, matches in lists:
        found = any(matches(node, entry) for entry in entries)
        if setting.startswith("deny") and found:
            return DeniedByUser(name_of(node.target), setting)
        if setting.startswith("allow") and not found:
            return NotAllowed(name_of(node.target), setting)
    by_operator = [item for item in lists if item[0] in ("allow_ops", "deny_ops")]
    for arg, body in bodies(node).items() if by_operator else ():
        for inner in filter(is_operation, body.graph.nodes):
            if reason := _listed(inner, by_operator):
                return InsideBody(name_of(node.target), str(arg.target), str(reason))
    return None


def _is_operator(node: fx.Node, entry: str) -> bool:
    if isinstance(node.target, HigherOrderOperator):
        return entry == f"higher_order.{node.target.name()}"
    targets = [node.target, of_torch(node.target)]  # a draw goes by torch's name too
    return any(entry in (str(t), str(getattr(t, "overloadpacket", None))) for t in targets)


def _is_named(node: fx.Node, entry: str) -> bool:
    return fnmatchcase(node.name, entry)


def in_module(node: fx.Node, entry: str) -> bool:
    """Whether a node belongs to a module, or to one inside it: "encoder.layer.*" say."""
    path = module_path(node.meta)
    return fnmatchcase(path, entry) or fnmatchcase(path, f"{entry}.*")


def must_compile(nodes: Sequence[fx.Node], config: Config) -> list[bool]:
    """Return which operations the user wants in a cluster, whatever that brings."""
    return [any(_is_meant(node, entry) for entry in config.must_compile) for node in nodes]


def groups(nodes: Sequence[fx.Node], config: Config) -> list[list[int]]:
    """Return the places of the operations that each entry of the setting `groups` means."""
    return [
        [v for v, node in enumerate(nodes) if any(_is_meant(node, p) for p in entry.split("+"))]
        for entry in config.groups
    ]


def _is_meant(node: fx.Node, entry: str) -> bool:
    return _is_named(node, entry) or in_module(node, entry)


def scopes(nodes: Sequence[fx.Node], config: Config) -> Sequence[str | None]:
    """Return for each operation the first of the setting `scopes` that it is in, or None."""
    if not config.scopes:
        return ()
    return [next((s for s in config.scopes if in_module(node, s)), None) for node in nodes]


def unknown_names(captured: Captured) -> list[str]:
    """Return a sentence for each entry of a list that means nothing in this graph.

    Not an error: the backward graph, or the graph after a break, may have what this one has not.

    Example: "deny_nodes names 'ad', which is no operation of this graph; did you mean 'add'?"
    """
    config = captured.config
    nodes = [node for node in captured.graph.graph.nodes if node.op == "call_function"]
    names = [node.name for node in nodes]
    said = []
    for setting in ("allow_nodes", "deny_nodes"):
        said += [
            _unknown(setting, entry, "operation", names)
            for entry in getattr(config, setting)
            if not any(_is_named(node, entry) for node in nodes)
        ]
    paths = sorted({p for node in nodes for p in _with_parents(module_path(node.meta))})
    meant = [("must_compile", entry) for entry in config.must_compile]
    meant += [("groups", part) for entry in config.groups for part in entry.split("+")]
    said += [
        _unknown(setting, entry, "operation or module", [*names, *paths])
        for setting, entry in meant
        if not any(_is_meant(node, entry) for node in nodes)
    ]
    for setting in ("allow_modules", "deny_modules", "scopes"):
        for entry in getattr(config, setting):
            if not any(in_module(node, entry) for node in nodes):
                said.append(_unknown(setting, entry, "module", paths))
    return said


def _unknown(setting: str, entry: str, kind: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(entry, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{setting} names {entry!r}, which is no {kind} of this graph{hint}"


def _with_parents(path: str) -> Iterator[str]:
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _check_operator(entry: str, setting: str) -> None:
    """Raise ConfigError unless an entry such as "aten.add" or "aten.add.Tensor" names something."""
    namespace, dot, rest = entry.partition(".")
    found: Any = getattr(torch.ops, namespace) if namespace and dot else None
    for part in rest.split("."):
        found = getattr(found, part, None) if part else None
    if isinstance(found, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return
    names = [name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()]
    # One without an overload's name is spelled "default".
    overloads = [name if name.count(".") > 1 else f"{name}.default" for name in names]
    packets = {name.rpartition(".")[0] for name in overloads}
    near = difflib.get_close_matches(entry, sorted(packets) + overloads, n=1)
    hint = "write namespace.name or namespace.name.overload, such as 'aten.gelu'"
    if near:
        hint = f"did you mean {near[0]!r}?"
    raise ConfigError(f"{setting} names {entry!r}, which is no operator here", hint=hint)
