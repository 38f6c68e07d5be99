"""A graph inside a graph as a function of arrays: a branch of a cond, the body of a loop.

Its nodes are lowered by the driver's own walk. A number that follows from sizes is a Python number
here as elsewhere; one that is read from a tensor inside is known only while the loop runs, and is
an array without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import fx

from torch_galley.capture.body import attribute, body_of, elements
from torch_galley.capture.fx import is_symbolic_number, reads_data
from torch_galley.core.spec import XLA_DTYPE
from torch_galley.lower.guard import constant
from torch_galley.lower.symbol import Bindings, bind

Walk = Callable[..., Any]
"""The driver's: the value of a node."""


@dataclass(frozen=True)
class Body:
    """A graph as a function, which jax may trace."""

    graph: fx.GraphModule
    path: str
    """Where it is, such as "cond.true_graph_0": in front of its nodes' names."""
    bindings: Bindings
    walk: Walk

    def __call__(self, *operands: Any) -> list[jax.Array]:
        """Return the graph's results for its inputs."""
        nodes = self.graph.graph.nodes
        constants = constant(node for node in nodes if node.op == "call_function")
        env: dict[fx.Node, Any] = {}
        bindings = dict(self.bindings)
        given = iter(operands)
        results: list[jax.Array] = []
        for node in nodes:
            if node.op == "placeholder":
                env[node] = _fenced(next(given))
                _learn(node, env[node], bindings)
            elif node.op == "get_attr":
                if body_of(node) is None:
                    env[node] = _array(attribute(self.graph, str(node.target)))
            elif node.op == "output":
                found = node.args[0]
                several = found if isinstance(found, tuple | list) else [found]
                results = [_fenced(_strong(env[item])) for item in several]  # type: ignore[index]
            elif not is_symbolic_number(node) or _known_inside(node, env):
                env[node] = self.walk(node, env, bindings, constants, f"{self.path}.")
        return results


def _known_inside(node: fx.Node, env: Mapping[fx.Node, Any]) -> bool:
    """Whether a number is known only while the body runs."""
    return reads_data(node) or any(
        is_symbolic_number(arg) and isinstance(env.get(arg), jax.Array)
        for arg in node.all_input_nodes
    )


def _learn(node: fx.Node, value: Any, bindings: dict[Any, Any]) -> None:
    """Bind the symbols of an input's sizes, or of the number that it is."""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        for size, real in zip(val.shape, value.shape, strict=True):
            bind(size, real, bindings)
    elif not isinstance(value, jax.Array):
        bind(val, value, bindings)


def _fenced(value: Any) -> Any:
    """Keep XLA from simplifying what is inside together with what is outside: see lower.guard.

    XLA forgets the barrier before it fuses, so that it costs nothing.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.inexact):
        return lax.optimization_barrier(value)
    return value


def _strong(array: jax.Array) -> jax.Array:
    """Return an array whose dtype is its own, not one that jax would let others change."""
    return lax.convert_element_type(array, array.dtype)


def _array(tensor: torch.Tensor) -> jax.Array:
    """Return a tensor that the graph holds as a constant."""
    dtype, shape = jnp.dtype(XLA_DTYPE[tensor.dtype]), tuple(tensor.shape)
    return jnp.asarray(np.frombuffer(elements(tensor), dtype).reshape(shape))
