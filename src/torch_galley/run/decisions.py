"""What was measured of regions and graphs, remembered in a file that can be shipped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_galley.core.config import Config
from torch_galley.core.errors import ToolError
from torch_galley.core.events import Warned, emit
from torch_galley.core.notes import Notes, cache_folder

KEPT = ("cluster", "native", "clusters", "eager", "inductor")


@dataclass(frozen=True)
class Decision:
    """The fastest of what was timed."""

    kept: str
    """One of KEPT."""
    seconds: Mapping[str, float]
    """Medians, by what could have been kept."""
    what: str
    """For people who read the file."""
    failed: tuple[str, ...] = ()
    """What could have been kept if it could have run."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return vars(self) | {"seconds": dict(self.seconds), "failed": list(self.failed)}

    @staticmethod
    def from_json(data: Any) -> Decision:
        """Return the decision for what `to_json` gave.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(data, dict):
            raise ValueError(f"is {data!r:.40}, not an object")
        kept, what = data.get("kept"), data.get("what")
        if kept not in KEPT or not isinstance(what, str):
            raise ValueError(f"keeps {kept!r:.40}, which is none of {', '.join(KEPT)}")
        seconds = data.get("seconds")
        if not isinstance(seconds, dict):
            seconds = {}
        if kept not in seconds or not all(map(_is_time, seconds.values())):
            raise ValueError(f"has seconds={seconds!r:.40}, not a time for each contender")
        failed = data.get("failed")
        if not (isinstance(failed, list) and all(name in KEPT for name in failed)):
            raise ValueError(f"has failed={failed!r:.40}, not a list of contenders")
        return Decision(kept, seconds, what, tuple(failed))


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and value > 0


_here: dict[Path, dict[str, Decision]] = {}
"""What this process measured, also where no file can be written."""
_told: set[str] = set()


class Decisions:
    """The decisions that are known when a graph is built, by fingerprint.

    Example: `Decisions.of(current()).get("5f0c...")`
    """

    def __init__(self, file: Notes):
        self.file = file
        self._entries, problem = file.read()
        if problem:
            _tell(f"{problem}; what it said is decided anew")

    @staticmethod
    def of(config: Config) -> Decisions:
        """Return those of the file that the settings name."""
        path = config.decisions or cache_folder(config.cache_dir) / "decisions.json"
        return Decisions(Notes(Path(path), "decisions"))

    def get(self, key: str) -> Decision | None:
        """Return what was decided, None if nothing was. A broken entry is told of, and is none."""
        if (found := _here.get(self.file.path, {}).get(key)) is not None:
            return found
        if key not in self._entries:
            return None
        try:
            return Decision.from_json(self._entries[key])
        except ValueError as error:
            _tell(f"{self.file.path}: {key} {error}; it is decided anew")
            return None

    def add(self, found: Mapping[str, Decision]) -> None:
        """Remember decisions; where the file can't be written, with a warning, in this process."""
        _here.setdefault(self.file.path, {}).update(found)
        try:
            self.file.add({key: decision.to_json() for key, decision in found.items()})
        except ToolError as error:
            _tell(f"{error.message}; what was measured is forgotten when this process ends")


def forget() -> None:
    """Forget what this process measured, but not what files say."""
    _here.clear()
    _told.clear()


def _tell(message: str) -> None:
    if message not in _told:
        _told.add(message)
        emit(Warned(message))
        warnings.warn(message, stacklevel=3)
