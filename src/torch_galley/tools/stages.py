"""The value of every stage that a model goes through, to print, save, load and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_galley.capture.fx import Captured
from torch_galley.cluster.clustered import Clustered
from torch_galley.compile.client import Compiled, compile
from torch_galley.core.store import read_record, write_record
from torch_galley.lower.driver import Argument, Lowered, lower
from torch_galley.lower.symbol import cluster_symbols, first_seen
from torch_galley.pipeline import settle
from torch_galley.tools.watch import watch


@dataclass(frozen=True)
class Stages:
    """What one captured graph became, stage by stage."""

    clustered: Clustered
    lowered: tuple[Lowered, ...]
    """One per cluster. For symbolic sizes: as in this call; a cluster with a size that depends
    on data has none here."""
    compiled: tuple[Compiled, ...]
    """One per Lowered."""

    @property
    def captured(self) -> Captured:
        """The graph itself."""
        return self.clustered.captured

    def text(self) -> str:
        """Return the texts of all stages, under headings."""
        parts = [("Captured", self.captured.text()), ("Clustered", self.clustered.text())]
        for lowered, compiled in zip(self.lowered, self.compiled, strict=True):
            parts.append((f"Lowered {lowered.name}", lowered.text()))
            parts.append((f"Compiled {lowered.name}", compiled.text()))
        return "\n\n".join(f"== {title} ==\n{text.rstrip()}" for title, text in parts)

    def to_json(self) -> dict[str, Any]:
        """Return all stages as plain data."""
        return {
            "captured": self.captured.to_json(),
            "clustered": self.clustered.to_json(),
            "lowered": [lowered.to_json() for lowered in self.lowered],
            "compiled": [compiled.to_json() for compiled in self.compiled],
        }

    def save(self, folder: str | Path) -> Path:
        """Write all stages: the graph into `folder`, each cluster into one named after it.

        Raises:
            ToolError: the graph can't be saved, or the folder not written.
        """
        self.clustered.save(folder)
        for compiled in self.compiled:
            compiled.save(Path(folder) / compiled.lowered.name)
        names = [compiled.lowered.name for compiled in self.compiled]
        return write_record(folder, "stages", {"clusters": names})

    @classmethod
    def load(cls, folder: str | Path) -> Stages:
        """Read what `save` wrote.

        Raises:
            ToolError: no such folder, or a file in it is corrupt or foreign.
        """
        fields = read_record(folder, "stages").value
        clustered = Clustered.load(folder)
        known = {cluster.name for cluster in clustered.clusters}
        compiled = []
        for name in fields.get("clusters", list):
            if name not in known:
                raise fields.wrong("clusters", f"names {name!r}, which is no cluster of the graph")
            compiled.append(Compiled.load(Path(folder) / name))
        return cls(clustered, tuple(one.lowered for one in compiled), tuple(compiled))

    def __repr__(self) -> str:
        names = [lowered.name for lowered in self.lowered]
        return f"<Stages of {self.captured.role} graph {self.captured.fingerprint}: {names}>"


def stages(
    function: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Stages, ...]:
    """Return the stage values for each graph that torch.compile makes of `function`.

    Example: `print(torch_galley.stages(model, inputs)[0].lowered[0].text())`

    Calls `function` once, natively; see Note [What watching does to a program] in tools.watch.
    Backward graphs come too, without being run. Nothing is taken from the cache or put there.

    Args:
        function: a function or an nn.Module, compiled or not.
        args: what to call it with.
        options: settings, as torch.compile takes them.
        kwargs: what to call it with.

    Raises:
        ConfigError: an unknown setting.
        LoweringError: a lowering failed, and the setting `strict` is on.
        CompileError: XLA refused a cluster.
        ToolError: `function` can't be called.
    """
    return tuple(
        settle(captured, _made) for captured in watch(function, args, kwargs, options).graphs
    )


def _made(clustered: Clustered) -> Stages:
    captured = clustered.captured
    known = first_seen(captured.graph.graph.nodes)
    lowered = []
    for cluster in clustered.clusters:
        symbols = cluster_symbols(cluster)
        if symbols <= set(known):
            bindings = {symbol: known[symbol] for symbol in symbols}
            arguments = [Argument.of(node, bindings) for node in cluster.inputs]
            lowered.append(lower(cluster, arguments, bindings, captured.config))
    return Stages(clustered, tuple(lowered), tuple(map(compile, lowered)))
