"""Where in the user's code an operation was recorded; backward ops go to their forward's line.

Called for every operation, so it keeps code objects and offsets, and looks lines up when asked.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType

import torch

from torch_galley.core.site import Site

Place = tuple[tuple[CodeType, int], ...]
"""The user's frames, innermost first: code and the offset of the instruction in it."""

_OURS = tuple(
    str(path) for path in (Path(torch.__file__).parent, Path(__file__).resolve().parents[2])
)
_SKIPPED = (*_OURS, "<frozen ")
_MAX_FRAMES = 8
_MAX_FORWARD = 100_000
"""Forward operations whose place is remembered for their backward."""

_users: dict[CodeType, bool] = {}
"""Whether a code object is the user's own."""
_forward: dict[int, Place] = {}
"""By sequence number of the autograd node: where its forward operation was called."""
_current: Place | None = None
"""The place of the operator call that is being recorded."""

_current_node = torch._C._current_autograd_node
_next_sequence_number = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]


def user_frames() -> Place:
    """Return the frames of the user's own code on the stack, innermost first."""
    frame = sys._getframe(1)
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        code = frame.f_code
        users = _users.get(code)
        if users is None:
            users = _users[code] = not code.co_filename.startswith(_SKIPPED)
        if users:
            found.append((code, frame.f_lasti))
            if len(found) == _MAX_FRAMES:
                break
        frame = frame.f_back
    return tuple(found)


def enter() -> bool:
    """Note the place of the operator call that begins; steps recorded in it are there.

    Return whether it is the outermost: what an operator calls in turn is where it is.
    """
    global _current
    if _current is not None:
        return False
    node = _current_node()
    if node is not None:  # in a backward: the forward operation's place, unless it is unknown
        _current = _forward.get(node._sequence_nr()) or user_frames()
        return True
    _current = user_frames()
    if torch.is_grad_enabled():
        # The call's own autograd node, if it has one, was made right before.
        _forward.setdefault(_next_sequence_number() - 1, _current)
        if len(_forward) > _MAX_FORWARD:
            for number in list(_forward)[: _MAX_FORWARD // 2]:
                del _forward[number]
    return True


def here() -> Place:
    """Return the place of the present operator call, or of whoever calls outside of one."""
    return user_frames() if _current is None else _current


def leave() -> None:
    """Note that the operator call is over."""
    global _current
    _current = None


def site_of(place: Place) -> Site | None:
    """Return the innermost frame as a Site."""
    return Site(*_lines(place[:1])[0]) if place else None


def stack_trace(place: Place) -> str:
    """Return the frames as torch.fx keeps them, outermost first."""
    lines = []
    for file, line, function in reversed(_lines(place)):
        lines.append(f'  File "{file}", line {line}, in {function}')
        if code := linecache.getline(file, line).strip():
            lines.append(f"    {code}")
    return "\n".join(lines)


def _lines(place: Place) -> list[tuple[str, int, str]]:
    return [(code.co_filename, _line(code, offset), code.co_name) for code, offset in place]


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
