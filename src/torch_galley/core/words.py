"""Words that every part of the package writes alike."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "graph"), counted(2000, "graph")
        ('1 graph', '2,000 graphs')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
