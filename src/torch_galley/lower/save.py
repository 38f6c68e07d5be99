"""A lowered cluster on disk: its graph, arguments and checks as JSON, its programs as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_galley.capture.save import (
    config_from_json,
    graph_from_json,
    graph_to_json,
    site_from_json,
)
from torch_galley.cluster.clustered import XlaCluster
from torch_galley.cluster.save import cluster_from_json, cluster_to_json, cut_out
from torch_galley.core.config import Config
from torch_galley.core.site import Site
from torch_galley.core.spec import TORCH_DTYPE, TensorSpec
from torch_galley.core.store import Fields, read_record, write_record
from torch_galley.lower.layout import Layout
from torch_galley.ops.check import Check, OutOfRange

if TYPE_CHECKING:
    from torch_galley.lower.driver import Argument, Lowered

_STABLEHLO = "stablehlo.mlir"
_HLO = "before_optimizations.hlo"
_ERRORS = (OutOfRange, IndexError, RuntimeError, ValueError, ZeroDivisionError)


@dataclass(frozen=True)
class Program:
    """Stands for jax's own stage in a Lowered that was loaded: its two texts."""

    stablehlo: str
    hlo: str

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the StableHLO, or with dialect="hlo" the HLO."""
        return self.hlo if dialect == "hlo" else self.stablehlo


def to_json(lowered: Lowered) -> dict[str, Any]:
    """Return a lowered cluster as plain data; see Lowered.to_json."""
    return {
        "name": lowered.name,
        "platform": lowered.platform,
        "arguments": list(map(_argument_to_json, lowered.arguments)),
        "results": list(map(_argument_to_json, lowered.results)),
        "checks": [
            {"error": check.error.__name__, "message": check.message, "node": check.node}
            for check in lowered.checks
        ],
        "sites": {name: dataclasses.asdict(site) for name, site in lowered.sites.items() if site},
    }


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    layout = argument.layout
    return {
        "shape": list(argument.spec.shape),
        "dtype": str(argument.spec.dtype).removeprefix("torch."),
        "order": None if layout is None else list(layout.order),
        "expanded": None if layout is None else list(layout.expanded),
    }


def save(lowered: Lowered, folder: str | Path) -> Path:
    """Write a lowered cluster into a folder; see Lowered.save."""
    files = {_STABLEHLO: lowered.text().encode(), _HLO: lowered.hlo().encode()}
    value = to_json(lowered) | {
        "cluster": cluster_to_json(lowered.cluster),
        "graph": graph_to_json(cut_out(lowered.cluster), files),
        "config": dataclasses.asdict(lowered.config),
    }
    return write_record(folder, "lowered", value, files)


@dataclass(frozen=True)
class Saved:
    """What `load` found, for Lowered to be made of."""

    cluster: XlaCluster
    config: Config
    platform: str
    program: Program
    arguments: list[tuple[TensorSpec, Layout | None]]
    results: list[tuple[TensorSpec, Layout | None]]
    checks: tuple[Check, ...]
    sites: Mapping[str, Site | None]


def load(folder: str | Path) -> Saved:
    """Read what `save` wrote; see Lowered.load."""
    record = read_record(folder, "lowered")
    fields = record.value
    graph = graph_from_json(fields.inside("graph"), record).graph
    nodes = {node.name: node for node in graph.nodes}
    cluster = XlaCluster(*cluster_from_json(fields.inside("cluster"), nodes))
    sites = fields.inside("sites")
    places = {node.name: None for node in cluster.nodes}
    return Saved(
        cluster,
        config_from_json(fields),
        fields.get("platform", str),
        Program(record.text(_STABLEHLO), record.text(_HLO)),
        [_argument(item) for item in fields.each("arguments")],
        [_argument(item) for item in fields.each("results")],
        tuple(_check(item) for item in fields.each("checks")),
        places | {name: site_from_json(sites.inside(name)) for name in sites.data},
    )


def _argument(fields: Fields) -> tuple[TensorSpec, Layout | None]:
    dtype = TORCH_DTYPE.get(fields.get("dtype", str))
    if dtype is None:
        raise fields.wrong("dtype", f"is {fields.data['dtype']!r}, which XLA does not have")
    spec = TensorSpec(_sizes(fields, "shape"), dtype)
    if fields.data.get("order") is None:
        return spec, None
    return spec, Layout(_sizes(fields, "order"), _sizes(fields, "expanded"))


def _sizes(fields: Fields, name: str) -> tuple[int, ...]:
    sizes = fields.get(name, list)
    if not all(isinstance(size, int) for size in sizes):
        raise fields.wrong(name, f"is {sizes}, not whole numbers")
    return tuple(sizes)


def _check(fields: Fields) -> Check:
    errors = {error.__name__: error for error in _ERRORS}
    name = fields.get("error", str)
    if name not in errors:
        raise fields.wrong("error", f"is {name!r}, which no check raises")
    return Check(errors[name], fields.get("message", str), fields.get("node", str))
