"""What attributes of instructions say, read from their text.

Each function takes the text that follows `name=` and gives a plain value; a text that says nothing
of the kind gives the empty one, since attributes change from one XLA to the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CALLS = (
    "calls",
    "to_apply",
    "condition",
    "body",
    "branch_computations",
    "true_computation",
    "false_computation",
    "select",
    "scatter",
    "called_computations",
    "async_wrapped",
)
"""Attributes whose values are names of computations."""
_NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_PAIR = re.compile(r'([\w.]+)=("[^"\\]*(?:\\.[^"\\]*)*"|\{[^{}]*\}|[^\s{}",]+)', re.S)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|(.))", re.S)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}
_WINDOW = re.compile(r"(\w+)=([\dx_\-]+)")
_COUNT = re.compile(r"\d{1,18}")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


@dataclass(frozen=True, slots=True)
class Metadata:
    """What an instruction says of its origin."""

    op_name: str = ""
    """Scopes and operator, joined by slashes: "jit(f)/layer1/dot_general"."""
    op_type: str = ""
    frame: int = 0
    """A number of the module's stack frames; 0 if there is none."""
    file: str = ""
    """Where XLA writes the place itself, without tables."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution or a window reduction moves, each with one number a dimension."""

    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    """Padding before the first element."""
    high: tuple[int, ...] = ()
    """Padding behind the last."""
    base: tuple[int, ...] = ()
    """Dilation of the input."""
    dilation: tuple[int, ...] = ()
    """Dilation of the window."""
    reversed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Labels:
    """Which dimension of a convolution is which: letters b, f, i, o, and digits for space."""

    input: str
    kernel: str
    output: str


def called(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the computations that attributes name.

    Example:
        >>> called({"condition": "%c", "body": "%b", "index": "0"})
        ('c', 'b')
    """
    found = [n for key in CALLS if key in attributes for n in names(attributes[key])]
    return tuple(found)


def names(text: str) -> list[str]:
    """Return names in a list of them, such as `{%a, %b}`, or alone."""
    return _NAME.findall(_COMMENT.sub("", text))


def ints(text: str) -> tuple[int, ...]:
    """Return the numbers of a list.

    Example:
        >>> ints("{0, 2}")
        (0, 2)
    """
    return tuple(int(one) for one in re.findall(r"-?\d{1,18}", text))


def unquoted(text: str) -> str:
    """Return what a string in quotes says.

    Example:
        >>> unquoted(r'"a \\"b\\""')
        'a "b"'
    """

    def plain(match: re.Match[str]) -> str:
        if match[1] or match[2]:
            return chr(int(match[1], 16) if match[1] else int(match[2], 8))
        return _PLAIN.get(match[3], match[3])

    return _ESCAPE.sub(plain, text[1:-1]) if text[:1] == '"' else text


def metadata(text: str) -> Metadata:
    """Read `{op_name="jit(f)/add" stack_frame_id=3}`."""
    if not text:
        return Metadata()
    said = {key: unquoted(value) for key, value in _PAIR.findall(text)}
    return Metadata(
        said.get("op_name", ""),
        said.get("op_type", ""),
        _number(said.get("stack_frame_id")),
        said.get("source_file", ""),
        _number(said.get("source_line")),
    )


def config(text: str) -> Any:
    """Return a backend_config as JSON says it; {} if it is none or not JSON.

    Some backends write it in a string, XLA:CPU writes it plainly.
    """
    try:
        found = json.loads(unquoted(text))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def trip_count(text: str) -> int | None:
    """Return how often a loop runs, from its backend_config."""
    if "known_trip_count" not in text:
        return None
    known = config(text).get("known_trip_count")
    count = str(known.get("n")) if isinstance(known, dict) else ""
    return int(count) if _COUNT.fullmatch(count) else None


def window(text: str, rank: int) -> Window:
    """Read `{size=3x3 stride=2x2 pad=0_1x0_1}`; what is left out is 1, padding is none.

    Args:
        text: the attribute.
        rank: how many dimensions it has if it names none.
    """
    said = dict(_WINDOW.findall(text))
    sizes = _by_x(said.get("size", ""))
    rank = len(sizes) or rank
    pads = [one.split("_") for one in said.get("pad", "").split("x") if "_" in one]
    pads = pads if len(pads) == rank else [["0", "0"]] * rank

    def of(key: str, default: int) -> tuple[int, ...]:
        found = _by_x(said.get(key, ""))
        return found if len(found) == rank else (default,) * rank

    return Window(
        sizes or (1,) * rank,
        of("stride", 1),
        tuple(_number(one[0]) for one in pads),
        tuple(_number(one[1]) for one in pads),
        of("lhs_dilate", 1),
        of("rhs_dilate", 1),
        of("rhs_reversal", 0),
    )


def labels(text: str) -> Labels | None:
    """Read `bf01_oi01->bf01`; None if it is not of this form."""
    found = _LABELS.fullmatch(text.strip())
    return Labels(*found.groups()) if found else None


def _by_x(text: str) -> tuple[int, ...]:
    return tuple(_number(one) for one in text.split("x")) if text else ()


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
