"""What each storage of the device holds, and reading and writing it through any view.

A tensor is (sizes, strides, offset) on a storage, as everywhere in torch; views are real views.
A storage's contents are one immutable Value and how it lies in memory. A write makes new
contents, so that recording stays functional while aliasing is exactly torch's.
"""

from __future__ import annotations

import functools
import math
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._C import DispatchKey

from torch_galley.capture.lazy.region import (
    Region,
    Sizes,
    contiguous,
    extent,
    is_dense,
    memory_order,
    region,
    same_layout,
)
from torch_galley.capture.lazy.trace import Kind, Value, record
from torch_galley.core.errors import CaptureError

aten = torch.ops.aten


@dataclass(frozen=True)
class Layout:
    """A tensor's type and how it lies in its storage."""

    sizes: Sizes
    strides: Sizes
    dtype: torch.dtype
    offset: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """Describe a tensor."""
        sizes, strides = tuple(tensor.shape), tensor.stride()
        return Layout(sizes, strides, tensor.dtype, int(tensor.storage_offset()))

    @cached_property
    def contiguous(self) -> bool:
        """Whether it is as a new tensor is if nothing else is asked for."""
        return self.strides == contiguous(self.sizes)

    @property
    def reach(self) -> int:
        """How many bytes of its storage it needs."""
        return extent(self.sizes, self.strides, self.offset) * self.dtype.itemsize

    @cached_property
    def dense(self) -> bool:
        """Whether it fills its storage up to its end."""
        return self.offset == 0 and is_dense(self.sizes, self.strides)


class Contents:
    """What a storage holds from its first element on: a dense value and its layout."""

    __slots__ = ("dtype", "owner", "sizes", "strides", "value")

    def __init__(self, value: Value | None, dtype: torch.dtype, sizes: Sizes, strides: Sizes):
        self.value = value
        """None: nothing was written yet; reads as zeros."""
        self.dtype, self.sizes, self.strides = dtype, sizes, strides
        self.owner: weakref.ref[Any] | None = None
        """The Python storage; its death drops the entry."""

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)


_contents: dict[int, Contents] = {}
"""By address of the StorageImpl, which outlives its Python object."""


def pending() -> list[Value]:
    """Return the values that wait for a flush and that somebody can still read."""
    held = [contents.value for contents in list(_contents.values())]
    return list({id(v): v for v in held if v is not None and v.pending}.values())


_create_empty = torch._C._acc.create_empty_tensor  # type: ignore[attr-defined]
_as_strided = functools.partial(aten.as_strided.default._op_dk, DispatchKey.Meta)
_set = functools.partial(aten.set_.source_Storage_storage_offset._op_dk, DispatchKey.Meta)
# The Meta kernels only make the view: they never look at data.


def all_contents() -> list[Contents]:
    """Return what every storage of the device holds."""
    return list(_contents.values())


def empty(layout: Layout) -> torch.Tensor:
    """Return a new tensor of the device, with nothing written to it yet."""
    return _new(layout, None)


def hold(value: Value, layout: Layout | None = None) -> torch.Tensor:
    """Return a new tensor of the device that holds `value`, contiguous if nothing else is said."""
    if layout is None:
        layout = Layout(value.shape, contiguous(value.shape), value.dtype)
    if layout.contiguous or layout.dense:
        return _new(layout, value)
    tensor = _new(layout, None)
    write(tensor, value)
    return tensor


def _new(layout: Layout, value: Value | None) -> torch.Tensor:
    sizes, strides, dtype = layout.sizes, layout.strides, layout.dtype
    if layout.contiguous:
        tensor = _create_empty(sizes, dtype)
    else:
        count = extent(sizes, strides, layout.offset)
        tensor = _as_strided(_create_empty((count,), dtype), sizes, strides, layout.offset)
        if not layout.dense:
            sizes, strides = (count,), (1,)
    _register(tensor.untyped_storage(), Contents(value, dtype, sizes, strides))
    return tensor


