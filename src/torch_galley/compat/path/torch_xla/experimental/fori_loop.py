"""`torch_xla.experimental.fori_loop`: importing it makes while_loop work there; here it does."""

from __future__ import annotations

from typing import Any

from torch._higher_order_ops import while_loop as while_loop

from torch_galley.compat.finder import missing


def __getattr__(name: str) -> Any:
    missing(__name__, name)
