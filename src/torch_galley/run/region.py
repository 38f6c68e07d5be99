"""A cluster's operations run natively, one by one, as a plan without the cluster would run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from torch_galley.cluster.partition import XlaCluster
from torch_galley.lower.symbol import value_of
from torch_galley.run.step import NativeStep, as_torch


class NativeCluster:
    """Stands in for a cluster's step; gives the same results, all as tensors.

    Values are dropped after their last use, as a plan does.
    """

    def __init__(self, cluster: XlaCluster):
        self._inputs = cluster.inputs
        self._outputs = cluster.outputs
        self._steps = [NativeStep(node) for node in cluster.nodes]
        last = {node: number for number, step in enumerate(self._steps) for node in step.inputs}
        kept = set(cluster.outputs)
        self._frees: list[list[fx.Node]] = [[] for _ in self._steps]
        for node, number in last.items():
            if node not in kept:
                self._frees[number].append(node)

    def __call__(self, values: Sequence[Any], bindings: dict[Any, Any]) -> list[Any]:
        """Return the outputs for the values of the cluster's inputs."""
        known: dict[fx.Node, Any] = dict(zip(self._inputs, map(as_torch, values), strict=True))
        for step, frees in zip(self._steps, self._frees, strict=True):
            given = [
                known[node] if node in known else value_of(node.meta["val"], bindings)
                for node in step.inputs
            ]
            (known[step.node],) = step(given, bindings)
            del given
            for node in frees:
                known.pop(node, None)
        return [known[node] for node in self._outputs]
