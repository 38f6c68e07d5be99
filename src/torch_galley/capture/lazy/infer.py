"""Shapes and dtypes of results at the call, and eager's own errors at the user's line."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
"""Operators that take CPU index tensors on every device."""


class NoMetaKernel(Exception):
    """torch can't tell the result's shape without the data; eager computes it, though."""


def infer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the operator's results as meta tensors.

    Raises:
        NoMetaKernel: the operator has to be run to know.
        Exception: whatever eager raises for such arguments.
    """
    _same_device(op, args, kwargs)
    try:
        return op(*tree_map(_meta, args), **tree_map(_meta, kwargs))
    except Exception as error:
        raise_as_eager(op, args, kwargs)
        raise NoMetaKernel(str(op)) from error


def _meta(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        if arg.device.type == "meta":
            return arg
        return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta")
    if isinstance(arg, torch.device):
        return torch.device("meta")
    return None if isinstance(arg, torch.Generator) else arg


def _same_device(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if op.overloadpacket.__name__ in _INDEXING:
        return

    def check(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and arg.dim() > 0:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"xla:0 and cpu! (when checking arguments of {op})"
            )
        return arg

    tree_map(check, (args, kwargs))


def raise_as_eager(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make the call on CPU tensors of no weight, for the sake of the error it raises."""
    written = {a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write}
    names = [a.name for a in op._schema.arguments]

    def dummy(arg: Any, writable: bool) -> Any:
        if isinstance(arg, torch.Tensor):
            if writable:
                return torch.zeros(arg.shape, dtype=arg.dtype, device="cpu")
            return torch.zeros(1, dtype=arg.dtype, device="cpu").expand(arg.shape)
        return torch.device("cpu") if isinstance(arg, torch.device) else arg

    with torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=[]):
        cheap_args = [
            tree_map(lambda a, w=name in written: dummy(a, w), arg)
            for name, arg in zip(names, args, strict=False)
        ]
        cheap_kwargs = {
            name: tree_map(lambda a, w=name in written: dummy(a, w), arg)
            for name, arg in kwargs.items()
        }
        try:
            op(*cheap_args, **cheap_kwargs)
        except NotImplementedError:
            return  # no CPU kernel either
        except Exception as error:
            raise error.with_traceback(None) from None
