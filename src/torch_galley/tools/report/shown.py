"""Numbers and places as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torch_galley.core.site import Site

TIMES, MINUS = "\u00d7", "\u2212"
"""Signs that linters take for letters."""


def duration(seconds: float) -> str:
    """Return a time.

    Example:
        >>> duration(0.25), duration(1.5e-5), duration(75)
        ('250 ms', '15 µs', '75.0 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def place(site: Site) -> str:
    """Return a place with a path no longer than needed: from here, or from site-packages."""
    path = Path(site.file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    elif "site-packages" in path.parts:
        path = Path(*path.parts[path.parts.index("site-packages") + 1 :])
    elif path.is_relative_to(Path.home()):
        path = "~" / path.relative_to(Path.home())
    return f"{path}:{site.line}" + (f" in {site.function}" if site.function else "")


def merged(paths: Iterable[str]) -> list[str]:
    """Return module paths, those that differ in one number written as one.

    Example:
        >>> merged(["layer.0.act", "layer.1.act", "layer.2.act", "head"])
        ['layer.{0-2}.act', 'head']
    """
    groups: dict[str, list[int]] = {}
    for path in dict.fromkeys(paths):
        match = re.search(r"(?<![^.])\d+(?![^.])", path)
        key = f"{path[: match.start()]}{{}}{path[match.end() :]}" if match else path
        groups.setdefault(key, []).extend([int(match[0])] if match else [])
    out = []
    for key, numbers in groups.items():
        first, last = (min(numbers), max(numbers)) if numbers else (0, 0)
        if len(numbers) < 2:
            out.append(key.replace("{}", str(first)) if numbers else key)
        elif last - first + 1 == len(set(numbers)):
            out.append(key.replace("{}", f"{{{first}-{last}}}"))
        else:
            out.append(key.replace("{}", "{" + ",".join(map(str, sorted(numbers))) + "}"))
    return out


def printable(text: str) -> str:
    """Return text with all that is invisible, steers a terminal or has no encoding spelled out.

    Example:
        >>> printable("a\\x1b[31mb")
        'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def clean(text: str, longest: int = 2000) -> str:
    """Return text safe to look at: what is invisible or turns the line around is spelled out.

    Example:
        >>> clean("a\\u202eb"), clean("abcdef", 4)
        ('a\\\\u202eb', 'abc…')
    """
    seen = printable(text[:longest])
    return seen if len(text) <= longest else seen[: longest - 1] + "…"
