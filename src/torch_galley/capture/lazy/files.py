"""Tensors of the device in files, and as programs see memory: torch offers no hook for either.

A pickled tensor is a CPU tensor and the wish to be on the device. Where there is no such device,
`torch.load` leaves it on the CPU, as any file of CPU tensors; views keep sharing memory there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _utils

from torch_galley.capture.lazy.flush import on_cpu


def patch_torch() -> list[torch.library.Library]:
    """Make saving, sharing checks and pinning work with the device; return what to keep alive."""
    _patch_pickling()
    _patch_data_ptr()
    pinning = torch.library.Library("aten", "IMPL")
    pinning.impl("_pin_memory", _pin_memory, "CPU")
    return [pinning]


def _patch_pickling() -> None:
    reduce, location = torch.Tensor._reduce_ex_internal, _utils._get_restore_location

    def _reduce_ex_internal(self: torch.Tensor, proto: int) -> Any:
        if self.device.type != "xla":
            return reduce(self, proto)
        rebuild = _utils._rebuild_device_tensor_from_cpu_tensor
        return rebuild, (on_cpu(self), self.dtype, None, self.requires_grad)

    def _get_restore_location(device: Any) -> Any:
        return location("xla:0" if device is None else device)

    torch.Tensor._reduce_ex_internal = _reduce_ex_internal  # type: ignore[method-assign]
    _utils._get_restore_location = _get_restore_location


def _patch_data_ptr() -> None:
    """Give each storage an address of its own: by it, programs tell which tensors share memory."""
    theirs = torch.UntypedStorage.data_ptr

    def data_ptr(self: torch.UntypedStorage) -> int:
        return self._cdata if self.device.type == "xla" else theirs(self)

    torch.UntypedStorage.data_ptr = data_ptr  # type: ignore[method-assign]


def _pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Copy: nothing need be pinned for a device that computes on the CPU."""
    return self.clone()