def alias(base: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a real view of a tensor's storage."""
    if layout.dtype is base.dtype:
        return _as_strided(base, layout.sizes, layout.strides, layout.offset)
    view = over(base.untyped_storage(), layout)
    return aten._neg_view.default(view) if base.is_neg() else view


def over(storage: torch.UntypedStorage, layout: Layout) -> torch.Tensor:
    """Return a tensor that shows a storage in a given way."""
    return reshape_in_place(_create_empty((0,), layout.dtype), storage, layout)


def reshape_in_place(
    tensor: torch.Tensor, storage: torch.UntypedStorage, layout: Layout
) -> torch.Tensor:
    """Make a tensor show a storage in a given way."""
    return _set(tensor, storage, layout.offset, layout.sizes, layout.strides)


class _Owner(weakref.ref[Any]):
    """A weak reference that knows its storage's key."""

    __slots__ = ("key",)
    key: int


def _drop(owner: Any) -> None:
    found = _contents.get(owner.key)
    if found is not None and found.owner is owner:
        del _contents[owner.key]


def _register(storage: torch.UntypedStorage, contents: Contents) -> None:
    contents.owner = owner = _Owner(storage, _drop)
    owner.key = key = storage._cdata
    _contents[key] = contents


def contents_of(tensor: torch.Tensor) -> Contents:
    """Return what the tensor's storage holds."""
    storage = tensor.untyped_storage()
    found = _contents.get(storage._cdata)
    if found is None:
        if torch._C.StorageBase.nbytes(storage):  # type: ignore[attr-defined]
            raise CaptureError("this xla tensor's memory was not made by torch-galley")
        found = Contents(None, tensor.dtype, (0,), (1,))
        _register(storage, found)
    return found


def held_bytes(storage: torch.UntypedStorage) -> int:
    """Return the size of what a storage holds, 0 if it is none of ours."""
    contents = _contents.get(storage._cdata)
    return contents.count * contents.dtype.itemsize if contents is not None else 0


def hold_as(target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Have a storage hold what another one holds; later writes to either are its own."""
    mine, theirs = _contents[target._cdata], _contents[source._cdata]
    mine.value, mine.dtype = theirs.value, theirs.dtype
    mine.sizes, mine.strides = theirs.sizes, theirs.strides


def settle(tensor: torch.Tensor) -> None:
    """Have bytes that are known already lie as the tensor that shows them first: that is free.

    Otherwise each program that reads a loaded tensor would begin with a view of bytes.
    """
    contents, layout = contents_of(tensor), Layout.of(tensor)
    known = contents.value.tensor if contents.value is not None else None
    if known is None or tensor.dtype is torch.uint8 or contents.dtype is not torch.uint8:
        return
    if known.dim() != 1 or known.stride() != (1,) or known.storage_offset():
        return
    if contents.count % tensor.dtype.itemsize:
        return
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        known = known.view(tensor.dtype)
        if layout.dense and layout.reach == contents.count:
            known = known.as_strided(layout.sizes, layout.strides)
    contents.value, contents.dtype = Value.ready(known), tensor.dtype
    contents.sizes, contents.strides = tuple(known.shape), known.stride()


def is_whole(tensor: torch.Tensor, contents: Contents) -> bool:
    """Whether the tensor shows the contents' value exactly as it is."""
    return (
        tensor.shape == contents.sizes
        and tensor.dtype is contents.dtype
        and tensor.storage_offset() == 0
        and same_layout(contents.sizes, tensor.stride(), contents.strides)
    )


def read(tensor: torch.Tensor, contents: Contents | None = None) -> Value:
    """Return the value that a tensor shows now, recording the view operators it takes."""
    contents = contents or contents_of(tensor)
    if is_whole(tensor, contents):
        value = contents.value or _value(contents)
    elif tensor.numel() == 0:
        value = _full(tuple(tensor.shape), tensor.dtype)
    else:
        _adapt(contents, tensor)
        value = _read_view(tensor, contents)
    return _seen_through_bits(tensor, value)


def write(tensor: torch.Tensor, value: Value, contents: Contents | None = None) -> None:
    """Make a tensor show `value`, of its shape and dtype, from now on; so do all its aliases."""
    contents = contents or contents_of(tensor)
    value = _seen_through_bits(tensor, value)
    if is_whole(tensor, contents):
        contents.value = value
        return
    sizes, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return
    if (
        offset == 0
        and is_dense(sizes, strides)
        and tensor.numel() * tensor.dtype.itemsize >= contents.count * contents.dtype.itemsize
    ):
        contents.value, contents.dtype = value, tensor.dtype
        contents.sizes, contents.strides = sizes, strides
        return
    _adapt(contents, tensor)
    _write_view(tensor, contents, value)


def _seen_through_bits(tensor: torch.Tensor, value: Value) -> Value:
    """Apply the conjugation and negation that torch keeps as bits of a tensor."""
    if value.dtype.is_complex and tensor.is_conj():
        value = record(aten._conj_physical.default, (value,), kind=(value.shape, value.dtype))
    if tensor.is_neg():
        value = record(aten.neg.default, (value,), kind=(value.shape, value.dtype))
    return value


def _value(contents: Contents) -> Value:
    if contents.value is None:
        contents.value = _full(contents.sizes, contents.dtype)
    return contents.value


def _full(sizes: Sizes, dtype: torch.dtype) -> Value:
    device = torch.device("cpu")
    return record(aten.full.default, (), sizes, 0, dtype=dtype, device=device, kind=(sizes, dtype))


def _adapt(contents: Contents, tensor: torch.Tensor) -> None:
    """Make the contents have the tensor's dtype and reach as far as it does."""
    if contents.dtype != tensor.dtype:
        flat = _dense(_flat(contents))
        count = contents.count * contents.dtype.itemsize // tensor.dtype.itemsize
        kind = ((count,), tensor.dtype)
        contents.value = record(aten.view.dtype, (flat,), tensor.dtype, kind=kind)
        contents.dtype, contents.sizes, contents.strides = tensor.dtype, (count,), (1,)
    reach = extent(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    missing = reach - contents.count
    if missing > 0:  # the storage was enlarged by resize_
        kind = ((reach,), contents.dtype)
        contents.value = record(
            aten.constant_pad_nd.default, (_flat(contents),), (0, missing), kind=kind
        )
        contents.sizes, contents.strides = (reach,), (1,)


def _flat(contents: Contents) -> Value:
    """Return the contents in memory order, as one dense dimension."""
    value = _value(contents)
    if contents.strides == (1,) and len(contents.sizes) == 1:
        return value
    value = _permute(value, memory_order(contents.sizes, contents.strides))
    return _reshape(value, (contents.count,))


def _read_view(tensor: torch.Tensor, contents: Contents) -> Value:
    sizes, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    box = region(contents.sizes, contents.strides, sizes, strides, offset)
    if box is None:
        flat = _dense(_flat(contents))
        args = (sizes, strides, offset)
        return record(aten.as_strided.default, (flat,), *args, kind=(sizes, tensor.dtype))
    value = _reshape(_permute(_value(contents), box.to_physical), box.split)
    value = _sliced(value, box)[-1]
    value = _permute(_reshape(value, box.kept), box.order)
    value = _reshape(value, box.spread)
    if box.sizes != box.spread:
        kind = (box.sizes, value.dtype)
        value = record(aten.expand.default, (value,), box.sizes, kind=kind)
    return value


def _write_view(tensor: torch.Tensor, contents: Contents, value: Value) -> None:
    sizes, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    box = region(contents.sizes, contents.strides, sizes, strides, offset)
    if box is None or box.sizes != box.spread:
        flat = _dense(_flat(contents))
        args = (sizes, strides, offset)
        kind: Kind = (flat.shape, flat.dtype)
        contents.value = record(aten.as_strided_scatter.default, (flat, value), *args, kind=kind)
        contents.sizes, contents.strides = flat.shape, (1,)
        return
    physical = tuple(contents.sizes[i] for i in box.to_physical)
    whole = _reshape(_permute(_value(contents), box.to_physical), box.split)
    stages = _sliced(whole, box)
    squeezed = tuple(box.kept[i] for i in box.order)
    value = _permute(_reshape(value, squeezed), _inverse(box.order))
    value = _reshape(value, stages[-1].shape)
    for part, outer in zip(reversed(box.slices), reversed(stages[:-1]), strict=True):
        args = (part.dim, part.start, part.stop, part.step)
        kind = (outer.shape, outer.dtype)
        value = record(aten.slice_scatter.default, (outer, value), *args, kind=kind)
    contents.value = _permute(_reshape(value, physical), _inverse(box.to_physical))


def _sliced(value: Value, box: Region) -> list[Value]:
    """Return the value and what each slice in turn leaves of it."""
    stages = [value]
    for part in box.slices:
        sizes = list(stages[-1].shape)
        sizes[part.dim] = -((part.start - part.stop) // part.step)
        args = (part.dim, part.start, part.stop, part.step)
        kind = (tuple(sizes), value.dtype)
        stages.append(record(aten.slice.Tensor, (stages[-1],), *args, kind=kind))
    return stages


def _permute(value: Value, order: Sizes) -> Value:
    if order == tuple(range(len(order))):
        return value
    kind = (tuple(value.shape[i] for i in order), value.dtype)
    return record(aten.permute.default, (value,), order, kind=kind)


def _reshape(value: Value, sizes: Sizes) -> Value:
    if value.shape == sizes:
        return value
    return record(aten.reshape.default, (value,), sizes, kind=(sizes, value.dtype))


def _dense(value: Value) -> Value:
    """Make sure that as_strided, or another dtype, sees dense memory when it is replayed."""
    return record(aten.contiguous.default, (value,), kind=(value.shape, value.dtype))


def _inverse(order: Sizes) -> Sizes:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
