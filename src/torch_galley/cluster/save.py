"""A partition as JSON and back, over the captured graph that it cuts, by the nodes' names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import fx

from torch_galley.capture.body import bodies
from torch_galley.capture.fx import Captured, is_tensor
from torch_galley.cluster.judge import Choice, choice_from_json
from torch_galley.core.reasons import Reason, reason_from_json
from torch_galley.core.store import Fields, read_record, write_record

if TYPE_CHECKING:
    from torch_galley.cluster.clustered import Clustered, XlaCluster


def save(clustered: Clustered, folder: str | Path) -> Path:
    """Write a partition and its graph into a folder; see Clustered.save."""
    clustered.captured.save(folder)
    value = {
        "fingerprint": clustered.captured.fingerprint,
        "clusters": [cluster_to_json(cluster) for cluster in clustered.clusters],
        "native": {node.name: reason.to_json() for node, reason in clustered.native.items()},
        # A cluster's name is no node's: it begins with xla_ and the graph's fingerprint.
        "steps": [step.name for step in clustered.steps],
        "failed": {name: reason.to_json() for name, reason in clustered.failed.items()},
        "choices": [choice.to_json() for choice in clustered.choices],
        "rates": clustered.rates,
    }
    return write_record(folder, "clustered", value)


def cluster_to_json(cluster: XlaCluster) -> dict[str, Any]:
    """Return a cluster's name and the names of its nodes, inputs and outputs."""
    return {
        "name": cluster.name,
        "nodes": [node.name for node in cluster.nodes],
        "inputs": [node.name for node in cluster.inputs],
        "outputs": [node.name for node in cluster.outputs],
    }


Parts = tuple[str, tuple[fx.Node, ...], tuple[fx.Node, ...], tuple[fx.Node, ...]]
"""A cluster's name, nodes, inputs and outputs: the arguments of XlaCluster."""


def cluster_from_json(fields: Fields, nodes: Mapping[str, fx.Node]) -> Parts:
    """Return the arguments of XlaCluster for what `cluster_to_json` gave.

    Raises:
        ToolError: a name that `nodes` does not have.
    """

    def named(field: str) -> tuple[fx.Node, ...]:
        for name in fields.get(field, list):
            if name not in nodes:
                raise fields.wrong(field, f"names {name!r}, which is no node of the graph")
        return tuple(nodes[name] for name in fields.data[field])

    return fields.get("name", str), named("nodes"), named("inputs"), named("outputs")


Saved = tuple[
    Captured,
    list[Parts],
    dict[fx.Node, Reason],
    list[str],
    dict[str, Reason],
    tuple[Choice, ...],
    str,
]
"""The graph, clusters, native nodes, steps by name, failed nodes, choices, origin of the rates."""


def load(folder: str | Path) -> Saved:
    """Read what `save` wrote.

    Raises:
        ToolError: a file is missing, corrupt or foreign, or the graph is another.
    """
    fields = read_record(folder, "clustered").value
    captured = Captured.load(folder)
    if fields.get("fingerprint", str) != captured.fingerprint:
        raise fields.wrong("fingerprint", f"is not that of the graph, {captured.fingerprint}")
    nodes = {node.name: node for node in captured.graph.graph.nodes}
    clusters = [cluster_from_json(item, nodes) for item in fields.each("clusters")]
    reasons = _reasons(fields, "native")
    for name in reasons:
        if name not in nodes:
            raise fields.wrong("native", f"names {name!r}, which is no node of the graph")
    steps = fields.get("steps", list)
    known = {name for name, *_ in clusters} | set(nodes)
    for name in steps:
        if name not in known:
            raise fields.wrong("steps", f"names {name!r}, which is no cluster and no node")
    native = {nodes[name]: reason for name, reason in reasons.items()}
    choices = tuple(map(choice_from_json, fields.each("choices")))
    failed, rates = _reasons(fields, "failed"), fields.get("rates", str)
    return captured, clusters, native, steps, failed, choices, rates


def _reasons(fields: Fields, name: str) -> dict[str, Reason]:
    inner = fields.inside(name)
    out = {}
    for node in inner.data:
        try:
            out[node] = reason_from_json(inner.get(node, dict))
        except ValueError as error:
            raise inner.wrong(node, str(error)) from error
    return out


def cut_out(cluster: XlaCluster) -> fx.GraphModule:
    """Return a cluster as a graph of its own: what comes from outside becomes placeholders."""
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    root: dict[str, fx.GraphModule] = {}
    for node in cluster.nodes:
        inner = bodies(node)
        for source in node.all_input_nodes:
            if source in made or source in cluster.nodes:
                continue
            if source in inner:
                made[source] = graph.node_copy(source)
                root[str(source.target)] = inner[source]
            else:
                made[source] = graph.create_node("placeholder", source.name, name=source.name)
                made[source].meta = dict(source.meta)
    for node in cluster.nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in cluster.outputs if is_tensor(node)))
    return fx.GraphModule(root, graph)
