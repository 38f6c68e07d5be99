"""Tensors of the device in files and copies, where they share memory as they did: torch's own way
for a device of this name gives each its own.

In a file, a tensor is one of the CPU and the wish to be on the device. The CPU's tensors of one
`torch.save` lie on common storages, one for each of the device's, as torch sees to by itself if
it is given these: it takes their bytes when the file is written. Where there is no such device,
`torch.load` leaves the tensors on the CPU, as in any file of CPU tensors.

Note [Files without sharing]
Earlier versions pickled each tensor's value. Tensors that shared memory came apart on the device,
and others, of one value, shared memory on the CPU: `y.copy_(x)` makes no second value. So what is
shared there means nothing, and such a tensor is copied by itself. They named the dtype, where
there is None now.
"""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

import torch
from torch import _utils, _weights_only_unpickler, serialization
from torch.overrides import has_torch_function_unary
from torch.utils.hooks import warn_if_has_hooks

from torch_galley.capture.lazy import storage

_WISH = "_rebuild_device_tensor_from_cpu_tensor"
"""Torch's function that a file names; what it does here is ours."""

_brought: weakref.WeakKeyDictionary[torch.UntypedStorage, list[torch.UntypedStorage]]
_brought = weakref.WeakKeyDictionary()
"""Where the memory of a CPU storage went that a file is being loaded into."""


def patch_torch() -> None:
    """Make pickling, loading and copying work with the device, and as before without."""
    _patch_saving()
    _patch_loading()
    _patch_deepcopy()


class _Shown:
    """A tensor of the device, to be rebuilt: by copy.copy as it is, in a file on the CPU."""

    def __init__(self, tensor: torch.Tensor, rebuilt: tuple[Any, tuple[Any, ...]]):
        self.tensor, self._rebuilt = tensor, rebuilt

    def __reduce_ex__(self, proto: Any) -> tuple[Any, tuple[Any, ...]]:
        return self._rebuilt


def _ours(tensor: torch.Tensor) -> bool:
    """Whether it lies on a storage of the device: no fake tensor, and nothing that wraps others."""
    kind: Any = type(tensor)
    plain = kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    return plain and tensor.device.type == "xla"


def _patch_saving() -> None:
    reduce = torch.Tensor._reduce_ex_internal

    def _reduce_ex_internal(self: torch.Tensor, proto: int) -> Any:
        if not _ours(self):
            return reduce(self, proto)
        warn_if_has_hooks(self)
        # What torch says of a CPU tensor of no elements is in this version's form.
        like = torch.empty(0, dtype=self.dtype, device="cpu")
        _utils.set_tensor_metadata(like, _utils.get_tensor_metadata(self))
        rebuild, (memory, _, _, _, *rest) = reduce(like, proto)
        if isinstance(memory, torch.UntypedStorage):
            memory = self.untyped_storage()
        else:
            memory = self._typed_storage()
        place = (memory, self.storage_offset(), tuple(self.shape), self.stride())
        shown = _Shown(self, (rebuild, (*place, *rest)))
        return getattr(_utils, _WISH), (shown, None, None, self.requires_grad)

    def location(memory: Any) -> str | None:
        return "cpu" if memory.device.type == "xla" else None

    torch.Tensor._reduce_ex_internal = _reduce_ex_internal  # type: ignore[method-assign]
    before_torchs = 5
    serialization.register_package(before_torchs, location, lambda memory, location: None)


def _patch_loading() -> None:
    theirs, read = getattr(_utils, _WISH), torch.UntypedStorage._set_from_file
    load, during = serialization._legacy_load, serialization._serialization_tls

    def rebuild(data: Any, dtype: Any, device: Any, requires_grad: bool) -> torch.Tensor:
        if isinstance(data, _Shown):
            data = _on(data.tensor.untyped_storage(), data.tensor)
        elif type(data) is not torch.Tensor or (dtype is not None and not _unread(data)):
            # See Note [Files without sharing]. The other ones are fake.
            return theirs(data, dtype or data.dtype, device or "xla:0", requires_grad)
        elif data.device.type == "cpu":  # else it is where the user wants it
            data = _restored(data, shares=dtype is None)
        data.requires_grad = requires_grad
        return data

    def _set_from_file(self: torch.UntypedStorage, *args: Any) -> Any:
        result = read(self, *args)
        for there in _brought.get(self, ()):
            there.copy_(self)
        return result

    def _legacy_load(file: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
        before, during.map_location = during.map_location, map_location
        try:
            return load(file, map_location, *args, **kwargs)
        finally:
            during.map_location = before

    rebuild.__module__, rebuild.__name__, rebuild.__qualname__ = _utils.__name__, _WISH, _WISH
    setattr(_utils, _WISH, rebuild)
    for known in (
        _weights_only_unpickler._get_allowed_globals,
        _weights_only_unpickler._tensor_rebuild_functions,
    ):
        getattr(known, "cache_clear", lambda: None)()  # they may have torch's in it
    torch.UntypedStorage._set_from_file = _set_from_file  # type: ignore[method-assign]
    serialization._legacy_load = _legacy_load  # torch notes where things go only for new files


def _unread(data: torch.Tensor) -> bool:
    """Whether its memory is yet to be read from the file: torch's old format has it at the end."""
    return hasattr(data.untyped_storage(), "_torch_load_uninitialized")


def _restored(data: torch.Tensor, shares: bool) -> torch.Tensor:
    """Return a tensor of a file where `map_location` wants one of the device to be."""
    memory = data.untyped_storage()
    known = _brought.get(memory, [])
    if known and shares:
        return _on(known[0], data)
    restore = serialization._get_restore_location(serialization._serialization_tls.map_location)
    there: Any = restore(memory, "xla:0")
    if there is memory:
        return data
    _brought[memory] = [*known, there]
    return _on(there, data)


def _on(memory: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor that lies on a storage as another does on its."""
    typed = torch.TypedStorage(wrap_storage=memory, dtype=like.dtype, _internal=True)
    place = (like.storage_offset(), tuple(like.shape), like.stride())
    tensor = _utils._rebuild_tensor(typed, *place)
    _utils.set_tensor_metadata(tensor, _utils.get_tensor_metadata(like))
    return tensor


def _patch_deepcopy() -> None:
    theirs = torch.Tensor.__deepcopy__

    @functools.wraps(theirs)
    def __deepcopy__(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        known = id(self) in memo
        result = theirs(self, memo)
        bits = self.is_conj() or self.is_neg()  # eager doesn't keep sharing then
        if not (known or bits or has_torch_function_unary(self)) and _ours(self):
            memory = copy.deepcopy(self.untyped_storage(), memo)
            storage.reshape_in_place(result, memory, storage.Layout.of(self))
        return result

    torch.Tensor.__deepcopy__ = __deepcopy__  # type: ignore[method-assign]
