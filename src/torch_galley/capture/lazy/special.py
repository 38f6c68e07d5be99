"""Operators whose meaning on the device is their own: allocation, copies, reads, resizing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._C import DispatchKey

from torch_galley.capture.lazy import native, overlap, storage, stream
from torch_galley.capture.lazy.flush import count_brought, on_cpu, tracing
from torch_galley.capture.lazy.infer import raise_as_eager
from torch_galley.capture.lazy.number import may_vary
from torch_galley.capture.lazy.region import contiguous
from torch_galley.capture.lazy.trace import Kind, Number, Operand, Recipe, Step, Value, record
from torch_galley.core.config import setting
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
    _plain(layout, device, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    strides = contiguous(tuple(size))
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
        strides = tuple(like.stride())
    return storage.empty(storage.Layout(tuple(size), strides, dtype))


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    _plain(layout, device, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    return storage.empty(storage.Layout(tuple(size), tuple(stride), dtype))


def _plain(
    layout: torch.layout | None, device: torch.device | None, pin_memory: bool | None
) -> None:
    if device is not None and device.index:
        raise CaptureError(f"there is no {device}", hint="the only device is xla:0")
    if layout not in (None, torch.strided):
        raise CaptureError(
            f"{layout} tensors aren't built yet on the xla device",
            hint="use a dense tensor, or keep it on the CPU",
        )
    if pin_memory:
        raise CaptureError(
            "pinned memory isn't built yet on the xla device", hint="leave pin_memory out"
        )


def _copy_from(src: Any, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(src, torch.Tensor):  # x.copy_(1)
        src = torch.tensor(src, device="cpu")
    if overlap.whole(src, dst):  # eager returns early, too, whatever overlaps inside
        return dst
    if dst.device.type != "xla":
        with torch._C.DisableTorchFunction():
            return dst.copy_(on_cpu(src))
    shape = tuple(dst.shape)
    # One number may be read from what it overwrites: x[:] = x[0] is a fill in eager.
    if overlap.internal(dst) or (src.numel() > 1 and overlap.partial([dst], [src])):
        raise_as_eager(aten.copy_.default, (dst, src), {})
        native.run(aten.copy_.default, (dst, src), {})  # eager's order of writing counts
        return dst
    if src.device.type != "xla":
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            snapshot = torch.empty(shape, dtype=dst.dtype, device="cpu")
            snapshot.copy_(src)
        count_brought(snapshot)
        value = Value.ready(snapshot)
    else:
        value = storage.read(src)
        if value.dtype != dst.dtype:
            kind = (value.shape, dst.dtype)
            value = record(aten._to_copy.default, (value,), dtype=dst.dtype, kind=kind)
        if value.shape != shape:
            value = record(aten.expand.default, (value,), shape, kind=(shape, dst.dtype))
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
    if overlap.internal(self):  # eager takes it: whatever is written twice is written the same
        return native.run(aten.fill_.Scalar, (self, value), {})
    kind = (tuple(self.shape), self.dtype)
    varies = type(value) in (int, float) and may_vary(aten.full.default, value, self.dtype)
    recipe = _filled(kind, type(value), None if varies else repr(value), value)
    step = Step(recipe, (), (value,) if varies else ())
    storage.write(self, Value(*kind, None, step))
    return self


@lru_cache(maxsize=4096)
def _filled(kind: Kind, number: type, _spelled: str | None, value: Any) -> Recipe:
    """Return the recipe of a fill; what isn't spelled may vary."""
    sizes, dtype = kind
    _castable(value, dtype)
    given = Number(0) if _spelled is None else value
    options = {"dtype": dtype, "device": torch.device("cpu")}
    return Recipe(aten.full.default, (list(sizes), given), options, (kind,))


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
        tensor = op._op_dk(DispatchKey.Meta, *args, **kwargs)
        if not tracing():  # then jit knows values by who they are
            storage.settle(tensor)
        return tensor

    return set_


_set_part = _set(aten.set_.source_Storage_storage_offset)


