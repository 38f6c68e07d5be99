"""The two kinds of step in a plan: run a cluster's executable, run a native operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import torch
from torch import fx

from torch_galley.capture.fx import is_symbolic_number
from torch_galley.cluster.partition import XlaCluster
from torch_galley.compile.client import Compiled, xla_errors
from torch_galley.core.errors import RunError
from torch_galley.core.spec import wide_types
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import (
    Bindings,
    bind,
    cluster_symbols,
    mentions_symbols,
    value_of,
)
from torch_galley.run.buffer import is_view_of, to_jax, to_torch

GetExecutable = Callable[[XlaCluster, tuple[Argument, ...], Bindings], Compiled]
"""Finds or makes the executable for a cluster and given inputs."""


@dataclass(frozen=True)
class OnDevice:
    """A cluster's result that torch has not asked for yet: a dense array and what it stands for."""

    array: jax.Array
    argument: Argument
    platform: str


@dataclass(frozen=True)
class _Ready:
    """What the last call found out, so that the next one with equal inputs need not."""

    described: tuple[Any, ...]
    """Per input its shape and strides, or its Argument if it was on the device."""
    bindings: dict[Any, Any]
    arguments: tuple[Argument, ...]
    compiled: Compiled


class Step(Protocol):
    """One step of a plan: reads its inputs from `env` and puts its results there."""

    dying: tuple[fx.Node, ...]
    """Values that nothing after this step needs."""

    def __call__(self, env: dict[fx.Node, Any], bindings: dict[Any, Any]) -> None: ...


class ClusterStep:
    """Bring the inputs to XLA, run the executable, leave its results on the device."""

    def __init__(self, cluster: XlaCluster, executable: GetExecutable, dying: tuple[fx.Node, ...]):
        self.cluster = cluster
        self.dying = dying
        self._executable = executable
        self._symbols = cluster_symbols(cluster)
        self._ready: _Ready | None = None
        self._parameters: dict[fx.Node, tuple[int, jax.Array]] = {}

    def __call__(self, env: dict[fx.Node, Any], bindings: Bindings) -> None:
        compiled, arrays = self.bring(env, bindings)
        self.leave(env, compiled, self.run(compiled, arrays))

    def bring(
        self, env: dict[fx.Node, Any], bindings: Bindings
    ) -> tuple[Compiled, list[jax.Array]]:
        """Return the executable for the present inputs, and these as arrays."""
        nodes = self.cluster.inputs
        values = [env[node] for node in nodes]
        ready = self._make_ready(values, bindings)
        with wide_types():
            arrays = [
                value.array if isinstance(value, OnDevice) else self._array(node, value, argument)
                for node, value, argument in zip(nodes, values, ready.arguments, strict=True)
            ]
        return ready.compiled, arrays

    def run(self, compiled: Compiled, arrays: list[jax.Array]) -> Sequence[jax.Array]:
        """Start the executable; raise what eager would have raised if a check failed."""
        doing = f"{self.cluster.name} failed"
        with xla_errors(RunError, doing, compiled.lowered.first_site):
            results = compiled(arrays)
            if compiled.lowered.checks:
                _raise_failed(compiled, results[-1])
        return results

    def leave(
        self, env: dict[fx.Node, Any], compiled: Compiled, results: Sequence[jax.Array]
    ) -> None:
        """Put the results into `env`, still on the device."""
        arguments = compiled.lowered.results
        for node, array, argument in zip(self.cluster.outputs, results, arguments, strict=False):
            env[node] = OnDevice(array, argument, compiled.lowered.platform)

    @property
    def compiled(self) -> Compiled | None:
        """The executable of the last call."""
        return self._ready.compiled if self._ready else None

    def _make_ready(self, values: list[Any], bindings: Bindings) -> _Ready:
        """Return the executable for these inputs: the last one if nothing changed."""
        described = tuple(
            value.argument if isinstance(value, OnDevice) else (value.shape, value.stride())
            for value in values
        )
        own = {symbol: bindings[symbol] for symbol in self._symbols if symbol in bindings}
        ready = self._ready
        if ready is not None and ready.described == described and ready.bindings == own:
            return ready
        arguments = tuple(
            value.argument if isinstance(value, OnDevice) else Argument.like(value)
            for value in values
        )
        compiled = self._executable(self.cluster, arguments, own)
        self._ready = ready = _Ready(described, own, arguments, compiled)
        return ready

    def _array(self, node: fx.Node, tensor: torch.Tensor, argument: Argument) -> jax.Array:
        """Bring a tensor to XLA. A parameter's array is kept, since it lives as long as we do.

        An array that views the very memory is as good at the next call, whatever was written
        there meanwhile; it also keeps that memory alive, so an equal address is the same memory.
        """
        if not isinstance(tensor, torch.nn.Parameter):
            return to_jax(tensor, argument.layout)
        address = tensor.data_ptr()
        kept = self._parameters.get(node)
        if kept is not None and kept[0] == address and kept[1].shape == argument.physical.shape:
            return kept[1]
        array = to_jax(tensor, argument.layout)
        if is_view_of(array, tensor):
            self._parameters[node] = (address, array)
        return array


class NativeStep:
    """Run one operator as eager would."""

    def __init__(self, node: fx.Node, counts: bool, dying: tuple[fx.Node, ...]):
        self.node = node
        self.counts = counts
        """Whether it is an operator of its own, rather than one output of another."""
        self.dying = dying
        self._symbolic = mentions_symbols(node.meta.get("val"))

    def __call__(self, env: dict[fx.Node, Any], bindings: dict[Any, Any]) -> None:
        node = self.node
        args, kwargs = fx.map_arg(
            (node.args, node.kwargs), lambda arg: value_as_torch(arg, env, bindings)
        )
        env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        if self._symbolic:
            bind(node.meta.get("val"), env[node], bindings)


def value_as_torch(node: fx.Node, env: dict[fx.Node, Any], bindings: Bindings) -> Any:
    """Return a node's value as torch code wants it: a tensor, waited for, or a Python number."""
    if node in env:
        value = env[node]
        if isinstance(value, OnDevice):
            value = env[node] = to_torch(
                value.array, value.argument.layout, value.argument.spec.shape, value.platform
            )
        return value
    if is_symbolic_number(node):
        return value_of(node.meta["val"], bindings)
    raise RunError(f"{node.name} has no value", hint="this is a bug in torch-galley")


def _raise_failed(compiled: Compiled, verdicts: jax.Array) -> None:
    """Raise what eager would have raised for the first check that failed."""
    lowered = compiled.lowered
    found = to_torch(verdicts, None, (len(lowered.checks), 2), lowered.platform)
    for check, (count, value) in zip(lowered.checks, found.tolist(), strict=True):
        if count:
            site = lowered.sites.get(check.node)
            place = f"\n  at {site}" if site else ""
            raise check.error(check.message.format(value=value) + place)
