"""Shapes and dtypes of results at the call, and eager's own errors at the user's line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_galley.ops.refused import refused
from torch_galley.ops.schema import is_torchs, written_by

_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
"""Operators that take CPU index tensors on every device."""

_LENIENT = frozenset({"masked_scatter", "masked_scatter_"})
"""Operators whose meta kernels accept what eager refuses."""

_OVER_ALL = frozenset({"nansum"})
"""Operators that take an empty list of dimensions for all, and whose meta kernels for none."""

_ROW_MAJOR = frozenset({torch.ops.aten.nonzero_static.default})
"""Operators whose results are row-major, and by their meta kernels are not."""

_BY_DEVICE = frozenset({torch.ops.aten.convolution.default})
"""Operators whose results lie in memory as the device's kernels like it."""


class NoMetaKernel(Exception):
    """torch can't tell the result's shape without the data; eager computes it, though."""


def infer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any = None) -> Any:
    """Return the operator's results as meta tensors.

    Args:
        op: the operator.
        args: its arguments; meta tensors among them are used, and written, as they are.
        kwargs: likewise.
        given: the call's own (args, kwargs), if these are others.

    Raises:
        NoMetaKernel: the operator has to be run to know.
        Exception: whatever eager raises for such arguments.
    """
    _same_device(op, args, kwargs)
    if op is torch.ops.aten.pow.Tensor_Scalar and _is_bool(args[0]) and isinstance(args[1], bool):
        raise NoMetaKernel(str(op))  # eager's result is boolean; the meta kernel says int64
    if op.overloadpacket.__name__ in _OVER_ALL and list(args[1:2]) == [[]]:
        args = (args[0], None, *args[2:])
    lenient = op.overloadpacket.__name__ in _LENIENT or _other_slice(op, args, kwargs)
    if lenient or refused(op, args) is not None:
        own_args, own_kwargs = given or (args, kwargs)
        raise_as_eager(op, own_args, own_kwargs)
    try:
        if op in _BY_DEVICE:
            return _on_cpu(op, args, kwargs)
        results = op(*tree_map(_meta, args), **tree_map(_meta, kwargs))
        return results.contiguous() if op in _ROW_MAJOR else results
    except NotImplementedError as error:  # it will be run, and refuse what it doesn't take
        raise NoMetaKernel(str(op)) from error
    except Exception as error:
        own_args, own_kwargs = given or (args, kwargs)
        raise_as_eager(op, own_args, own_kwargs)
        raise NoMetaKernel(str(op)) from error


def _other_slice(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the slice to be replaced has another shape, which the meta kernel may let pass."""
    if op is not torch.ops.aten.slice_scatter.default or len(args) < 2:
        return False
    return torch.ops.aten.slice.Tensor(_meta(args[0]), *args[2:], **kwargs).shape != args[1].shape


def _on_cpu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return results like those of CPU tensors, without memory."""
    with FakeTensorMode():
        given = tree_map(_cpu, (args, kwargs))
        results = op(*given[0], **given[1])
    return tree_map(_meta, results)


def _cpu(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="cpu")
    return arg


def _is_bool(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.dtype is torch.bool


def _meta(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        if arg.device.type == "meta":
            return arg
        return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta")
    if isinstance(arg, torch.device):
        return torch.device("meta")
    return None if isinstance(arg, torch.Generator) else arg


def _same_device(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if op.overloadpacket.__name__ in _INDEXING or not is_torchs(op.namespace):
        return

    def check(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and arg.device.type == "cpu" and arg.dim() > 0:
            raise two_devices(op)
        return arg

    tree_map(check, (args, kwargs))


def two_devices(op: OpOverload) -> RuntimeError:
    """Return what torch raises where tensors of the device meet some of the CPU."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"xla:0 and cpu! (when checking arguments of {op})"
    )


def raise_as_eager(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    whole: Sequence[torch.Tensor] = (),
) -> None:
    """Make the call on CPU tensors of no value, for the sake of the error it raises.

    Tensors that are only read weigh nothing, unless they share memory with one that is written
    or is among `whole`: then they lie on one memory here as there, because eager looks at that too.

    Not for operators that are not torch's: what they do with such tensors is not known.
    """
    if not is_torchs(op.namespace):
        return
    written = written_by(op)
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    targets = [*whole, *tree_leaves([given[name] for name in written if name in given])]
    memories = {
        t.untyped_storage()._cdata: torch.zeros(
            t.untyped_storage().nbytes(), dtype=torch.uint8, device="cpu"
        )
        for t in targets
        if isinstance(t, torch.Tensor) and t.device.type != "meta"
    }

    def dummy(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            memory = memories.get(arg.untyped_storage()._cdata)
            if memory is None:
                dense = torch.zeros((), dtype=arg.dtype, device="cpu").expand(arg.shape)
                return dense.conj() if arg.is_conj() else dense
            empty = torch.empty(0, dtype=arg.dtype, device="cpu")
            place = (arg.storage_offset(), arg.shape, arg.stride())
            return empty.set_(memory.untyped_storage(), *place)
        return torch.device("cpu") if isinstance(arg, torch.device) else arg

    with (
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        cheap_args, cheap_kwargs = tree_map(dummy, (args, kwargs))
        try:
            op(*cheap_args, **cheap_kwargs)
        except Exception as error:
            if not lacks_kernel(error):
                raise error.with_traceback(None) from None


def lacks_kernel(error: Exception) -> bool:
    """Whether an error says that torch has no CPU kernel at all, not one for these dtypes.

    Example:
        >>> lacks_kernel(NotImplementedError("'histogram_cpu' not implemented for 'Long'"))
        False
    """
    return isinstance(error, NotImplementedError) and str(error).startswith("Could not run")
