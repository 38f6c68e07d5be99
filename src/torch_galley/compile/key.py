"""The program part of a cache key: a cluster written so that equal programs read equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from torch_galley.capture.body import attribute, body_of, elements
from torch_galley.cluster.clustered import XlaCluster
from torch_galley.compile.cache import CacheKey
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import Bindings
from torch_galley.ops.registry import revision, users_lowering


def program_text(cluster: XlaCluster) -> str:
    """Return the cluster's nodes with numbers for names, and its outputs' types and strides.

    Example: two equal layers of one model give one text, and so share an executable.
    """
    lines = _lines([*cluster.inputs, *cluster.nodes], cluster.nodes)
    number = {node: f"%{i}" for i, node in enumerate([*cluster.inputs, *cluster.nodes])}
    results = [f"{number[n]} {list(n.meta['val'].stride())}" for n in cluster.outputs]
    return "\n".join([*lines, f"return {', '.join(results)}"])


def _lines(known: Iterable[fx.Node], nodes: Iterable[fx.Node]) -> list[str]:
    """Return a line for each of some nodes, in which known ones have the number of their place."""
    number = {node: f"%{i}" for i, node in enumerate(known)}

    def spell(arg: Any) -> str:
        if isinstance(arg, fx.Node):
            body = body_of(arg)
            if body is not None:
                return _body_text(body)
            return number[arg] if arg in number else f"<{arg.meta['val']}>"
        if isinstance(arg, list | tuple):
            return f"[{', '.join(map(spell, arg))}]"
        return f"{type(arg).__name__} {arg!r}"

    lines = []
    for node in nodes:
        parts = [spell(arg) for arg in node.args]
        parts += [f"{name}={spell(arg)}" for name, arg in sorted(node.kwargs.items())]
        val = node.meta.get("val")
        kind = f"{val.dtype}{list(val.shape)}" if isinstance(val, torch.Tensor) else ""
        lines.append(f"{number[node]}: {kind} = {node.target}({', '.join(parts)})")
    return lines


def _body_text(body: fx.GraphModule) -> str:
    """Return a graph inside the program; of tensors that it holds, their elements' digest."""
    nodes = [node for node in body.graph.nodes if body_of(node) is None]
    held = [attribute(body, str(node.target)) for node in nodes if node.op == "get_attr"]
    constants = [hashlib.sha256(elements(tensor)).hexdigest() for tensor in held]
    return "{" + "; ".join([*_lines(nodes, nodes), *constants]) + "}"


def lowerings(cluster: XlaCluster) -> tuple[int, ...]:
    """Return what numbers the users' lowerings in a cluster have, in the order of its nodes."""
    return tuple(number for node in cluster.nodes if (number := revision(node.target)))


def digests(nodes: Iterable[fx.Node]) -> list[str]:
    """Return what stands for the users' lowerings among nodes on a disk, by their sources."""
    found = (users_lowering(node.target) for node in nodes)
    return [lowering.digest for lowering in found if lowering]


def key_of(
    program: str, arguments: Sequence[Argument], bindings: Bindings, settings: tuple[object, ...]
) -> CacheKey:
    """Return the key under which a cluster's executable is kept."""
    symbols = tuple(sorted((str(symbol), value) for symbol, value in bindings.items()))
    return CacheKey(program, tuple(arguments), symbols, settings)


def fingerprint(*parts: object) -> str:
    """Return a key that stands for a program on a disk.

    Example:
        >>> fingerprint("add", (2, 3)) == fingerprint("add", (2, 3))
        True
    """
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]
