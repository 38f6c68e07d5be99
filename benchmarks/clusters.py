"""Clustering against torch's own partitioner, and how its time grows with the graph.

    python -m benchmarks.clusters [--only border|speed]

Border: both cut the same graphs, each in its narrow way (ours by default, theirs with
`skip_horizontal_fusion`) and in its wide one (`horizontal`, theirs by default). Single operations
may be clusters, nothing is refined, and what a cut costs is counted by cluster/price.py. Speed:
processor time for graphs of up to 64,000 operations, in units of a loop of Python, so that figures
of different machines can be compared; torch's partitioner runs once, at 4,000.

Writes docs/clusters.json and docs/clusters.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from benchmarks.zoo import FULL, training
from torch_galley.capture.functional import capture
from torch_galley.capture.fx import Captured
from torch_galley.cluster.atoms import Atoms
from torch_galley.cluster.candidate import candidates
from torch_galley.cluster.check import check
from torch_galley.cluster.contract import contract
from torch_galley.cluster.cut import Problem, cut, edge_weights
from torch_galley.cluster.dag import Dag
from torch_galley.cluster.level import unavoidable
from torch_galley.cluster.price import Tensor, price
from torch_galley.core.config import Config
from torch_galley.core.errors import ClusterError

DOCS = Path(__file__).parents[1] / "docs"
SIZES = (1_000, 4_000, 16_000, 64_000)
GELU_AND_SOFTMAX = ("aten.gelu", "aten.tanh", "aten._softmax", "aten._log_softmax")
ATTENTION = ("aten._scaled_dot_product_flash_attention_for_cpu",)
BACKWARD = ("aten.gelu_backward", "aten.tanh_backward", "aten._softmax_backward_data")
BATCH_NORM = (
    "aten._native_batch_norm_legit_functional",
    "aten.native_batch_norm",
    "aten.native_batch_norm_backward",
)


@dataclass(frozen=True)
class Graph:
    """One graph twice: as FX for torch's partitioner, as a problem for ours."""

    name: str
    fx: fx.Graph
    vertex: dict[fx.Node, int]
    problem: Problem


def _operation(*inputs: Any) -> Any:
    """What the nodes of random graphs call; never run."""


def _random(count: int, seed: int, native: float = 0.1) -> Graph:
    """Draw a graph whose operations read one or two of the 50 before, or of all before."""
    draw = random.Random(seed)
    reach = draw.choice((50, count))
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    edges: set[tuple[int, int]] = set()
    for v in range(count):
        inputs = {draw.randrange(max(0, v - reach), v) for _ in range(draw.choice((1, 1, 2))) if v}
        edges |= {(u, v) for u in inputs}
        nodes.append(graph.call_function(_operation, tuple(nodes[u] for u in sorted(inputs))))
    graph.output(None)
    supported = [draw.random() >= native for _ in range(count)]
    dag = Dag.of([node.name for node in nodes], edges)
    tensors = [
        Tensor(v, tuple(sorted(dag.successors[v])), 1 << draw.randrange(2, 24))
        for v in range(count)
    ]
    vertex = {node: v for v, node in enumerate(nodes)}
    return Graph(f"random {seed}", graph, vertex, Problem(dag, supported, tensors))


def _real(name: str, captured: Captured) -> Graph:
    """Return a captured graph without its constants, which neither side has to hand over."""
    graph = captured.graph.graph
    atoms = Atoms.of(graph)
    first = [nodes[0] for nodes in atoms.members]
    reasons = candidates(first, captured.config, lambda device: True)
    supported = [reason is None for reason in reasons]
    constant = atoms.constants(supported)
    tensors = [t for t in atoms.tensors if t.maker is None or not constant[t.maker]]
    ours = [s and not c for s, c in zip(supported, constant, strict=True)]
    problem = Problem(atoms.dag.without_edges_from(constant), ours, tensors)
    vertex = {node: v for v, nodes in enumerate(atoms.members) for node in nodes}
    return Graph(f"{name}, {captured.role}", graph, vertex, problem)


def _captured(model: Callable[..., Any], run: Callable[[Any], Any], denied: Sequence[str]) -> Any:
    """Return the graphs that torch.compile makes of a model while it runs natively."""
    found: list[Captured] = []
    config = Config(deny_ops=tuple(denied))

    def execute(captured: Captured) -> Callable[[list[Any]], Any]:
        found.append(captured)
        return lambda inputs: list(captured.graph(*inputs))

    torch._dynamo.reset()
    run(torch.compile(model, backend=lambda graph, inputs: capture(graph, inputs, config, execute)))
    return found


