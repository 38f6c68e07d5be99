"""Operators whose meaning on the device is their own: allocation, copies, reads, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey

from torch_galley.capture.lazy import native, storage
from torch_galley.capture.lazy.flush import on_cpu
from torch_galley.capture.lazy.region import contiguous
from torch_galley.capture.lazy.trace import Step, Value, record
from torch_galley.core.errors import CaptureError

aten = torch.ops.aten


def _empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    _plain(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    strides = contiguous(tuple(size))
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
        strides = tuple(like.stride())
    return storage.empty(tuple(size), strides, dtype)


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    _plain(layout, pin_memory)
    return storage.empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def _plain(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        raise CaptureError(
            f"{layout} tensors aren't built yet on the xla device",
            hint="use a dense tensor, or keep it on the CPU",
        )
    if pin_memory:
        raise CaptureError(
            "pinned memory isn't built yet on the xla device", hint="leave pin_memory out"
        )


def _copy_from(src: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if dst.device.type != "xla":
        with torch._C.DisableTorchFunction():
            return dst.copy_(on_cpu(src))
    shape = tuple(dst.shape)
    if src.device.type != "xla":
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            snapshot = torch.empty(shape, dtype=dst.dtype, device="cpu")
            snapshot.copy_(src)
        value = Value.ready(snapshot)
    else:
        value = storage.read(src)
        if value.dtype != dst.dtype:
            kind = (value.shape, dst.dtype)
            value = record(aten._to_copy.default, value, dtype=dst.dtype, kind=kind)
        if value.shape != shape:
            value = record(aten.expand.default, value, list(shape), kind=(shape, dst.dtype))
    storage.write(dst, value)
    return dst


def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    if dst.shape != src.shape:
        if dst.device.type == "xla":
            native.resize(dst, tuple(src.shape))
        else:
            dst.resize_(src.shape)
    return _copy_from(src, dst)


def _fill(self: torch.Tensor, value: Any = 0) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.dim():
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{value.dim()} dimensions."
            )
        return _copy_from(value, self)
    _castable(value, self.dtype)
    kind = (tuple(self.shape), self.dtype)
    cpu = torch.device("cpu")
    filled = record(
        aten.full.default, list(self.shape), value, dtype=self.dtype, device=cpu, kind=kind
    )
    storage.write(self, filled)
    return self


def _castable(value: Any, dtype: torch.dtype) -> None:
    """Raise what eager raises for a number that the dtype can't hold."""
    torch.empty(1, dtype=dtype, device="cpu").fill_(value)


def _item(self: torch.Tensor) -> Any:
    return on_cpu(self).item()


def _resize(
    self: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    if tuple(self.shape) != tuple(size):
        native.resize(self, tuple(size))
    return self


def _set(op: Any) -> Callable[..., Any]:
    def set_(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(DispatchKey.Meta, *args, **kwargs)

    return set_


def _native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the mask now, as eager on the CPU does, and record the rest."""
    kind = (tuple(input.shape), input.dtype)
    if train is False:
        mask = torch.ones(input.shape, dtype=torch.bool, device="cpu")
        return storage.hold(storage.read(input)), storage.hold(Value.ready(mask))
    noise = torch.empty_like(input, device="cpu").bernoulli_(1 - p)
    mask = Value.ready(noise.bool())
    scale = Value.ready(noise.div_(1 - p) if p < 1 else noise)
    result = record(aten.mul.Tensor, storage.read(input), scale, kind=kind)
    return storage.hold(result, tuple(input.stride())), storage.hold(mask, tuple(input.stride()))


def _native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Its schema doesn't say so, but it writes the running statistics."""
    shapes = aten.native_batch_norm.default(
        *(
            None if t is None else torch.empty_like(t, device="meta")
            for t in (input, weight, bias, running_mean, running_var)
        ),
        training,
        momentum,
        eps,
    )
    tensors = [None if t is None else storage.read(t) for t in (input, weight, bias)]
    stats = [None if t is None else storage.read(t) for t in (running_mean, running_var)]
    kinds: list[Any] = [(tuple(s.shape), s.dtype) for s in shapes]
    op = aten.native_batch_norm.default
    if training and running_mean is not None and running_var is not None:
        op = aten._native_batch_norm_legit_functional.default
        kinds += [(tuple(t.shape), t.dtype) for t in (running_mean, running_var)]
    step = Step(op, (*tensors, *stats, training, momentum, eps), {}, tuple(kinds))
    values = [Value(*kind, step=step, index=i) for i, kind in enumerate(kinds)]
    for tensor, value in zip((running_mean, running_var), values[3:], strict=False):
        assert tensor is not None
        storage.write(tensor, value)
    return tuple(
        storage.hold(value, tuple(shape.stride()))
        for value, shape in zip(values[:3], shapes, strict=True)
    )


SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: _empty,
    aten.empty_strided.default: _empty_strided,
    aten._copy_from.default: _copy_from,
    aten._copy_from_and_resize.default: _copy_from_and_resize,
    aten._local_scalar_dense.default: _item,
    aten.fill_.Scalar: _fill,
    aten.fill_.Tensor: _fill,
    aten.zero_.default: _fill,
    aten.resize_.default: _resize,
    aten.set_.source_Tensor: _set(aten.set_.source_Tensor),
    aten.set_.source_Storage: _set(aten.set_.source_Storage),
    aten.set_.source_Storage_storage_offset: _set(aten.set_.source_Storage_storage_offset),
    aten.native_dropout.default: _native_dropout,
    aten.native_batch_norm.default: _native_batch_norm,
    aten._fused_sdp_choice.default: lambda *args, **kwargs: 0,  # the form of plain operators
}
"""Operator -> what it does instead of being recorded as it is."""
