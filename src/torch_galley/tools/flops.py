"""Floating-point operations of graph nodes, counted by cluster.flops, and written for people."""

from __future__ import annotations

from torch_galley.cluster.flops import flops as flops
from torch_galley.cluster.flops import total as total


def shown(count: float) -> str:
    """Return a count for people.

    Example:
        >>> shown(48), shown(2.5e9)
        ('48 FLOP', '2.5 GFLOP')
    """
    for unit in ("", "K", "M", "G"):
        if count < 1000:
            return f"{count:.0f} FLOP" if not unit else f"{count:.1f} {unit}FLOP"
        count /= 1000
    return f"{count:.1f} TFLOP"
