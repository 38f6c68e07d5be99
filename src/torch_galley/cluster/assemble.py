"""Vertices in clusters -> Clustered: order, borders, names, and what has to run natively."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torch import fx

from torch_galley.capture.fx import Captured, is_tensor
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.clustered import Clustered, XlaCluster
from torch_galley.cluster.dag import topological_order
from torch_galley.core.errors import ClusterError
from torch_galley.core.reasons import OUTVOTED, Reason


def assembled(
    captured: Captured,
    atoms: Atoms,
    kept: Sequence[Sequence[int]],
    clones: Sequence[Set[int]],
    reasons: Sequence[Reason | None],
    failed: Mapping[str, Reason],
    names: Sequence[str] = (),
) -> tuple[Clustered, list[str]]:
    """Order clusters and native vertices, give clusters their borders, and names if they have none.

    The names are returned besides, in the order of `kept`.
    """
    named = dict(enumerate(names))
    groups = [set(cluster).union(*clones[n : n + 1]) for n, cluster in enumerate(kept)]
    home = {v: number for number, cluster in enumerate(kept) for v in cluster}
    native: dict[fx.Node, Reason] = {}
    for v in _needed_natively(atoms, groups, home, reasons):
        home[v] = len(groups)
        groups.append({v})
        reason = reasons[v]
        assert reason is not None
        native[atoms.members[v][0]] = reason
    edges = {
        (home[source], number)
        for number, group in enumerate(groups)
        for v in group
        for source in atoms.dag.predecessors[v]
        if source not in group
    }
    order = topological_order(len(groups), edges, [min(group) for group in groups])
    if len(order) < len(groups):
        raise ClusterError("clusters and native operations form a cycle")
    steps: list[XlaCluster | fx.Node] = []
    clusters: list[XlaCluster] = []
    position = {node: i for i, node in enumerate(captured.graph.graph.nodes)}
    places: dict[fx.Node, set[int]] = {}
    for number, group in enumerate(groups):
        for node in (node for v in group for node in atoms.members[v]):
            places.setdefault(node, set()).add(number)
    for number in order:
        nodes = [node for v in groups[number] for node in atoms.members[v]]
        nodes.sort(key=position.__getitem__)
        if number < len(kept):
            name = named.setdefault(number, f"xla_{captured.fingerprint}_{len(clusters)}")
            made = {node for v in kept[number] for node in atoms.members[v]}
            clusters.append(_bordered(name, nodes, places, made))
            steps.append(clusters[-1])
        else:
            steps.extend(nodes)
    clustered = Clustered(captured, tuple(clusters), native, tuple(steps), failed)
    return clustered, [named[number] for number in range(len(kept))]


def _needed_natively(
    atoms: Atoms,
    groups: Sequence[Set[int]],
    home: Mapping[int, int],
    reasons: Sequence[Reason | None],
) -> list[int]:
    """Return vertices at home in no cluster that have to run: whose result is not made elsewhere.

    What XLA could take and clusters make for themselves runs natively only for native readers.
    """
    places: dict[int, set[int]] = {}
    for number, group in enumerate(groups):
        for v in group:
            places.setdefault(v, set()).add(number)
    needed: set[int] = set()
    for v in range(len(atoms.members) - 1, -1, -1):
        if v in home:
            continue
        readers = atoms.dag.successors[v]
        if (
            not (reasons[v] is None or isinstance(reasons[v], OUTVOTED))
            or v in atoms.results
            or not readers
            or any(r in needed for r in readers)
            or any(places.get(r, set()) - places.get(v, set()) for r in readers)
        ):
            needed.add(v)
    return sorted(needed)


def _bordered(
    name: str,
    nodes: Sequence[fx.Node],
    places: Mapping[fx.Node, Set[int]],
    made: Set[fx.Node],
) -> XlaCluster:
    """Name a cluster and find what it takes and gives.

    Args:
        name: its name.
        nodes: its nodes, clones included.
        places: for each node of the graph, the clusters and native operations it is computed in.
        made: those of its nodes that others may take from it.
    """
    inside = set(nodes)
    inputs: dict[fx.Node, None] = {}
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg not in inside and is_tensor(arg):
                inputs[arg] = None
    outputs = [
        node
        for node in nodes
        if node in made
        and is_tensor(node)
        and any(
            # A user that wants only the tensor's sizes is computed nowhere.
            user.op == "output" or not places.get(user, set()) <= places[node]
            for user in node.users
        )
    ]
    return XlaCluster(name, tuple(nodes), tuple(inputs), tuple(outputs))
