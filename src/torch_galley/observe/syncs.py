"""Which lines of the user's program make the lazy device run, how often, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from torch_galley.core.events import Event, Flushed, listen

_SHOWN = 10
_KEPT = 1000


@dataclass
class Sync:
    """A line that makes the device run."""

    cause: str
    site: str
    """file:line in function."""
    count: int = 0
    seconds: float = 0.0


_syncs: dict[tuple[str, str], Sync] = {}


def _on_event(event: Event) -> None:
    if not isinstance(event, Flushed):
        return
    key = (event.cause, str(event.site or "unknown place"))
    if key not in _syncs and len(_syncs) >= _KEPT:
        return
    found = _syncs.setdefault(key, Sync(*key))
    found.count += 1
    found.seconds += event.seconds


listen(_on_event)


def syncs() -> list[Sync]:
    """Return the lines since the process or `reset` began, those that took longest first."""
    return sorted([*_syncs.values()], key=lambda sync: -sync.seconds)


def lines() -> list[str]:
    """Return them as lines of a report, none if there were no flushes."""
    found = syncs()
    shown = [
        f"{sync.count:>7} x {sync.cause:<8} {sync.seconds * 1000:>9.1f} ms  {sync.site}"
        for sync in found[:_SHOWN]
    ]
    more = [f"        and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ["flushes by line:", *shown, *more] if found else []


def reset() -> None:
    """Forget all."""
    _syncs.clear()
