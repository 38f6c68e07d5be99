"""Operators that can't be recorded: random draws, shapes that hang on data, no shape rule.

They run at once on CPU copies. Random numbers that XLA doesn't draw come from torch's CPU
generator, so that a seed gives what it gives on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from torch_galley.capture.lazy import overlap, storage
from torch_galley.capture.lazy.flush import on_cpu
from torch_galley.capture.lazy.infer import lacks_kernel
from torch_galley.capture.lazy.region import contiguous, extent
from torch_galley.capture.lazy.trace import Value
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import NativeExecuted, emit
from torch_galley.ops.schema import written_by

_FILLS = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
    }
)
"""In-place draws that never look at what they overwrite."""


def run(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator now, on the CPU, and return its results on the device."""
    names = [argument.name for argument in op._schema.arguments]
    written = written_by(op)
    blind = op.overloadpacket.__name__ in _FILLS and op._overloadname != "Tensor"
    given = dict(zip(names, args, strict=False)) | kwargs
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    back: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []  # so that what `back` has is no other's id
    tensors = [arg for arg in tree_leaves(given) if isinstance(arg, torch.Tensor)]
    memories: dict[int, torch.Tensor] = {}  # of storages that are given whole

    def host(arg: Any, writes: bool) -> Any:
        if isinstance(arg, torch.device):
            return torch.device("cpu")
        if not isinstance(arg, torch.Tensor) or arg.device.type != "xla":
            return arg
        memory = memories.get(arg.untyped_storage()._cdata)
        if not writes and (memory is None or memory.dtype is not arg.dtype):
            return on_cpu(arg, "native")
        if memory is not None or overlap.internal(arg) or overlap.partial([arg], tensors):
            # The order counts in which eager reads and writes: it gets the whole memory.
            if memory is None:
                whole = _whole(arg, tensors)
                memory = memories[arg.untyped_storage()._cdata] = on_cpu(whole, "native").clone()
                copies.append((whole, memory))
            view = memory.as_strided(arg.shape, arg.stride(), int(arg.storage_offset()))
            back[id(view)] = arg
            kept.append(view)
            return view
        copy = torch.empty_like(arg, device="cpu") if blind else on_cpu(arg, "native").clone()
        copies.append((arg, copy))
        back[id(copy)] = arg
        return copy

    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        first = sorted(given, key=lambda name: name not in written)  # what is written
        ready = {
            name: tree_map(lambda a, w=name in written: host(a, w), given[name]) for name in first
        }
        ready.pop("pin_memory", None)
        positional = [ready.pop(name) for name, _ in zip(names, args, strict=False)]
        try:
            results = op(*positional, **ready)
        except NotImplementedError as error:
            if not lacks_kernel(error):
                raise
            raise CaptureError(
                f"{op} can't run on the xla device yet: torch has no CPU kernel of it",
                hint="move its inputs to the CPU with .cpu(), or report the operator",
            ) from error
    emit(NativeExecuted(1, op))
    if blind and len(copies) == 1 and torch.Tag.nondeterministic_seeded in op.tags:
        (target, copy), rest = copies[0], positional[1:]
        value = Value.ready(copy)
        value.redraw = lambda: op(torch.empty_like(copy), *rest, **ready)
        storage.write(target, value)
        return target
    for device_tensor, copy in copies:
        if device_tensor.shape != copy.shape:
            resize(device_tensor, tuple(copy.shape))
        storage.write(device_tensor, Value.ready(copy))
    return tree_map(lambda r: _upload(r, back), results)


def _whole(arg: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """Return a tensor's memory as far as it, or another one that shows it, reaches."""
    own = arg.untyped_storage()._cdata
    reach = max(
        extent(tuple(one.shape), one.stride(), int(one.storage_offset()))
        for one in (arg, *others)
        if one.untyped_storage()._cdata == own and one.dtype is arg.dtype
    )
    return storage.alias(arg, storage.Layout((reach,), (1,), arg.dtype))


def _upload(result: Any, back: dict[int, torch.Tensor]) -> Any:
    if not isinstance(result, torch.Tensor):
        return result
    if id(result) in back:
        return back[id(result)]
    if result.layout is not torch.strided:
        raise CaptureError(
            f"the result is a {result.layout} tensor, and the xla device has dense ones only",
            hint="move the argument to the CPU first, with .cpu()",
        )
    return storage.hold(Value.ready(result), _dense_layout(result))


def _dense_layout(tensor: torch.Tensor) -> storage.Layout:
    return storage.Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def resize(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> None:
    """Give a tensor new sizes on the storage it has, row-major if no strides are given."""
    storage.contents_of(tensor)  # now, so that a new storage is known before it grows
    offset = int(tensor.storage_offset())
    layout = storage.Layout(sizes, strides or contiguous(sizes), tensor.dtype, offset)
    storage.reshape_in_place(tensor, tensor.untyped_storage(), layout)
