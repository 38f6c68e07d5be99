"""`torch_xla.core`."""

from __future__ import annotations

from typing import Any

from torch_galley.compat.finder import submodule


def __getattr__(name: str) -> Any:
    return submodule(__name__, name)
