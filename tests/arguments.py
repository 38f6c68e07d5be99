"""Types of argparse's arguments: what is out of range is an error of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    return _at_least(1, text)


def natural(text: str) -> int:
    """Return a whole number of at least 0."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return number


def among(choices: Sequence[str], text: str) -> tuple[str, ...]:
    """Return some of the choices, named with commas.

    Example:
        >>> among(("compile", "lazy"), "lazy")
        ('lazy',)
    """
    named = tuple(text.split(","))
    for one in named:
        if one not in choices:
            raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(choices)}")
    return named
