"""The program part of a cache key: a cluster written so that equal programs read equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from torch_galley.cluster.clustered import XlaCluster
from torch_galley.compile.cache import CacheKey
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import Bindings
from torch_galley.ops.registry import revision, users_lowering


def program_text(cluster: XlaCluster) -> str:
    """Return the cluster's nodes with numbers for names, and its outputs' types and strides.

    Example: two equal layers of one model give one text, and so share an executable.
    """
    number = {node: f"%{i}" for i, node in enumerate([*cluster.inputs, *cluster.nodes])}

    def spell(arg: Any) -> str:
        if isinstance(arg, fx.Node):
            return number[arg] if arg in number else f"<{arg.meta['val']}>"
        if isinstance(arg, list | tuple):
            return f"[{', '.join(map(spell, arg))}]"
        return f"{type(arg).__name__} {arg!r}"

    lines = []
    for node in cluster.nodes:
        parts = [spell(arg) for arg in node.args]
        parts += [f"{name}={spell(arg)}" for name, arg in sorted(node.kwargs.items())]
        val = node.meta.get("val")
        kind = f"{val.dtype}{list(val.shape)}" if isinstance(val, torch.Tensor) else ""
        lines.append(f"{number[node]}: {kind} = {node.target}({', '.join(parts)})")
    results = [f"{number[n]} {list(n.meta['val'].stride())}" for n in cluster.outputs]
    return "\n".join([*lines, f"return {', '.join(results)}"])


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
