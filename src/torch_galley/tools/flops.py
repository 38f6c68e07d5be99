"""Floating-point operations, which cluster.flops counts, written for people."""

from __future__ import annotations


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
