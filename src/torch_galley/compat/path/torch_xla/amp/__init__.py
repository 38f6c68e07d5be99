"""`torch_xla.amp`: torch's own autocast and scaler, for the xla device."""

from __future__ import annotations

from typing import Any

import torch

from torch_galley.compat.finder import submodule


class autocast(torch.autocast):
    """torch.autocast("xla"); the device is the one there is."""

    def __init__(
        self,
        device: Any = "xla",
        enabled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        cache_enabled: bool | None = None,
    ):
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler("xla")."""

    def __init__(self, *args: Any, use_zero_grad: bool = False, **kwargs: Any):
        super().__init__("xla", *args, **kwargs)


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
