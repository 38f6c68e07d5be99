"""The value of the first stage: a functional ATen graph with a fake value and a place per node."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from torch_galley.capture import save
from torch_galley.capture.body import body_of
from torch_galley.capture.encode import kind_of
from torch_galley.core.config import Config
from torch_galley.core.site import site_of

PARAMETER = "galley_parameter"
"""In the meta of an input's node: whether it is a parameter of the model."""


@dataclass(frozen=True)
class Captured:
    """A functional graph of ATen operators.

    Every node's `meta["val"]` is a fake tensor (or a symbolic number); no node writes another's
    memory. Made by capture.functional for torch.compile, by capture.lazy for the lazy device.
    """

    graph: fx.GraphModule
    """The program."""
    role: str
    """"inference", "forward", "backward" or "lazy"."""
    config: Config
    """The settings in force when it was captured."""
    visible: int | None = None
    """How many of the results the caller sees, the first ones; None for all. The rest are saved
    for the backward graph."""

    @cached_property
    def fingerprint(self) -> str:
        """Eight hex digits that depend on the program alone: equal programs, equal names."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:8]

    def text(self) -> str:
        """Return the graph, a line a node: name, type, operator, arguments."""
        return "\n".join(_lines(self.graph.graph))

    def to_json(self) -> dict[str, Any]:
        """Return the graph as plain data: role, and a list of nodes with their places."""
        nodes = list(map(_node_to_json, self.graph.graph.nodes))
        return {"role": self.role, "fingerprint": self.fingerprint, "nodes": nodes}

    def save(self, folder: str | Path) -> Path:
        """Write the graph, its constants and its settings into a folder.

        Example: `captured.save("graph")`; then `Captured.load("graph").graph(*inputs)` runs it.

        Raises:
            ToolError: it calls or holds something that can't be saved, or can't be written.
        """
        return save.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Captured:
        """Read what `save` wrote. Equal in text and JSON, and can be run and partitioned.

        Raises:
            ToolError: no such folder, or a file in it is corrupt or foreign.
        """
        return cls(*save.load(folder))


def _lines(graph: fx.Graph) -> Iterator[str]:
    """Yield a graph's lines; those of a graph inside it, indented, where it is fetched."""
    for node in graph.nodes:
        arguments = ", ".join(
            [str(arg) for arg in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
        )
        body = body_of(node)
        if body is not None:
            yield f"{node.name}: graph"
            yield from (f"    {line}" for line in _lines(body.graph))
            continue
        kind = "" if node.op == "call_function" else f"{node.op} "
        yield f"{node.name}: {kind_of(node.meta.get('val'))} = {kind}{node.target}({arguments})"


def _node_to_json(node: fx.Node) -> dict[str, Any]:
    body = body_of(node)
    data = {
        "name": node.name,
        "op": node.op,
        "target": str(node.target),
        "type": "graph" if body is not None else kind_of(node.meta.get("val")),
        "inputs": [arg.name for arg in node.all_input_nodes],
        "site": str(site_of(node.meta) or ""),
    }
    return data if body is None else data | {"nodes": list(map(_node_to_json, body.graph.nodes))}


def is_tensor(node: fx.Node) -> bool:
    """Whether the node's value is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_symbolic_number(node: fx.Node) -> bool:
    """Whether the node computes a Python number from shapes (sym_size, additions of sizes, ...)."""
    val = node.meta.get("val")
    numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(val, numbers)


def reads_data(node: fx.Node) -> bool:
    """Whether a number-valued node reads a tensor's elements (item) rather than its sizes."""
    return torch.Tag.data_dependent_output in getattr(node.target, "tags", ())


def is_shape_number(node: fx.Node) -> bool:
    """Whether a call's number follows from the inputs' shapes alone, and need not be computed."""
    return node.op == "call_function" and is_symbolic_number(node) and not reads_data(node)


def is_view(overload: Any) -> bool:
    """Whether an ATen overload returns a view of its first argument."""
    if not isinstance(overload, OpOverload):
        return False
    returns = overload._schema.returns
    return bool(returns) and any(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def is_view_node(node: fx.Node) -> bool:
    """Whether a node's memory is its first argument's: a view, or one of a view's outputs.

    `_unsafe_view`, by which reshape says that nobody else will look, is one when AOTAutograd has
    taken writes out of what follows: it makes it anew for each of several results.
    """
    if node.target is torch.ops.aten._unsafe_view.default:
        return True
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0].target)
    return is_view(node.target)


def memory_owner(node: fx.Node) -> fx.Node:
    """Return the node whose memory this one shows; itself for inputs and computed tensors."""
    while is_view_node(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
