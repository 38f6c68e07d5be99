"""`torch_xla.runtime`, usually imported as `xr`: one process, one CPU device."""

from __future__ import annotations

from typing import Any

from torch_galley.compat.finder import missing
from torch_galley.core.errors import ConfigError


def device_type() -> str:
    """Return what computes: "CPU"."""
    return "CPU"


def set_device_type(pjrt_device: str) -> None:
    """Accept "CPU", which is what there is.

    Raises:
        ConfigError: another device.
    """
    if pjrt_device.upper() != "CPU":
        raise ConfigError(f"there is no {pjrt_device} here", hint="the only device type is CPU")


def using_pjrt() -> bool:
    """Return True."""
    return True


def is_spmd() -> bool:
    """Return False: there is one device."""
    return False


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Do nothing: executables are kept in memory only."""


def _one() -> int:
    """Return 1."""
    return 1


def _zero() -> int:
    """Return 0."""
    return 0


world_size = local_process_count = process_count = host_count = _one
local_device_count = addressable_device_count = global_device_count = _one
addressable_runtime_device_count = global_runtime_device_count = _one
global_ordinal = local_ordinal = process_index = host_index = _zero


def __getattr__(name: str) -> Any:
    missing(__name__, name)