def real_graphs() -> Iterator[Graph]:
    """Yield the graphs of GPT-2 and Llama, and of a training step of ResNet-18."""
    for name, denied in (
        ("GPT-2 without gelu and softmax", GELU_AND_SOFTMAX + ATTENTION),
        ("Llama 8x768 without silu and softmax", ("aten.silu", *GELU_AND_SOFTMAX, *ATTENTION)),
        ("Llama 8x768 without mean", ("aten.mean",)),
    ):
        model, inputs = FULL[name.partition(" without")[0]]()
        with torch.no_grad():
            for captured in _captured(model, lambda call, given=inputs: call(**given), denied):
                yield _real(name, captured)
    for name, denied in (
        ("ResNet-18 without convolution", ("aten.convolution", "aten.convolution_backward")),
        ("ResNet-18 without batch norm", BATCH_NORM),
        ("GPT-2, 4 layers without gelu and softmax", GELU_AND_SOFTMAX + ATTENTION + BACKWARD),
    ):
        model, inputs, loss = training(name.partition(" without")[0])

        def step(call: Any, loss: Any = loss, inputs: Any = inputs) -> None:
            loss(call(**inputs)).backward()

        for captured in _captured(model, step, denied):
            yield _real(name, captured)


class _Supports(OperatorSupportBase):
    def __init__(self, nodes: set[fx.Node]):
        self.nodes = nodes

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        return node in self.nodes


def theirs(graph: Graph, narrow: bool) -> list[list[int]]:
    """Return the clusters of torch's partitioner."""
    supported = {node for node, v in graph.vertex.items() if graph.problem.supported[v]}
    partitioner = CapabilityBasedPartitioner(
        fx.GraphModule({}, graph.fx),
        _Supports(supported),
        allows_single_node_partition=True,
        skip_horizontal_fusion=narrow,
    )
    found = [
        sorted({graph.vertex[node] for node in partition.nodes})
        for partition in partitioner.propose_partitions()
    ]
    return sorted(cluster for cluster in found if cluster)


def _is_legal(dag: Dag, clusters: Sequence[Sequence[int]]) -> bool:
    """Whether clusters can run one after another. Those of torch's narrow way sometimes cannot."""
    try:
        check(dag, clusters)
    except ClusterError:
        return False
    return True


def border(graph: Graph) -> dict[str, Any]:
    """Return the four cuts of a graph and what they cost."""
    problem = graph.problem
    row: dict[str, Any] = {"graph": graph.name, "operations": len(problem.dag.names)}
    row["unavoidable"] = unavoidable(problem.dag, problem.supported)
    for wide in (False, True):
        kind = "horizontal" if wide else "default"
        for who, clusters in (
            ("ours", cut(problem, horizontal=wide)),
            ("theirs", theirs(graph, not wide)),
        ):
            row[f"{who} {kind}"] = asdict(price(problem.tensors, clusters))
            row[f"{who} {kind}"]["legal"] = _is_legal(problem.dag, clusters)
    return row


def _unit() -> float:
    """Return the processor seconds of a fixed loop."""
    started = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return time.process_time() - started


def _seconds(call: Callable[[], Any], times: int = 3) -> float:
    """Return the least processor seconds of a call."""
    best = float("inf")
    for _ in range(times):
        gc.collect()
        started = time.process_time()
        call()
        best = min(best, time.process_time() - started)
    return best


def _repeated(graph: Graph, count: int) -> Problem:
    """Return a graph several times over, each copy behind the one before, `count` vertices."""
    dag, length = graph.problem.dag, len(graph.problem.dag.names)
    edges = [(u, v) for u, targets in enumerate(dag.successors) for v in targets]
    edges += [
        (v - length, v) for v in range(length) if not dag.predecessors[v] and dag.successors[v]
    ]
    whole = [
        (u + shift, v + shift)
        for shift in range(0, count, length)
        for u, v in edges
        if u + shift >= 0 and v + shift < count
    ]
    supported = [graph.problem.supported[v % length] for v in range(count)]
    repeated = Dag.of([str(v) for v in range(count)], whole)
    sizes = {t.maker: t.nbytes for t in graph.problem.tensors}
    tensors = [
        Tensor(v, tuple(sorted(repeated.successors[v])), sizes.get(v % length, 0))
        for v in range(count)
    ]
    return Problem(repeated, supported, tensors)


def speed(real: Graph) -> list[dict[str, Any]]:
    """Return the times of cutting random and real graphs of several sizes."""
    rows = []
    unit = min(_unit() for _ in range(5))
    for count in SIZES:
        drawn = {f"random, reach {r}": _random(count, seed) for seed, r in ((6, 50), (1, "any"))}
        problems = {name: graph.problem for name, graph in drawn.items()}
        problems["GPT-2's forward graph, repeated"] = _repeated(real, count)
        for name, problem in problems.items():
            weights = edge_weights(problem.tensors)
            calls = {
                "topo": lambda p=problem: contract(p.dag, p.supported),
                "bytes": lambda p=problem, w=weights: contract(
                    p.dag, p.supported, order="bytes", weights=w
                ),
                "auto": lambda p=problem: check(p.dag, cut(p)),
            }
            row: dict[str, Any] = {"graph": name, "operations": count}
            row |= {order: _seconds(call) for order, call in calls.items()}
            row["units"] = row["auto"] / unit
            if count == 4_000 and name in drawn:
                row["torch"] = _seconds(lambda g=drawn[name]: theirs(g, True), times=1)
            rows.append(row)
            print(row, flush=True)
    return rows


