"""The answer of `explain` and `report`, in every form it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_galley.tools.report import bundled, diff, dot, html, plain, text, why
from torch_galley.tools.report.model import Break, Graph


@dataclass(frozen=True)
class Report:
    """The answer of `explain` and `report`: a page when printed, a web page in a notebook.

    Example: `print(torch_galley.report(model, inputs))`
    """

    name: str
    """Of the function or module, or the file."""
    graphs: tuple[Graph, ...]
    breaks: tuple[Break, ...] = ()

    @property
    def operations(self) -> int:
        """Operations in all graphs."""
        return sum(graph.total.operations for graph in self.graphs)

    @property
    def clustered_operations(self) -> int:
        """Those of them that are in clusters."""
        return sum(graph.total.clustered for graph in self.graphs)

    @property
    def clusters(self) -> int:
        """Clusters in all graphs."""
        return sum(len(graph.clusters) for graph in self.graphs)

    @property
    def coverage(self) -> float:
        """η = |V_C| / |V_all| over all graphs, 1.0 without operations."""
        return self.clustered_operations / self.operations if self.operations else 1.0

    @property
    def compile_seconds(self) -> float | None:
        """What XLA took for all clusters, None if it was not asked."""
        made = [graph.compile_seconds for graph in self.graphs]
        known = [seconds for seconds in made if seconds is not None]
        return sum(known) if known else None

    def text(self, limit: int | None = 8) -> str:
        """Return the answer as a page of text.

        Args:
            limit: entry and exit points, and tensors, shown per cluster, None for all; the rest
                are counted.
        """
        return text.text(self, limit)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data, everything in full."""
        return plain.to_json(self)

    def to_dot(self) -> str:
        """Return the cut graphs for Graphviz: clusters as boxes, native operations between."""
        return dot.dot(self)

    def to_html(self) -> str:
        """Return the answer as one static web page, without scripts and outside resources."""
        return html.page(self)

    def diff(self, other: Report) -> diff.Difference:
        """Return what is different in a later report.

        Example: `before.diff(after).text()`
        """
        return diff.diff(self, other)

    def explain(self, node: str) -> str:
        """Return the chain of decisions about an operation.

        Raises:
            ToolError: no graph has it.
        """
        return why.explain(self.graphs, node)

    def why_not(self, a: str, b: str) -> why.WhyNot:
        """Return why two operations are not in one cluster, with a path that shows it.

        Example: `print(report.why_not("addmm", "addmm_1"))`

        Raises:
            ToolError: no graph has both.
        """
        return why.why_not(self.graphs, a, b)

    def without_source(self) -> Report:
        """Return the report without the lines of the user's source; their numbers stay."""
        return Report(*bundled.without_source(self))

    def save(self, folder: str | Path) -> Path:
        """Write the report as a bundle, a folder that other tools read and extend.

        Blocks of other tools in a bundle that is there stay.

        Raises:
            ToolError: it can't be written, or something else is there.
        """
        return bundled.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Read the report in a bundle.

        Raises:
            ToolError: no such folder, or it is broken, truncated, foreign or too large.
        """
        return cls(*bundled.load(folder))

    def __repr__(self) -> str:
        return self.text()

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html.fragment(self)
