"""A place in HLO text that moves over its words, and errors that point at one.

White space and comments may stand between any two words, as XLA's own reader takes them.
"""

from __future__ import annotations

import re
from typing import NoReturn

from torch_galley.core.errors import HloSyntaxError

_GAP = re.compile(r"(?:\s+|/\*.*?\*/|//[^\n]*)*", re.S)
NAME = re.compile(r"[A-Za-z_][\w.\-]*")
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_STEP = re.compile(r'[^"(){}\[\]/,\s]+|//[^\n]*|/\*.*?\*/|"[^"\\]*(?:\\.[^"\\]*)*"|/', re.S)
"""What may be stepped over in search of the end of a value: no bracket, comma or white space."""
_CLOSES = {"(": ")", "{": "}", "[": "]"}
_WIDEST = 100
"""How much of a line an error shows."""


class Cursor:
    """A place in a text.

    Example:
        >>> cursor = Cursor("a /* so */ = 1")
        >>> cursor.match(NAME, "a name")[0], cursor.taken("="), cursor.place
        ('a', True, 12)
    """

    def __init__(self, text: str, place: int = 0) -> None:
        self.text, self.place = text, place

    def gap(self) -> None:
        """Move over white space and comments."""
        found = _GAP.match(self.text, self.place)
        assert found is not None, "the pattern takes nothing, too"
        self.place = found.end()

    def taken(self, word: str) -> bool:
        """Move over a word if it is next, and say whether it was."""
        self.gap()
        if self.text.startswith(word, self.place):
            self.place += len(word)
            return True
        return False

    def expect(self, word: str, what: str) -> None:
        """Move over a word.

        Raises:
            HloSyntaxError: another one is next.
        """
        if not self.taken(word):
            self.fail(f"expected {what}")

    def maybe(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move over what a pattern matches, if it does here; white space first is left out."""
        self.gap()
        found = pattern.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
        return found

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Move over what a pattern matches.

        Raises:
            HloSyntaxError: it doesn't, here.
        """
        found = self.maybe(pattern)
        if found is None:
            self.fail(f"expected {what}")
        return found

    def value(self, ends: str) -> str:
        """Return the text from here to the first of some characters outside of brackets.

        Strings and comments are passed over. The cursor stays before that character.

        Args:
            ends: characters among the comma, the closing brackets and white space.

        Raises:
            HloSyntaxError: a bracket, a comment or a string is not closed.
        """
        start, open_ = self.place, list[tuple[str, int]]()
        text, place, end = self.text, self.place, len(self.text)
        while place < end:
            step = _STEP.match(text, place)
            if step is not None and step.end() > place:
                place = step.end()
                continue
            here = text[place]
            if not open_ and here in ends:
                break
            if here in _CLOSES:
                open_.append((_CLOSES[here], place))
            elif here in ")}]":
                if not open_ or open_[-1][0] != here:
                    self.fail(f"{here} closes nothing", at=place)
                open_.pop()
            elif here == '"':
                self.fail("this string has no end", at=place)
            place += 1
        if open_:
            self.fail(f"{text[open_[-1][1]]} is not closed", at=open_[-1][1])
        self.place = place
        return text[start:place]

    def fail(self, message: str, at: int | None = None, length: int = 1) -> NoReturn:
        """Raise an error that shows a place of the text.

        Args:
            message: what is wrong there.
            at: the place, this cursor's if left out.
            length: how many characters are marked.
        """
        raise error(self.text, message, self.place if at is None else at, length)


def error(text: str, message: str, at: int, length: int = 1) -> HloSyntaxError:
    """Return an error that names line and column, and shows the line with carets under the place.

    `facts` has `line` and `column` (both from 1), and `span`, the two ends of what is marked.

    Example:
        >>> print(error("a = b", "no such name", 4))
        line 1, column 5: no such name
          a = b
              ^
    """
    at = min(at, len(text))
    start = text.rfind("\n", 0, at) + 1
    stop = text.find("\n", at)
    line = text[start : len(text) if stop < 0 else stop]
    number, column = text.count("\n", 0, at) + 1, at - start
    length = max(1, min(length, len(line) - column))
    first = max(0, min(column - _WIDEST // 2, len(line) - _WIDEST))
    shown = line[first : first + _WIDEST].replace("\t", " ")
    carets = " " * (column - first) + "^" * min(length, _WIDEST - column + first)
    return HloSyntaxError(
        f"line {number}, column {column + 1}: {message}\n  {shown}\n  {carets}",
        line=number,
        column=column + 1,
        span=(at, at + length),
    )
