"""The places in people's code that a module names: XLA's stack tables.

Four tables, printed behind the module's head: files, functions, places in files, and stack frames
of a place and the frame that called it. An instruction's metadata names a frame.

Note [Frames are counted from one, and their parents from two]: a frame `5 {... parent_frame_id=3}`
was called from frame 2, and `parent_frame_id=1` says that nobody called it. XLA keeps frame 0 for
"none" in its protocol and writes every parent one too high.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, as XLA numbers it: lines from 1, columns from 0."""

    file: int
    function: int
    line: int
    end_line: int
    column: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack.

    Example: `str(Frame("model.py", "forward", 12))` is `"model.py:12 in forward"`
    """

    file: str
    function: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Sources:
    """The four tables, each by its numbers."""

    files: Mapping[int, str] = field(default_factory=dict[int, str])
    functions: Mapping[int, str] = field(default_factory=dict[int, str])
    places: Mapping[int, Place] = field(default_factory=dict[int, Place])
    frames: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Of each frame its place, and the number of its parent plus one, as it is printed."""

    def __bool__(self) -> bool:
        return bool(self.files or self.functions or self.places or self.frames)

    def stack(self, frame: int) -> Iterator[Frame]:
        """Yield a frame and those that called it, the innermost first.

        Args:
            frame: the `stack_frame_id` of an instruction's metadata; 0 has no frames.
        """
        seen = set[int]()
        while frame in self.frames and frame not in seen:  # a ring can only be written by hand
            seen.add(frame)
            number, parent = self.frames[frame]
            if place := self.places.get(number):
                file = self.files.get(place.file, "?")
                function = self.functions.get(place.function, "?")
                yield Frame(file, function, place.line, place.column)
            frame = parent - 1
