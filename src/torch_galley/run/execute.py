"""The plan: what is left of a graph at run time, a flat list of steps over numbered slots.

Note [Aliasing]. Inputs reach XLA as views of torch's memory (run.buffer). Three rules keep a
later write of the caller from changing an earlier result:
1. A call returns only when every executable it started has finished: results that torch sees are
   waited for by their export, and results that only fed other executables are older than those.
   An executable all of whose results stay unexported is waited for at the end.
2. XLA never hands an input's memory out as a result: inputs are not donated, and the driver copies
   an output that is an input or another output.
3. What crosses the border keeps eager's strides (lower.layout), so that native operators and
   AOTAutograd's replayed views see the memory they expect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch import fx

from torch_galley.capture.fx import is_symbolic_number
from torch_galley.cluster.partition import Clustered, XlaCluster
from torch_galley.compile.client import Compiled, xla_errors
from torch_galley.core.errors import RunError
from torch_galley.core.events import ClustersExecuted, NativeExecuted, emit
from torch_galley.core.spec import wide_types
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import Bindings, bind, value_of
from torch_galley.run.buffer import to_jax, to_torch

GetExecutable = Callable[[XlaCluster, tuple[Argument, ...], Bindings], Compiled]
"""Finds or makes the executable for a cluster and given inputs."""


@dataclass(frozen=True)
class OnDevice:
    """A cluster's result that torch has not asked for yet: a dense array and its layout."""

    array: jax.Array
    argument: Argument

    def tensor(self) -> torch.Tensor:
        """Return it as a tensor, waiting for it."""
        return to_torch(self.array, self.argument.layout, self.argument.spec.shape)


@dataclass
class Plan:
    """A callable made of a clustered graph. Call it with a list of inputs, which it empties.

    Safe to call from several threads: all it keeps between calls is in the executable cache.
    """

    clustered: Clustered
    executable: GetExecutable
    _last_use: dict[fx.Node, int] = field(default_factory=dict)
    _inputs: list[fx.Node] = field(default_factory=list)
    _constants: dict[fx.Node, Any] = field(default_factory=dict)
    _result: Any = None
    _symbolic: bool = False

    def __post_init__(self) -> None:
        graph = self.clustered.captured.graph
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                self._inputs.append(node)
                self._symbolic |= _mentions_symbols(node)
            elif node.op == "get_attr":
                self._constants[node] = _attribute(graph, str(node.target))
            elif node.op == "output":
                self._result = node.args[0]
            self._symbolic |= _mentions_symbols(node)
        for number, step in enumerate(self.clustered.steps):
            used = step.inputs if isinstance(step, XlaCluster) else step.all_input_nodes
            for node in used:
                self._last_use[node] = number
        for node in _nodes_in(self._result):
            self._last_use[node] = len(self.clustered.steps)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        started = time.perf_counter()
        env: dict[fx.Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        bindings: dict[Any, Any] = {}
        if self._symbolic:
            for node in self._inputs:
                bind(node.meta.get("val"), env[node], bindings)
        inputs.clear()
        env.update(self._constants)
        natives, pending = 0, []
        steps = self.clustered.steps
        for number, step in enumerate(steps):
            if isinstance(step, XlaCluster):
                pending += self._run_cluster(step, env, bindings)
                used: Sequence[fx.Node] = step.inputs
            else:
                env[step] = self._run_native(step, env, bindings)
                natives += step in self.clustered.native
                used = step.all_input_nodes
                if self._symbolic:
                    bind(step.meta.get("val"), env[step], bindings)
            for node in used:
                if self._last_use[node] == number:
                    env.pop(node, None)
        result = [self._output(item, env, bindings) for item in self._result]
        if self.clustered.clusters:
            # Note [Aliasing], rule 1: nothing may still be reading the caller's memory.
            jax.block_until_ready(pending)
            names = tuple(cluster.name for cluster in self.clustered.clusters)
            emit(ClustersExecuted(len(names), names, time.perf_counter() - started))
        if natives:
            emit(NativeExecuted(natives))
        return result

    def _run_cluster(
        self, cluster: XlaCluster, env: dict[fx.Node, Any], bindings: Bindings
    ) -> list[jax.Array]:
        """Run a cluster, put its results into `env`, and return what must be waited for."""
        arrays, arguments = [], []
        with wide_types():
            for node in cluster.inputs:
                value = env[node]
                if isinstance(value, OnDevice):
                    arrays.append(value.array)
                    arguments.append(value.argument)
                else:
                    argument = Argument.like(value)
                    arrays.append(to_jax(value, argument.layout))
                    arguments.append(argument)
            compiled = self.executable(cluster, tuple(arguments), bindings)
            lowered = compiled.lowered
            with xla_errors(RunError, f"{cluster.name} failed", _site(lowered.sites)):
                results = compiled(*arrays)
                if lowered.checks:
                    _raise_failed(lowered, results[-1])
        for node, array, argument in zip(cluster.outputs, results, lowered.results, strict=False):
            env[node] = OnDevice(array, argument)
        return list(results[:1])

    def _run_native(self, node: fx.Node, env: Mapping[fx.Node, Any], bindings: Bindings) -> Any:
        def tensor(arg: fx.Node) -> Any:
            return _value(arg, env, bindings)

        args, kwargs = fx.map_arg((node.args, node.kwargs), tensor)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _output(self, item: Any, env: Mapping[fx.Node, Any], bindings: Bindings) -> Any:
        return _value(item, env, bindings) if isinstance(item, fx.Node) else item


def _value(node: fx.Node, env: Mapping[fx.Node, Any], bindings: Bindings) -> Any:
    """Return a node's value as torch code wants it: a tensor, or a Python number."""
    if node in env:
        value = env[node]
        if isinstance(value, OnDevice):
            value = value.tensor()
            env[node] = value  # type: ignore[index]  # converted once
        return value
    if is_symbolic_number(node):
        return value_of(node.meta["val"], bindings)
    raise RunError(f"{node.name} has no value", hint="this is a bug in torch-galley")


def _raise_failed(lowered: Any, verdicts: jax.Array) -> None:
    for check, (count, value) in zip(lowered.checks, verdicts.tolist(), strict=True):
        if count:
            site = lowered.sites.get(check.node)
            place = f"\n  at {site}" if site else ""
            raise check.error(check.message.format(value=value) + place)


def _site(sites: Mapping[str, Any]) -> Any:
    return next((site for site in sites.values() if site), None)


def _nodes_in(result: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(result, found.append)
    return found


def _mentions_symbols(node: fx.Node) -> bool:
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        return any(not isinstance(size, int) for size in val.shape)
    return isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool)


def _attribute(module: torch.nn.Module, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
