"""The plan: what is left of a graph at run time, a flat list of steps.

Note [Aliasing]. Inputs reach XLA as views of torch's memory (run.buffer), and XLA runs
asynchronously. Three rules keep a later write of the caller from changing an earlier result:
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
from typing import Any

import torch
from torch import fx

from torch_galley.cluster.partition import Clustered, XlaCluster
from torch_galley.core.events import PlanExecuted, emit
from torch_galley.lower.symbol import bind, mentions_symbols
from torch_galley.run.step import ClusterStep, GetExecutable, NativeStep, Step, value_as_torch


class Plan:
    """A callable made of a clustered graph. Call it with a list of inputs, which it empties.

    Safe to call from several threads: what it keeps between calls is replaced whole, never
    changed in place.
    """

    def __init__(self, clustered: Clustered, executable: GetExecutable):
        graph = clustered.captured.graph
        self.clustered = clustered
        self.executable = executable
        self._inputs: list[fx.Node] = []
        self._constants: dict[fx.Node, Any] = {}
        self._result: Sequence[Any] = ()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                self._inputs.append(node)
            elif node.op == "get_attr":
                self._constants[node] = _attribute(graph, str(node.target))
            elif node.op == "output":
                self._result = node.args[0]
        self._symbolic = any(mentions_symbols(n.meta.get("val")) for n in graph.graph.nodes)
        self.steps = self._make_steps()
        self.natives = sum(isinstance(s, NativeStep) and s.counts for s in self.steps)

    def _make_steps(self) -> list[Step]:
        kept: set[fx.Node] = set()
        fx.map_arg(self._result, kept.add)
        last_use: dict[fx.Node, int] = {}
        for number, step in enumerate(self.clustered.steps):
            for node in _used(step):
                last_use[node] = number
        dying: list[list[fx.Node]] = [[] for _ in self.clustered.steps]
        for node, number in last_use.items():
            if node not in kept:
                dying[number].append(node)
        return [
            ClusterStep(step, self.executable, tuple(dead))
            if isinstance(step, XlaCluster)
            else NativeStep(step, step in self.clustered.native, tuple(dead))
            for step, dead in zip(self.clustered.steps, dying, strict=True)
        ]

    def bind(self, inputs: Sequence[Any]) -> tuple[dict[fx.Node, Any], dict[Any, Any]]:
        """Return what the steps start from: each input by its node, and the shape symbols."""
        env: dict[fx.Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        bindings: dict[Any, Any] = {}
        if self._symbolic:
            for node, value in env.items():
                bind(node.meta.get("val"), value, bindings)
        env.update(self._constants)
        return env, bindings

    def __call__(self, inputs: list[Any]) -> list[Any]:
        started = time.perf_counter()
        env, bindings = self.bind(inputs)
        inputs.clear()  # so that a step's dead inputs are really freed
        for step in self.steps:
            step(env, bindings)
            for node in step.dying:
                env.pop(node, None)
        result = [
            value_as_torch(item, env, bindings) if isinstance(item, fx.Node) else item
            for item in self._result
        ]
        emit(PlanExecuted(self, time.perf_counter() - started))
        return result


def _used(step: XlaCluster | fx.Node) -> Sequence[fx.Node]:
    return step.inputs if isinstance(step, XlaCluster) else step.all_input_nodes


def _attribute(module: torch.nn.Module, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
