"""One operator tried with made-up arguments: which dtypes it takes, what it is rewritten into."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from torch_galley.capture.fx import Captured
from torch_galley.capture.random import draw_from_seed
from torch_galley.cluster.clustered import Clustered
from torch_galley.cluster.operation import is_operation
from torch_galley.core.config import Config
from torch_galley.core.errors import LoweringError
from torch_galley.core.reasons import Seed, TooSmall
from torch_galley.core.spec import XLA_DTYPE, TensorSpec
from torch_galley.lower.driver import Argument, lower
from torch_galley.ops.decompose import decompositions
from torch_galley.pipeline import settle

_OWN = {
    torch.bool: {"condition", "mask"},
    torch.int64: {"index", "indices", "target"},
}
"""Tensors that have a dtype of their own, whatever the others have."""


@dataclass(frozen=True)
class Trial:
    """What became of an operator for one dtype."""

    arguments: str
    """What it was tried with."""
    into: tuple[str, ...]
    """The operators of the captured graph."""
    verdict: str
    """"xla", or why not."""


def trials(op: OpOverload) -> dict[str, Trial]:
    """Return a trial for each dtype that eager takes; empty if no arguments could be made up.

    "any" is the only one of an operator that takes no tensor.

    Example: `trials(torch.ops.aten.neg.default)["float32"].verdict` is "xla".
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch logs what a refusal looked like from inside
    try:
        return _trials(op)
    finally:
        logging.disable(before)


def _trials(op: OpOverload) -> dict[str, Trial]:
    out = {}
    for dtype in XLA_DTYPE:
        for args, kwargs in _candidates(op, dtype):
            if _runs(op, args, kwargs):
                trial = _trial(op, args, kwargs)
                if not any(isinstance(arg, torch.Tensor | list) for arg in args):
                    return {"any": trial}
                out[str(dtype).removeprefix("torch.")] = trial
                break
    return out


def _runs(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> bool:
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            op(*args, **kwargs)
    except Exception:  # whatever eager has against these arguments, they are not the ones
        return False
    return True


def _trial(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Trial:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        whole = [next(rest) if isinstance(arg, torch.Tensor) else arg for arg in args]
        found = op(*whole, **kwargs)
        return found if isinstance(found, tuple | list) else (found,)

    told = ", ".join(map(_spelled, args))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = decompositions()
            with enable_python_dispatcher():  # as under AOTAutograd: dropout is native_dropout
                graph = make_fx(call, decomposition_table=table, tracing_mode="fake")(*tensors)
    except Exception as error:
        return Trial(told, (), f"can't be captured: {type(error).__name__}")
    draw_from_seed(graph)
    graph.graph.eliminate_dead_code()
    made = [node for node in graph.graph.nodes if is_operation(node)]
    into = tuple(dict.fromkeys(str(node.target) for node in made))
    return Trial(told, into, _verdict(graph))


def _verdict(graph: fx.GraphModule) -> str:
    captured = Captured(graph, "inference", Config(min_cluster_size=1, strict=True))
    try:
        found = settle(captured, _lowered)
    except LoweringError as error:
        return error.message
    except AttributeError:  # a graph that returns no tensor
        return "its result is no tensor"
    reasons = dict.fromkeys(
        str(reason) for reason in found.native.values() if not isinstance(reason, TooSmall | Seed)
    )
    return "; ".join(reasons) or "xla"


def _lowered(clustered: Clustered) -> Clustered:
    for cluster in clustered.clusters:
        arguments = [Argument.of(node, {}) for node in cluster.inputs]
        lower(cluster, arguments, {}, clustered.captured.config)
    return clustered


def _candidates(op: OpOverload, dtype: torch.dtype) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield arguments that might do, tensors of equal sizes, the likelier first."""
    for rank, number in itertools.product((2, 3, 4, 1), (1, 0)):
        args, kwargs = [], {}
        for argument in op._schema.arguments:
            if argument.has_default_value():
                continue
            own = next((d for d, names in _OWN.items() if argument.name in names), dtype)
            made = _made(str(argument.type), getattr(argument, "N", None), own, rank, number)
            if argument.name in ("train", "training"):  # where most of the work is
                made = True
            if argument.kwarg_only:
                kwargs[argument.name] = made
            else:
                args.append(made)
        yield args, kwargs


def _made(kind: str, length: int | None, dtype: torch.dtype, rank: int, number: int) -> Any:
    if kind.startswith("Optional"):
        return True if kind == "Optional[bool]" else None
    if kind == "Tensor":
        return torch.ones((4,) * rank, dtype=dtype)
    if kind == "List[Tensor]":
        return [torch.ones((4,) * rank, dtype=dtype)] * 2
    if kind in ("List[int]", "List[SymInt]"):
        return [number] * (length or 1)
    if kind == "List[bool]":
        return [False] * (length or 1)
    plain = {"int": number, "SymInt": number, "number": number, "bool": False, "float": 0.5}
    return plain.get(kind)


def _spelled(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return str(TensorSpec(tuple(arg.shape), arg.dtype))
    return f"[{', '.join(map(_spelled, arg))}]" if isinstance(arg, list) else repr(arg)
