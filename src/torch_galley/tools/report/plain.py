"""The report as JSON for programs: every number that the text and the page show, by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch_galley.tools.report.model import Blame, Cluster, Crossing, Graph, Total

if TYPE_CHECKING:
    from torch_galley.tools.report.report import Report


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data; see Report.to_json."""
    return {
        "name": report.name,
        "operations": report.operations,
        "clustered_operations": report.clustered_operations,
        "coverage": report.coverage,
        "clusters": report.clusters,
        "flops": sum(graph.flops for graph in report.graphs),
        "clustered_flops": sum(graph.clustered_flops for graph in report.graphs),
        "flops_by": "torch.utils.flop_counter: products, convolutions, attention",
        "compile_seconds": report.compile_seconds,
        "peak_bytes": max((graph.peak_bytes for graph in report.graphs), default=0),
        "graphs": [_graph(graph) for graph in report.graphs],
        "graph_breaks": [
            {
                "reason": one.reason,
                "headline": one.headline,
                "site": dataclasses.asdict(one.site) if one.site else None,
            }
            for one in report.breaks
        ],
    }


def _graph(graph: Graph) -> dict[str, Any]:
    made, whole = graph.made_bytes
    return {
        "role": graph.role,
        "fingerprint": graph.fingerprint,
        "operations": graph.total.operations,
        "clustered_operations": graph.total.clustered,
        "coverage": graph.total.coverage,
        "flops": graph.flops,
        "clustered_flops": graph.clustered_flops,
        "made_bytes": whole,
        "clustered_made_bytes": made,
        "unavoidable_clusters": graph.unavoidable,
        "border": _total(graph.total),
        "border_with_all_clusters": _total(graph.uncut),
        "compile_seconds": graph.compile_seconds,
        "peak_bytes": graph.peak_bytes,
        "sizes_known": graph.sizes_known,
        "sizes_as_first_seen": graph.estimated,
        "data_dependent_sizes_count_as_one": graph.data_dependent,
        "rates": graph.rates,
        "clusters": [_cluster(graph, cluster) for cluster in graph.clusters],
        "native": [_native(graph, number) for number in graph.native],
        "blame": [_blame(graph, blame) for blame in graph.blame],
        "native_operators_without_blame": graph.unblamed,
        "what_if": [{"min_cluster_size": size} | _total(total) for size, total in graph.what_if],
        "warnings": list(graph.warnings),
    }


def _total(total: Total) -> dict[str, Any]:
    return dataclasses.asdict(total) | {"coverage": total.coverage}


def _blame(graph: Graph, blame: Blame) -> dict[str, Any]:
    return {
        "op": blame.op,
        "reason": blame.group,
        "count": blame.count,
        "operations_more": blame.then.clustered - graph.total.clustered,
        "clusters_fewer": graph.uncut.clusters - blame.uncut.clusters,
        "bytes_less": graph.uncut.nbytes - blame.uncut.nbytes,
        "tensors_less": graph.uncut.tensors - blame.uncut.tensors,
        "seconds_less": graph.uncut.seconds - blame.uncut.seconds,
        "then": _total(blame.then),
        "then_with_small_clusters": _total(blame.uncut),
    }


def _native(graph: Graph, number: int) -> dict[str, Any]:
    node = graph.nodes[number]
    assert node.native is not None
    return {
        "name": node.name,
        "op": node.target,
        "reason": node.native.to_json(),
        "site": str(node.site or ""),
        "module": node.module,
        "code": node.site.code if node.site else "",
    }


def _cluster(graph: Graph, cluster: Cluster) -> dict[str, Any]:
    def names(numbers: tuple[int, ...]) -> list[str]:
        return [graph.nodes[n].name for n in numbers]

    entering = [crossing.node for crossing in cluster.inputs]
    leaving = [crossing.node for crossing in cluster.outputs]
    return {
        "name": cluster.name,
        "operations": graph.operations_in(cluster),
        "effective_operations": graph.effective_in(cluster),
        "op_names": names(cluster.nodes),
        "histogram": dict(graph.histogram(cluster)),
        "flops": cluster.flops,
        "entry_points": names(cluster.entry),
        "exit_points": names(cluster.exit),
        "border": {
            "edges": len(cluster.edges),
            "edge_bytes": graph.bytes_of(a for a, _ in cluster.edges),
            "tensors_in": len(entering),
            "bytes_in": graph.bytes_of(entering),
            "tensors_out": len(leaving),
            "bytes_out": graph.bytes_of(leaving),
            "parameter_bytes": graph.bytes_of(
                n for n in entering if graph.nodes[n].kind == "input"
            ),
        },
        "edges": [[graph.nodes[a].name, graph.nodes[b].name] for a, b in cluster.edges],
        "inputs": [_crossing(graph, crossing) for crossing in cluster.inputs],
        "outputs": [_crossing(graph, crossing) for crossing in cluster.outputs],
        "verdict": cluster.verdict,
        "speedup": {
            "predicted": cluster.predicted.to_json() if cluster.predicted else None,
            "measured": cluster.measured.to_json() if cluster.measured else None,
        },
        "compilation": dataclasses.asdict(cluster.compilation) if cluster.compilation else None,
    }


def _crossing(graph: Graph, crossing: Crossing) -> dict[str, Any]:
    node = graph.nodes[crossing.node]
    return {
        "tensor": node.name,
        "type": node.type,
        "device": node.device,
        "bytes": node.nbytes,
        "others": list(crossing.others),
    }
