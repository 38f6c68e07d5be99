"""How a stage speaks to a tool without knowing it: events and listeners.

Stages call `emit`; whoever wants to know calls `listen`. With
nobody listening that costs next to nothing. (Frozen dataclasses take twice as long to make, and
one is made in every call of a compiled function.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Event:
    """The base of all events."""


@dataclass(slots=True)
class GraphBuilt(Event):
    """A captured graph became a plan that can be called."""

    plan: Any
    """The run.execute.Plan."""


@dataclass(slots=True)
class GraphRecut(Event):
    """A graph is cut otherwise from its next call on: a lowering failed, or it was timed."""

    plan: Any
    """The run.execute.Plan that runs it then; another than the one that was built, or the same."""
    before: Any
    """The cluster.clustered.Clustered in force until then."""


@dataclass(slots=True)
class Decided(Event):
    """A graph was timed at its first call, and it was decided how it runs from then on."""

    plan: Any
    """The run.execute.Plan in force; a GraphRecut came before if it is cut otherwise now."""
    choices: Any
    """A tuple of cluster.judge.Choice, one for each cluster, and one for the graph if it was in
    doubt."""


@dataclass(slots=True)
class ClusterLowered(Event):
    """A cluster was turned into StableHLO."""

    lowered: Any
    """The lower.driver.Lowered."""
    seconds: float


@dataclass(slots=True)
class ClusterCompiled(Event):
    """XLA compiled a cluster."""

    compiled: Any
    """The compile.client.Compiled."""
    seconds: float
    background: bool = False
    """Whether nothing waited for it."""


@dataclass(slots=True)
class ClusterRanNatively(Event):
    """A cluster of a plan ran as eager would run it: it has no executable for its inputs."""

    cluster: Any
    """The cluster.clustered.XlaCluster."""
    cause: str
    """"compiling": in the background; "rare": its shapes have not come often enough; "limit": it
    is compiled for no further shapes; "failed": it can't be lowered, and is about to be cut;
    "wrapped": an input has no memory of its own, as vmap's batched tensors; "tangent": one is a
    dual tensor of forward-mode differentiation."""
    operators: tuple[Any, ...]
    """The operators that it called."""


@dataclass(slots=True)
class RecompilesStopped(Event):
    """A cluster is compiled for no further shapes: there were too many."""

    cluster: Any
    """The cluster.clustered.XlaCluster."""
    compiles: int
    runs: int


@dataclass(slots=True)
class CacheHit(Event):
    """A cluster found its executable in the cache."""

    key: Any


@dataclass(slots=True)
class PlanExecuted(Event):
    """A plan ran once: all its clusters and native operations."""

    plan: Any
    """The run.execute.Plan."""
    seconds: float


@dataclass(slots=True)
class NativeExecuted(Event):
    """So many operator calls ran outside XLA and outside a plan."""

    count: int
    op: Any = None
    """The torch operator."""


@dataclass(slots=True)
class Flushed(Event):
    """The lazy device ran what it had recorded."""

    cause: str
    """Why: "sync", "read", ..."""
    nodes: int
    """How many recorded operations it took."""
    site: Any = None
    """The user's core.site.Site."""
    seconds: float = 0.0
    """What it took, compilation included."""


@dataclass(slots=True)
class Warned(Event):
    """Something the user should know was printed as a warning."""

    message: str


_listeners: tuple[Callable[[Event], None], ...] = ()
_changing = threading.Lock()


def emit(event: Event) -> None:
    """Tell every listener of `event`."""
    for listener in _listeners:
        listener(event)


def listen(listener: Callable[[Event], None]) -> Callable[[], None]:
    """Call `listener` with every later event; return a function that ends it.

    Example:
        >>> seen = []
        >>> stop = listen(seen.append)
        >>> emit(Flushed("sync", 3)); stop(); emit(Flushed("read", 1))
        >>> [event.cause for event in seen]
        ['sync']
    """
    global _listeners
    with _changing:
        _listeners += (listener,)

    def stop() -> None:
        global _listeners
        with _changing:
            if listener in _listeners:
                place = _listeners.index(listener)
                _listeners = _listeners[:place] + _listeners[place + 1 :]

    return stop
