"""`torch_xla.distributed.spmd`: importable, since libraries import it; it has no names."""

from __future__ import annotations

from typing import Any

from torch_galley.compat.finder import missing


def __getattr__(name: str) -> Any:
    missing(__name__, name)
