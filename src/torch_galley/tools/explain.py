"""What of a model goes into XLA, what does not, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from torch_galley.cluster import report
from torch_galley.cluster.operation import is_operation
from torch_galley.cluster.partition import Clustered
from torch_galley.core.site import module_path, site_of
from torch_galley.lower.driver import Argument, lower
from torch_galley.lower.symbol import cluster_symbols, first_seen, mentions_symbols
from torch_galley.pipeline import settle
from torch_galley.tools import flops, page
from torch_galley.tools.watch import Break, watch


@dataclass(frozen=True)
class Graph:
    """One captured graph, cut, with its floating-point operations counted."""

    clustered: Clustered

    @cached_property
    def cluster_flops(self) -> tuple[int, ...]:
        """FLOPs of each cluster, by torch.utils.flop_counter."""
        return tuple(flops.total(cluster.nodes) for cluster in self.clustered.clusters)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the whole graph."""
        return flops.total(self.clustered.captured.graph.graph.nodes)

    @property
    def operations(self) -> list[fx.Node]:
        """The graph's operations."""
        return list(filter(is_operation, self.clustered.captured.graph.graph.nodes))

    @cached_property
    def estimated(self) -> bool:
        """Whether some size is symbolic: bytes and FLOPs are then those of this call."""
        return any(mentions_symbols(node.meta.get("val")) for node in self.operations)

    @cached_property
    def data_dependent(self) -> bool:
        """Whether some size depends on data: it counts as 1."""
        nodes = self.operations
        known = first_seen(nodes)
        return any(
            symbol not in known for c in self.clustered.clusters for symbol in cluster_symbols(c)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the graph's part of the answer as plain data."""
        data = report.to_json(self.clustered)
        for told, count in zip(data["clusters"], self.cluster_flops, strict=True):
            told["flops"] = count
        for told, node in zip(data["native"], self.clustered.native, strict=True):
            site = site_of(node.meta)
            told["module"] = module_path(node.meta)
            told["code"] = site.code if site else ""
        return data | {
            "fingerprint": self.clustered.captured.fingerprint,
            "flops": self.flops,
            "clustered_flops": sum(self.cluster_flops),
            "sizes_as_first_seen": self.estimated,
            "data_dependent_sizes_count_as_one": self.data_dependent,
        }


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: a page when printed, plain data with `to_json()`."""

    name: str
    """Of the function or module."""
    graphs: tuple[Graph, ...]
    breaks: tuple[Break, ...]

    @property
    def operations(self) -> int:
        """Operations in all graphs."""
        return sum(graph.clustered.operations for graph in self.graphs)

    @property
    def clustered_operations(self) -> int:
        """Those of them that are in clusters."""
        return sum(graph.clustered.clustered_operations for graph in self.graphs)

    @property
    def coverage(self) -> float:
        """η = |V_C| / |V_all| over all graphs, 1.0 without operations."""
        return self.clustered_operations / self.operations if self.operations else 1.0

    def text(self, limit: int | None = 8) -> str:
        """Return the answer as a page of text.

        Args:
            limit: entry and exit points shown per cluster, None for all; the rest are counted.
        """
        return page.text(self, limit)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data, everything in full."""
        flop_total = sum(graph.flops for graph in self.graphs)
        flop_inside = sum(sum(graph.cluster_flops) for graph in self.graphs)
        return {
            "name": self.name,
            "operations": self.operations,
            "clustered_operations": self.clustered_operations,
            "coverage": self.coverage,
            "clusters": sum(len(graph.clustered.clusters) for graph in self.graphs),
            "flops": flop_total,
            "clustered_flops": flop_inside,
            "flops_by": "torch.utils.flop_counter: products, convolutions, attention",
            "graphs": [graph.to_json() for graph in self.graphs],
            "graph_breaks": [
                {
                    "reason": one.reason,
                    "headline": one.headline,
                    "site": dataclasses.asdict(one.site) if one.site else None,
                }
                for one in self.breaks
            ],
        }

    def __repr__(self) -> str:
        return self.text()


def explain(
    function: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Return what torch.compile(function, backend="galley") would do for these arguments.

    Example: `print(torch_galley.explain(model, inputs))`

    Calls `function` once, natively; see Note [What watching does to a program] in tools.watch.
    Gradients are not computed, but the backward graph that would compute them is explained too.
    Clusters of static shape are lowered, so that an operator whose lowering fails shows as native.

    Args:
        function: a function or an nn.Module, compiled or not.
        args: what to call it with.
        options: settings, as torch.compile takes them. A keyword argument of `function` of the
            same name can't be given: wrap it in a lambda.
        kwargs: what to call it with.

    Raises:
        ConfigError: an unknown setting.
        LoweringError: a lowering failed, and the setting `strict` is on.
        ToolError: `function` can't be called.
    """
    seen = watch(function, args, kwargs, options)
    graphs = tuple(Graph(settle(captured, _lowered)) for captured in seen.graphs)
    return Explanation(seen.name, graphs, seen.breaks)


def _lowered(clustered: Clustered) -> Clustered:
    """Lower all that can be, for the sake of lowerings that fail."""
    for cluster in clustered.clusters:
        if not cluster_symbols(cluster):
            arguments = [Argument.of(node, {}) for node in cluster.inputs]
            lower(cluster, arguments, {}, clustered.captured.config)
    return clustered
