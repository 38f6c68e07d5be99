"""The ways to run a program, and what is seen of each: results, inputs, gradients, memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch_galley
from tests.fuzz.program import Program

OPTIONS = {"min_cluster_size": 1, "strict": True, "decide": "size", "rng": "native"}


@dataclass
class Outcome:
    """What a run left behind, on the CPU."""

    results: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    """The inputs after the call."""
    gradients: list[Any] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Of each result and input, the first tensor whose memory it shares, and how far it lies
    behind that one."""
    strides: list[tuple[int, ...]] = field(default_factory=list)
    """Of each result, where it has several elements along a dimension."""
    differentiable: list[bool] = field(default_factory=list)
    """Of each result, whether it requires a gradient."""
    error: BaseException | None = None

    def tensors(self) -> list[Any]:
        """Return all tensors that there are to compare by value."""
        every = (*self.results, *self.inputs, *self.gradients)
        return [one for one in every if isinstance(one, torch.Tensor)]


def eager(
    program: Program, turn: int = 0, mode: Any = None, wide: bool = False, small: bool = True
) -> Outcome:
    """Run it as PyTorch does.

    Args:
        program: what is run.
        turn: which values the inputs have.
        mode: a context in which the calls are made; with `shake_inputs`, it gets the inputs first.
        wide: compute in double precision.
        small: compute with denormal numbers, otherwise they are taken for zero.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    torch.set_flush_denormal(not small)
    try:
        made = program.made(turn=turn, wide=wide)
        if hasattr(mode, "shake_inputs"):
            mode.shake_inputs(made)
        return _run(program.function(wide), made, mode)
    finally:
        torch.set_default_dtype(before)
        torch.set_flush_denormal(False)


class AsMeta(TorchDispatchMode):
    """Computes as eager does, but lays each result out as torch's meta functions say.

    By these a graph is made, so a graph can't know of another layout.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        told = self._told(func, args, kwargs)
        results = func(*args, **kwargs)
        if told is None or any(one.alias_info is not None for one in func._schema.returns):
            return results  # it has no meta function, or is a view or a write
        leaves, form = pytree.tree_flatten(results)
        pairs = zip(leaves, pytree.tree_leaves(told), strict=True)
        return pytree.tree_unflatten([_laid(one, like) for one, like in pairs], form)

    def _told(self, func: Any, args: Any, kwargs: Any) -> Any:
        with FakeTensorMode() as mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            try:
                return func(*given[0], **given[1])
            except Exception:  # its result's shape depends on values
                return None


def _laid(one: Any, like: Any) -> Any:
    if not isinstance(one, torch.Tensor) or one.shape != like.shape:
        return one
    return torch.empty_strided(like.shape, like.stride(), dtype=one.dtype).copy_(one)


def compiled(program: Program, turns: int = 1, backend: str = "galley") -> list[Outcome]:
    """Run it compiled, once for each turn of values."""
    torch._dynamo.reset()
    options = OPTIONS if backend == "galley" else None
    dynamic = True if program.dynamic else None
    function = torch.compile(program.function(), backend=backend, dynamic=dynamic, options=options)
    return [_run(function, program.made(turn=turn)) for turn in range(turns)]


def lazy(program: Program, turns: int = 1) -> list[Outcome]:
    """Run it on the lazy device, once for each turn of values."""
    device = torch_galley.device()
    function = program.function()
    with torch_galley.config(**OPTIONS):
        return [_run(function, program.made(device, turn)) for turn in range(turns)]


def _run(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    mode: AbstractContextManager[Any] | None = None,
) -> Outcome:
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), mode or nullcontext():
            warnings.simplefilter("ignore")
            results = function(*inputs)
            return _seen(results, inputs)
    except Exception as error:
        return Outcome(error=getattr(error, "inner_exception", None) or error)


def _seen(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Outcome:
    seen = Outcome()
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    seen.strides = [_strides(one) for one in tensors]
    seen.differentiable = [one.requires_grad for one in tensors]
    seen.memory = _memory([*tensors, *inputs])
    loss = _loss(tensors)
    seen.results, seen.inputs = _copied(results), _copied(inputs)
    if loss is not None:
        wanted = [one for one in inputs if one.requires_grad and one.is_leaf]
        seen.gradients = _copied(torch.autograd.grad(loss, wanted, allow_unused=True))
    return seen


def _loss(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a sum of all results, each element with a weight of its own."""
    parts = []
    for one in tensors:
        if one.requires_grad and one.numel():
            real = torch.view_as_real(one.resolve_conj()) if one.is_complex() else one
            weights = torch.linspace(-1, 1.5, real.numel(), dtype=real.dtype).to(one.device)
            parts.append((real * weights.reshape(real.shape)).sum().double())
    return torch.stack(parts).sum() if parts else None


def _copied(values: Sequence[Any]) -> list[Any]:
    def copied(one: Any) -> Any:
        if isinstance(one, FakeTensor):  # torch.compile has lost the values
            return f"a tensor without values, {one.dtype}{list(one.shape)}"
        return one.detach().cpu().clone() if isinstance(one, torch.Tensor) else one

    return [copied(one) for one in values]


def _strides(one: torch.Tensor) -> tuple[int, ...]:
    if not one.numel():
        return ()
    return tuple(stride for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1)


def _memory(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    first: dict[int, int] = {}
    found = []
    for number, one in enumerate(tensors):
        owner = first.setdefault(one.untyped_storage()._cdata, number) if one.numel() else number
        found.append((owner, one.storage_offset() - tensors[owner].storage_offset()))
    return found
