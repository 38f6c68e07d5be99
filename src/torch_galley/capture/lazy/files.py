"""Tensors of the device in files: torch offers no hook for them.

A pickled tensor is a CPU tensor and the wish to be on the device. Where there is no such device,
`torch.load` leaves it on the CPU, as any file of CPU tensors; views keep sharing memory there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _utils

from torch_galley.capture.lazy.flush import on_cpu


def patch_torch() -> None:
    """Make pickling work with the device, and as before without."""
    _patch_pickling()


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