_HEAD = """\
# Clusters

Written by `make bench-clusters`, which says how. The partitioner compared with is torch's
`CapabilityBasedPartitioner`; its narrow way is `skip_horizontal_fusion=True`, its wide one the
default. Operators that would make the graphs one cluster are left out, as their names say.

## What crosses

Clusters / tensors that cross / MiB / predicted microseconds
([price.py](../src/torch_galley/cluster/price.py)). "At least": no cut has fewer clusters.

| graph | operations | at least | ours | torch, narrow | ours, `horizontal` | torch, wide |
|---|---|---|---|---|---|---|
"""
_MIDDLE = """
## Time

Processor seconds for contraction in each order and for the default (both, priced, checked); the
default also in units of a Python loop of a million turns. torch's partitioner runs once.

| graph | operations | topo | bytes | default | units | torch | torch / ours |
|---|---|---|---|---|---|---|---|
"""


def page(data: dict[str, Any]) -> str:
    """Return the figures as a page."""
    kinds = ("ours default", "theirs default", "ours horizontal", "theirs horizontal")
    drawn = [row for row in data["border"] if row["graph"].startswith("random")]
    lines = []
    for row in data["border"]:
        if row not in drawn:
            cells = [row["graph"], row["operations"], row["unavoidable"]]
            lines.append(_row(*cells, *(_cell(row[kind]) for kind in kinds)))
    if drawn:
        lines += ["", f"{len(drawn)} random graphs, our predicted time by torch's:", ""]
    for kind, name in (("default", "narrow"), ("horizontal", "wide")):
        pairs = [(row[f"ours {kind}"], row[f"theirs {kind}"]) for row in drawn]
        if ratios := [ours["seconds"] / torchs["seconds"] for ours, torchs in pairs]:
            median, highest = statistics.median(ratios), max(ratios)
            wrong = [sum(not side["legal"] for side in sides) for sides in zip(*pairs, strict=True)]
            lines.append(
                f"- {name}: median {median:.2f}, highest {highest:.2f}; clusters in a cycle, which "
                f"cannot run: ours in {wrong[0]} graphs, torch's in {wrong[1]}"
            )
    times = []
    for row in data["speed"]:
        figures = [f"{row[key]:.3f}" for key in ("topo", "bytes", "auto")]
        figures.append(f"{row['units']:.1f}")
        if "torch" in row:
            figures += [f"{row['torch']:.1f}", f"{row['torch'] / row['auto']:.0f}"]
        times.append(_row(row["graph"], row["operations"], *figures, *[""] * (6 - len(figures))))
    return _HEAD + "\n".join(lines) + "\n" + _MIDDLE + "\n".join(times) + "\n"


def _row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cell(found: dict[str, Any]) -> str:
    return (
        f"{found['clusters']} / {found['tensors']} / {found['nbytes'] / 2**20:.1f} / "
        f"{found['seconds'] * 1e6:.0f}"
    )


def worse(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each cut of ours that is wrong, or costs more than torch's."""
    lines = []
    for row in rows:
        for kind in ("default", "horizontal"):
            ours, torchs = (row[f"{who} {kind}"]["seconds"] * 1e6 for who in ("ours", "theirs"))
            if not row[f"ours {kind}"]["legal"]:
                lines.append(f"{row['graph']}, {kind}: clusters in a cycle")
            if ours > torchs * (1 + 1e-9):
                lines.append(f"{row['graph']}, {kind}: {ours:.1f} us against {torchs:.1f}")
    return lines


def main() -> int:
    """Measure, write the files, and fail if one of our cuts costs more than torch's."""
    parser = argparse.ArgumentParser(prog="benchmarks.clusters", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=("border", "speed"), help="one half; the other is kept")
    only = parser.parse_args().only
    file = DOCS / "clusters.json"
    data = json.loads(file.read_text()) if file.exists() else {"border": [], "speed": []}
    reals = list(real_graphs())
    if only != "speed":
        data["border"] = []
        for graph in [*reals, *(_random(150 + 10 * seed, seed) for seed in range(50))]:
            data["border"].append(border(graph))
            print(data["border"][-1], flush=True)
    if only != "border":
        data["speed"] = speed(reals[0])
    file.write_text(json.dumps(data, indent=1) + "\n")
    (DOCS / "clusters.md").write_text(page(data))
    lines = worse(data["border"])
    print("\n".join(lines) or "no cut of ours costs more than torch's")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
