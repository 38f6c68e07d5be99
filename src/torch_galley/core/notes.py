"""Small JSON files in which processes remember what they measured, entry by entry.

A file is read whole and written whole, under a temporary name that is then renamed, and while it is
changed a lock beside it is held: two processes that write at once both find their entries in it.
A broken file costs what it said, and a message. Nothing here is trusted: who reads an entry checks
its fields.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_galley.core.errors import ToolError
from torch_galley.core.store import FORMAT, parse_json, read_bytes, write_file


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of a setting `cache_dir`: XDG_CACHE_HOME's or ~/.cache's if it is None.

    Example:
        >>> cache_folder("here")
        PosixPath('here')
    """
    if cache_dir:
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torch-galley"


@dataclass(frozen=True)
class Notes:
    """A file of entries by key."""

    path: Path
    kind: str
    """What is noted, such as "rates"; a file of another kind is not touched."""

    def read(self) -> tuple[dict[str, Any], str | None]:
        """Return the entries, and what is wrong with the file if anything is.

        Example:
            >>> Notes(Path("nowhere.json"), "rates").read()
            ({}, None)
        """
        try:
            return self._entries(), None
        except ToolError as error:
            return {}, error.message

    def _entries(self) -> dict[str, Any]:
        try:
            raw = read_bytes(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise ToolError(f"can't read {self.path}: {error.strerror}") from error
        except ValueError as error:  # a pipe or a device, which is not ours to replace
            raise ToolError(f"{self.path} {error}") from None
        try:
            data = parse_json(raw)
        except ValueError as error:
            raise ToolError(f"{self.path} is broken: it {error}", broken=True) from None
        if not isinstance(data, dict) or data.get("galley") != self.kind:
            raise ToolError(f"{self.path} is no file of {self.kind}")
        if data.get("format") != FORMAT:
            raise ToolError(f"{self.path} has another format than {FORMAT}")
        entries = data.get("entries")
        if not isinstance(entries, dict):
            raise ToolError(f"{self.path} is broken: it has no entries", broken=True)
        return entries

    def add(self, entries: Mapping[str, Any]) -> None:
        """Write entries into the file, over those of the same keys, beside all others.

        Example: `Notes(path, "rates").add({"cpu": {"call": 3e-6}})`

        Raises:
            ToolError: the file is of another kind or format, or can't be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_name(f".{self.path.name}.lock").open("a")
        except OSError as error:
            raise ToolError(f"can't write {self.path}: {error.strerror}", hint=_HINT) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                known = self._entries()
            except ToolError as error:
                if not error.facts.get("broken"):
                    raise
                known = {}
            value = {"galley": self.kind, "format": FORMAT, "entries": known | dict(entries)}
            write_file(self.path, json.dumps(value, indent=1, sort_keys=True) + "\n")


_HINT = "name another with the setting cache_dir or decisions"
