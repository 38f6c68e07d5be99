"""Storages as programs see them: `torch.UntypedStorage` of the device.

Torch does with a storage's bytes, in C++, what it could do if the storage had any. Here they are
read and written through a tensor of bytes, and go from storage to storage as contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_galley.capture.lazy import storage
from torch_galley.capture.lazy.flush import lock, on_cpu

Storage = torch.UntypedStorage


def patch_torch() -> list[torch.library.Library]:
    """Make storages of the device work, and others as before; return what to keep alive."""
    for name in ("nbytes", "size", "__len__"):
        setattr(Storage, name, _sized(getattr(Storage, name)))
    _patch_new()
    _patch_items()
    _patch_copies()
    _patch_files()
    _patch_data_ptr()
    pinning = torch.library.Library("aten", "IMPL")
    pinning.impl("_pin_memory", _pin_memory, "CPU")
    return [pinning]


def _sized(theirs: Callable[[Storage], int]) -> Callable[[Storage], int]:
    """Torch knows the size of memory that was made larger, of other memory it need not."""

    def size(self: Storage) -> int:
        # Others are left alone: of a fake storage even "is it 0?" may have no answer.
        here = self.device.type == "xla"
        return max(storage.held_bytes(self), theirs(self)) if here else theirs(self)

    return size


def _patch_new() -> None:
    theirs: Any = Storage.__new__

    def __new__(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return theirs(cls, *args, **kwargs)
        if torch.device(device).type != "xla":
            return theirs(cls, *args, device=device, **kwargs)
        given = theirs(cls, *args, **kwargs)
        made = torch.empty(given.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
        return made.copy_(given) if args and not isinstance(args[0], int) else made

    Storage.__new__ = __new__  # type: ignore[assignment]


def _patch_items() -> None:
    theirs = Storage.__getitem__

    def __getitem__(self: Storage, index: Any) -> Any:
        if self.device.type == "xla":
            _bytes(self)  # from now on torch knows its size
        return theirs(self, index)

    Storage.__getitem__ = __getitem__  # type: ignore[method-assign]


def _patch_copies() -> None:
    theirs = Storage.copy_

    def copy_(self: Storage, source: Any, non_blocking: bool | None = None) -> Any:
        here = (self.device.type == "xla", source.device.type == "xla")
        if not any(here):
            return theirs(self, source, non_blocking)
        if not (all(here) and _take_over(self, source)):
            with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
                given = _bytes(source)
                _bytes(self).copy_(given if here[0] else on_cpu(given))
        return self

    Storage.copy_ = copy_  # type: ignore[method-assign]


def _take_over(target: Storage, source: Storage) -> bool:
    """Have one storage hold what another holds, as it lies there, if that is all of both."""
    with lock:
        size = storage.held_bytes(source)
        whole = 0 < size == source.nbytes() == target.nbytes()
        if whole:
            storage.hold_as(target, source)
        return whole


def _bytes(memory: Storage) -> torch.Tensor:
    """Return a storage's bytes as a tensor on it."""
    layout = storage.Layout((memory.nbytes(),), (1,), torch.uint8)
    if memory.device.type == "xla":
        return storage.over(memory, layout)
    blank = torch.empty(0, dtype=torch.uint8, device=memory.device)
    return blank.set_(memory, 0, layout.sizes, layout.strides)  # type: ignore[call-overload]


def _patch_files() -> None:
    write, read = Storage._write_file, Storage._set_from_file

    def _write_file(self: Storage, *args: Any) -> None:
        write(self.cpu() if self.device.type == "xla" else self, *args)

    def _set_from_file(self: Storage, *args: Any) -> Any:
        if self.device.type != "xla":
            return read(self, *args)
        found = Storage(self.nbytes())
        read(found, *args)
        return self.copy_(found)

    Storage._write_file = _write_file  # type: ignore[method-assign]
    Storage._set_from_file = _set_from_file  # type: ignore[method-assign]


def _patch_data_ptr() -> None:
    """Give each storage an address of its own: by it, programs tell which tensors share memory."""
    theirs = Storage.data_ptr

    def data_ptr(self: Storage) -> int:
        return self._cdata if self.device.type == "xla" else theirs(self)

    Storage.data_ptr = data_ptr  # type: ignore[method-assign]


def _pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Copy: nothing need be pinned for a device that computes on the CPU."""
    return self.clone()
