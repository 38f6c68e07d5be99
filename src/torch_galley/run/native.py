"""Running operators as eager would: one of a plan, or all of a cluster that has no executable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from torch_galley.capture.body import body_of
from torch_galley.capture.fx import is_shape_number
from torch_galley.cluster.clustered import XlaCluster
from torch_galley.cluster.operation import is_operation
from torch_galley.core.errors import RunError
from torch_galley.core.site import site_of
from torch_galley.core.spec import TensorSpec
from torch_galley.lower.symbol import Bindings, bind, mentions_symbols, value_of
from torch_galley.ops.schema import is_torchs
from torch_galley.run.device import as_torch


class NativeStep:
    """Run one operator as eager would."""

    def __init__(self, node: fx.Node):
        self.node = node
        self.inputs = tuple(n for n in node.all_input_nodes if not is_shape_number(n))
        """What must be given to a call; numbers that follow from shapes are worked out."""
        self._symbolic = mentions_symbols(node.meta.get("val"))
        target = node.target
        self._own = isinstance(target, OpOverload) and not is_torchs(target.namespace)

    def __call__(self, values: list[Any], bindings: dict[Any, Any]) -> tuple[Any]:
        given = dict(zip(self.inputs, values, strict=True))

        def actual(arg: fx.Node) -> Any:
            return as_torch(given[arg]) if arg in given else value_of(arg.meta["val"], bindings)

        node = self.node
        args, kwargs = fx.map_arg((node.args, node.kwargs), actual)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        if self._symbolic:
            bind(node.meta.get("val"), result, bindings)
        if self._own:
            _check(node, result, bindings)
        return (result,)


def _check(node: fx.Node, result: Any, bindings: Bindings) -> None:
    """Raise unless a user's operator gave what its fake rule says: the rest was made for that."""
    told, given = tree_leaves(node.meta.get("val")), tree_leaves(result)
    for want, got in zip(told, given, strict=False):
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            continue
        shape = tuple(value_of(size, bindings) for size in want.shape)
        if got.shape != shape or got.dtype is not want.dtype:
            raise RunError(
                f"{node.target} gave {TensorSpec(tuple(got.shape), got.dtype)}, its fake rule says "
                f"{TensorSpec(shape, want.dtype)}",
                site=site_of(node.meta),
                hint="mend what register_fake was given, or the operator",
            )


class NativeCluster:
    """Run a cluster's operators one by one. Results are eager's, of eager's strides and memory."""

    def __init__(self, cluster: XlaCluster):
        self._inputs, self._outputs = cluster.inputs, cluster.outputs
        self._steps = [NativeStep(node) for node in cluster.nodes]
        self.operators = tuple(node.target for node in cluster.nodes if is_operation(node))
        """The operators that a run calls."""
        last = {node: step.node for step in self._steps for node in (step.node, *step.inputs)}
        self._frees: dict[fx.Node, list[fx.Node]] = {step.node: [] for step in self._steps}
        for node, reader in last.items():
            if node not in cluster.outputs:
                self._frees[reader].append(node)

    def __call__(self, values: Sequence[Any], bindings: Bindings) -> list[Any]:
        """Return tensors for the values of the cluster's inputs."""
        known = dict(zip(self._inputs, values, strict=True))
        bound = dict(bindings)
        for step in self._steps:
            given = [
                # What no cluster takes as an input is a number that was read from data.
                known[node] if node in known else body_of(node) or value_of(node.meta["val"], bound)
                for node in step.inputs
            ]
            (known[step.node],) = step(given, bound)
            del given
            for node in self._frees[step.node]:
                known.pop(node, None)
        return [known[node] for node in self._outputs]
