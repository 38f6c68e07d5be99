"""galley cluster: cut a graph of named operations into clusters."""

from __future__ import annotations

import argparse
import json

from torch_galley.cluster import seed

_ABOUT = """\
Cut a graph of named operations into XLA clusters and native operations, in an order
they can run in. GRAPH.json holds

  {"ops": [{"name": "c1", "op_type": "conv2d", "inputs": ["x"]}, ...],
   "supported": ["conv2d", "add", ...]}

or only the list of operations, with --supported. Operations may come in any order. An
input that names no operation is an input of the graph.

For each cluster: its entry points use nothing made inside, nothing inside uses its exit
points, and its border is the edges that leave it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "cluster", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", metavar="GRAPH.json", help="the graph")
    parser.add_argument(
        "--supported", metavar="TYPES", help="operation types XLA can take, such as conv2d,add"
    )
    parser.add_argument(
        "--policy",
        default="dependencies",
        metavar="NAME",
        help="dependencies (default): merge along edges; scan: cut the list at unsupported ones",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the clusters."""
    supported = None
    if args.supported is not None:
        supported = [part.strip() for part in args.supported.split(",") if part.strip()]
    graph = seed.load(args.graph, supported)
    clusters = seed.clusters(graph, args.policy)
    if args.json:
        print(json.dumps(_to_json(args.policy, clusters), indent=2))
        return 0
    for cluster in clusters:
        shown = cluster.as_dict()
        # The scan's lines are those of the program it comes from, which knew no border.
        if args.policy != "scan" and not cluster.native:
            shown["border"] = [f"{u} -> {v}" for u, v in cluster.border]
        print(shown)
    return 0


def _to_json(policy: str, clusters: list[seed.SeedCluster]) -> dict[str, object]:
    inside = sum(len(c.op_names) for c in clusters if not c.native)
    return {
        "policy": policy,
        "coverage": inside / sum(len(c.op_names) for c in clusters),
        "clusters": [c.as_dict() | {"border": [list(edge) for edge in c.border]} for c in clusters],
    }
