"""Random operators of ours outside of clusters: each compiled alone, so that numbers are the same.

Whether a draw is in a cluster depends on settings, sizes and measurements, and a checkpoint may
draw once on either side. The lowering alone says what is drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_galley.cluster.clustered import XlaCluster
from torch_galley.compile import client
from torch_galley.core.config import current
from torch_galley.lower.driver import Argument, lower
from torch_galley.ops import draw
from torch_galley.run.buffer import is_wrapper, to_jax
from torch_galley.run.device import as_tensor
from torch_galley.run.step import raise_failed

_without_xla: ContextVar[bool] = ContextVar("galley_without_xla", default=False)


@contextlib.contextmanager
def without_xla() -> Iterator[None]:
    """Draw by torch's operators meanwhile, from generators of the seeds: nothing is compiled."""
    token = _without_xla.set(True)
    try:
        yield
    finally:
        _without_xla.reset(token)


def run(own: OpOverload, seed: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute a random operator for its seed, by its lowering where XLA may run."""
    if client.forked or _without_xla.get() or any(map(is_wrapper, args)):
        return draw.drawn_by_torch(own, seed, args, kwargs)
    tensors = [seed, *(arg for arg in args if isinstance(arg, torch.Tensor))]
    arguments = tuple(map(Argument.like, tensors))
    devices = tuple(tensor.device for tensor in tensors)
    spelled = tuple(map(_spelled, args))
    compiled = _compiled(
        own, arguments, devices, spelled, tuple(kwargs.items()), current().check_indices
    )
    lowered = compiled.lowered
    arrays = [
        to_jax(tensor, argument.layout, compiled.engine)
        for tensor, argument in zip(tensors, arguments, strict=True)
    ]
    results = list(compiled(arrays))
    if lowered.checks:
        raise_failed(lowered, compiled.engine.take(results.pop()))
    made = [
        as_tensor(array, argument, compiled.engine)
        for array, argument in zip(results, lowered.results, strict=True)
    ]
    return made[0] if len(made) == 1 else tuple(made)


def _spelled(arg: Any) -> Any:
    """Return an argument as part of a key, in which 1 is not 1.0 and tensors are all alike."""
    if isinstance(arg, torch.Tensor):
        return torch.Tensor
    return (type(arg), tuple(arg) if isinstance(arg, list | tuple) else arg)


@lru_cache(maxsize=512)
def _compiled(
    own: OpOverload,
    arguments: tuple[Argument, ...],
    devices: tuple[torch.device, ...],
    spelled: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    check: bool,
) -> client.Compiled:
    """Return a program of one operator alone."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"input_{i}") for i in range(len(arguments))]
    rest = iter(inputs[1:])
    args = [
        next(rest) if arg is torch.Tensor else list(arg[1]) if isinstance(arg[1], tuple) else arg[1]
        for arg in spelled
    ]
    node = graph.call_function(own, (inputs[0], 0, *args), dict(kwargs))
    with FakeTensorMode():
        for place, argument, device in zip(inputs, arguments, devices, strict=True):
            place.meta["val"] = _like(argument, device)
        given = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        val = node.meta["val"] = own(*given[0], **given[1])
    picks = ()
    if isinstance(val, tuple):
        picks = tuple(graph.call_function(operator.getitem, (node, i)) for i in range(len(val)))
        for pick, one in zip(picks, val, strict=True):
            pick.meta["val"] = one
    name = f"xla_{own._schema.name.rpartition('::')[2]}"
    cluster = XlaCluster(name, (node, *picks), tuple(inputs), picks or (node,))
    config = dataclasses.replace(current(), check_indices=check)
    return client.compile(lower(cluster, arguments, {}, config))


def _like(argument: Argument, device: torch.device) -> torch.Tensor:
    """Return a tensor of an argument's kind."""
    shape, layout = argument.spec.shape, argument.layout
    dense = layout.physical(shape) if layout else shape
    tensor = torch.empty(dense, dtype=argument.spec.dtype, device=device)
    return layout.unpack(tensor, shape) if layout else tensor


draw.use_kernel(run)