def _set_whole(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    count = source.nbytes() // self.dtype.itemsize  # torch may not know how large it is
    return _set_part(self, source, 0, [count], [1])


def _native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the mask now, as eager on the CPU does, and record the rest."""
    like = torch.empty_like(input, device="meta")  # dense, where the input has gaps
    layout = storage.Layout(tuple(input.shape), like.stride(), input.dtype)
    flags = dataclasses.replace(layout, dtype=torch.bool)
    if train is False:
        mask = torch.ones(input.shape, dtype=torch.bool, device="cpu")
        return storage.hold(storage.read(input), layout), storage.hold(Value.ready(mask), flags)
    if setting("rng") == "xla":
        blank = torch.empty(input.shape, dtype=torch.bool, device=input.device)
        mask = aten.bernoulli.p(blank, 1 - p)
        kept = aten.mul.Tensor(input, mask)
        return aten.mul.Scalar(kept, 1 / (1 - p) if p < 1 else 0.0), mask
    # What draws again is kept with the mask, and must not keep the input alive: `like`, not it.
    noise = stream.drawn(lambda: torch.empty_like(like, device="cpu").bernoulli_(1 - p))
    kept = record(aten.ne.Scalar, (noise,), 0, kind=(layout.sizes, torch.bool))
    kind = (layout.sizes, input.dtype)
    scale = record(aten.div.Scalar, (noise,), 1 - p, kind=kind) if p < 1 else noise
    result = record(aten.mul.Tensor, (storage.read(input), scale), kind=kind)
    return storage.hold(result, layout), storage.hold(kept, flags)


def _conjugate(self: torch.Tensor) -> torch.Tensor:
    """Write each number's conjugate; torch's meta function for it fails."""
    if self.is_complex():
        value = storage.read(self)
        step = record(aten._conj_physical.default, (value,), kind=(value.shape, value.dtype))
        storage.write(self, step)
    return self


def _native_batch_norm(*args: Any) -> tuple[torch.Tensor, ...]:
    """Record it; its schema doesn't say so, but it writes the running statistics."""
    tensors, (training, momentum, eps) = args[:5], args[5:]
    specs = tuple(None if t is None else (t.shape, t.stride(), t.dtype) for t in tensors)
    recipe, layouts = _batch_norm(specs, training, momentum, eps)
    step = Step(recipe, tuple(storage.read(t) for t in tensors if t is not None))
    values = [Value(*kind, None, step, i) for i, kind in enumerate(recipe.kinds) if kind]
    for tensor, value in zip(tensors[3:], values[3:], strict=False):
        storage.write(tensor, value)
    return tuple(map(storage.hold, values, layouts))


@lru_cache(maxsize=4096)
def _batch_norm(
    specs: tuple[Any, ...], training: bool, momentum: float, eps: float
) -> tuple[Recipe, list[storage.Layout]]:
    """Return the recipe for tensors of given shapes, strides and dtypes, and its first results."""
    op: Any = aten.native_batch_norm.default
    metas = [
        None if spec is None else torch.empty_strided(*spec[:2], dtype=spec[2], device="meta")
        for spec in specs
    ]
    shapes = op(*metas, training, momentum, eps)
    layouts = [storage.Layout(tuple(s.shape), s.stride(), s.dtype) for s in shapes]
    if not training:  # the CPU saves no statistics then
        layouts[1:] = [storage.Layout((0,), (1,), like.dtype) for like in layouts[1:]]
    kinds = [(layout.sizes, layout.dtype) for layout in layouts]
    if training and specs[3] is not None and specs[4] is not None:
        op = aten._native_batch_norm_legit_functional.default
        kinds += [(tuple(spec[0]), spec[2]) for spec in specs[3:]]
    places = iter(range(5))
    operands = (None if spec is None else Operand(next(places)) for spec in specs)
    return Recipe(op, (*operands, training, momentum, eps), {}, tuple(kinds)), layouts


SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.empty.memory_format: _empty,
    aten.empty_strided.default: _empty_strided,
    aten._efficientzerotensor.default: _empty,  # what nobody wrote is zero
    aten._copy_from.default: _copy_from,
    aten._copy_from_and_resize.default: _copy_from_and_resize,
    aten._local_scalar_dense.default: _item,
    aten.fill_.Scalar: _fill,
    aten.fill_.Tensor: _fill,
    aten.zero_.default: _fill,
    aten.resize_.default: _resize,
    aten.set_.source_Tensor: _set(aten.set_.source_Tensor),
    aten.set_.source_Storage: _set_whole,
    aten.set_.source_Storage_storage_offset: _set_part,
    aten.conj_physical_.default: _conjugate,
    aten.native_dropout.default: _native_dropout,
    aten.native_batch_norm.default: _native_batch_norm,
    aten._fused_sdp_choice.default: lambda *args, **kwargs: 0,  # the form of plain operators
}
"""Operator -> what it does instead of being recorded as it is."""
