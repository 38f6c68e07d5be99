"""`torch_xla.debug.metrics`, usually imported as `met`."""

from __future__ import annotations

from typing import Any

import torch_galley
from torch_galley.compat.install import missing


def metrics_report() -> str:
    """Return torch_galley's counters as a table."""
    return torch_galley.metrics_report()


def clear_all() -> None:
    """Set all counters to zero."""
    torch_galley.reset_metrics()


def __getattr__(name: str) -> Any:
    missing("torch_xla.debug.metrics", name)
