"""The two kinds of step in a plan: run a cluster's executable, run a native operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import torch
from torch import fx

from torch_galley.capture.fx import is_symbolic_number
from torch_galley.cluster.partition import XlaCluster
from torch_galley.compile.client import Compiled, xla_error
from torch_galley.core.errors import RunError
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

    bindings: dict[Any, Any]
    slots: list[_Slot]
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

    def __call__(self, env: dict[fx.Node, Any], bindings: Bindings) -> None:
        compiled, arrays = self.bring(env, bindings)
        self.leave(env, compiled, self.run(compiled, arrays))

    def bring(
        self, env: dict[fx.Node, Any], bindings: Bindings
    ) -> tuple[Compiled, list[jax.Array]]:
        """Return the executable for the present inputs, and these as arrays."""
        ready = self._ready
        if ready is None or (self._symbols and ready.bindings != self._own(bindings)):
            ready = self._make_ready(env, bindings)
        while True:
            arrays = [
                slot.array(env[node])
                for node, slot in zip(self.cluster.inputs, ready.slots, strict=True)
            ]
            if None not in arrays:
                return ready.compiled, arrays
            ready = self._make_ready(env, bindings)  # an input is not as it was

    def run(self, compiled: Compiled, arrays: list[jax.Array]) -> Sequence[jax.Array]:
        """Start the executable; raise what eager would have raised if a check failed."""
        try:
            results = compiled.executable(arrays)
            if compiled.lowered.checks:
                _raise_failed(compiled, results[-1])
        except jax.errors.JaxRuntimeError as error:
            doing = f"{self.cluster.name} failed"
            raise xla_error(error, RunError, doing, compiled.lowered.first_site) from error
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

    def _own(self, bindings: Bindings) -> dict[Any, Any]:
        return {symbol: bindings[symbol] for symbol in self._symbols if symbol in bindings}

    def _make_ready(self, env: Mapping[fx.Node, Any], bindings: Bindings) -> _Ready:
        """Find the executable for inputs as these are, and keep it for the next call."""
        values = [env[node] for node in self.cluster.inputs]
        arguments = tuple(
            value.argument if isinstance(value, OnDevice) else Argument.like(value)
            for value in values
        )
        own = self._own(bindings)
        compiled = self._executable(self.cluster, arguments, own)
        slots = [_Slot(value, argument) for value, argument in zip(values, arguments, strict=True)]
        self._ready = ready = _Ready(own, slots, compiled)
        return ready


class _Slot:
    """One input of a cluster: what it must be like, and the way to its array."""

    __slots__ = ("_address", "_argument", "_kept", "_shape", "_stride")

    def __init__(self, value: Any, argument: Argument):
        self._argument = argument
        self._shape = argument.spec.shape
        self._stride = None if isinstance(value, OnDevice) else value.stride()
        self._address = 0
        self._kept: Any = None

    def array(self, value: Any) -> Any:
        """Return the array for a value, None if it is not like the one this slot was made for."""
        if type(value) is OnDevice:
            # Usually the very object, since it comes from another cluster's Lowered.
            same = value.argument is self._argument or value.argument == self._argument
            return value.array if same else None
        if self._kept is not None and value.data_ptr() == self._address:
            return self._kept
        if value.stride() != self._stride or value.shape != self._shape:
            return None
        array = to_jax(value, self._argument.layout)
        if isinstance(value, torch.nn.Parameter) and is_view_of(array, value):
            # An array that views the very memory is as good at the next call, whatever was
            # written there meanwhile. It also keeps that memory alive, so that an equal address
            # is the same memory; and a parameter lives as long as we do. That its shape is still
            # the same is guarded by who calls us.
            self._address, self._kept = value.data_ptr(), array
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
