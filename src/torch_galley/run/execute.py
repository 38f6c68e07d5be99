"""The plan: what is left of a graph at run time, a flat list of instructions over slots.

Note [Aliasing]. Inputs reach XLA as views of torch's memory (run.buffer), and XLA may run
asynchronously (our own CPU client does not, see compile.engine). Three rules keep a later write
of the caller from changing an earlier result:
1. A call returns only when every executable it started has finished. A cluster has results only
   if something outside needs them: torch, whose export waits for them, or a later cluster, which
   cannot finish before them. So waiting for what torch sees is waiting for all.
2. XLA never hands an input's memory out as a result: inputs are not donated, and the driver copies
   an output that is an input or another output.
3. What crosses the border keeps eager's strides (lower.layout), so that native operators and
   AOTAutograd's replayed views see the memory they expect.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_galley.capture.fx import is_shape_number
from torch_galley.cluster.partition import Clustered, XlaCluster
from torch_galley.compile import client
from torch_galley.core.events import NativeExecuted, PlanExecuted, emit
from torch_galley.lower.symbol import bind, mentions_symbols, value_of
from torch_galley.run.step import ClusterStep, GetExecutable, NativeStep, Step, as_torch


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step and the slots that it reads, writes and is the last to need."""

    step: Step
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]


class Plan:
    """A callable made of a clustered graph. Call it with a list of inputs, which it empties.

    Safe to call from several threads: what it keeps between calls is replaced whole, never
    changed in place.
    """

    def __init__(self, clustered: Clustered, executable: GetExecutable):
        self.clustered = clustered
        self.executable = executable
        self.executions = len(clustered.clusters)
        """Executables that one run runs."""
        self.natives = len(clustered.native)
        """Operator calls that one run makes outside XLA."""
        graph = clustered.captured.graph
        # Placeholders first, so that the list of inputs is the beginning of the slots.
        nodes = sorted(graph.graph.nodes, key=lambda node: node.op != "placeholder")
        self._slot = {node: slot for slot, node in enumerate(nodes)}
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        (output,) = (node for node in nodes if node.op == "output")
        self._result: Sequence[Any] = output.args[0]
        others = [_constant(graph, node) for node in nodes[len(self._inputs) :]]
        plain = [item for item in self._result if not isinstance(item, fx.Node)]
        self._rest = others + plain
        """What the slots behind the inputs' hold when a call begins."""
        behind = iter(range(len(nodes), len(nodes) + len(plain)))
        self._leave = [
            self._slot[item] if isinstance(item, fx.Node) else next(behind) for item in self._result
        ]
        """The slots of the results."""
        self._numbers = [
            (self._slot[item], item.meta["val"])
            for item in self._result
            if isinstance(item, fx.Node) and is_shape_number(item)
        ]
        """Results that follow from sizes and are computed by no step."""
        self._symbolic = any(mentions_symbols(node.meta.get("val")) for node in nodes)
        self.instructions = self._instructions()

    def _instructions(self) -> list[Instruction]:
        kept: set[fx.Node] = set()
        fx.map_arg(self._result, kept.add)
        made: list[tuple[Step, Sequence[fx.Node], Sequence[fx.Node]]] = []
        read_by_clusters = {n for cluster in self.clustered.clusters for n in cluster.inputs}
        for part in self.clustered.steps:
            if isinstance(part, XlaCluster):
                stays = [node in read_by_clusters for node in part.outputs]
                step = ClusterStep(part, self.executable, stays)
                made.append((step, part.inputs, part.outputs))
            else:
                native = NativeStep(part)
                made.append((native, native.inputs, (part,)))
        last_use = {node: number for number, (_, reads, _) in enumerate(made) for node in reads}
        slot = self._slot
        return [
            Instruction(
                step,
                tuple(slot[node] for node in reads),
                tuple(slot[node] for node in writes),
                tuple(slot[n] for n in set(reads) if last_use[n] == number and n not in kept),
            )
            for number, (step, reads, writes) in enumerate(made)
        ]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if client.forked:
            return self._natively(inputs)
        started = time.perf_counter()
        slots = inputs + self._rest
        bindings: dict[Any, Any] = {}
        if self._symbolic:
            for node, value in zip(self._inputs, inputs, strict=True):
                bind(node.meta.get("val"), value, bindings)
        inputs.clear()  # so that what a step is the last to need is really freed
        for instruction in self.instructions:
            values = [slots[slot] for slot in instruction.reads]
            results = instruction.step(values, bindings)
            for slot, result in zip(instruction.writes, results, strict=True):
                slots[slot] = result
            for slot in instruction.frees:
                slots[slot] = None
        for slot, val in self._numbers:
            slots[slot] = value_of(val, bindings)
        result = [as_torch(slots[slot]) for slot in self._leave]
        emit(PlanExecuted(self, time.perf_counter() - started))
        return result

    def _natively(self, inputs: list[Any]) -> list[Any]:
        """Run the captured graph in torch, as a process must that was forked from one with XLA."""
        given = list(inputs)
        inputs.clear()
        emit(NativeExecuted(self.clustered.operations))
        return list(self.clustered.captured.graph(*given))


def _constant(module: torch.nn.Module, node: fx.Node) -> Any:
    """Return the value of a get_attr node, None for any other."""
    if node.op != "get_attr":
        return None
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found
