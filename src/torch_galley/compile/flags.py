"""XLA_FLAGS: read when XLA starts, and tried in a child first, since XLA ends the process on a
flag that it does not know.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache

from torch_galley.core.errors import ConfigError
from torch_galley.core.events import Warned, emit

_GRAPH = re.compile(r"--xla_(?:generate_)?hlo_graph(?:=.*)?")
_GRAPH_FOLDER = re.compile(r"--xla_hlo_graph_path=(.+)")
_KNOWN = re.compile(
    r"--xla_dump_to=.+"
    r"|--xla_dump_hlo_as_(?:text|long_text|dot|html|proto)(?:=true|=false)?"
    r"|--xla_dump_hlo_(?:module|pass)_re=.+"
)
"""Flags that every XLA knows."""


def prepare() -> None:
    """Make XLA_FLAGS fit for XLA, which reads them at its next start.

    Raises:
        ConfigError: XLA would refuse them.
    """
    given = os.environ.get("XLA_FLAGS", "")
    flags = translate(given.split())
    if flags != given.split():
        os.environ["XLA_FLAGS"] = " ".join(flags)
    harmless = flags and all(map(_KNOWN.fullmatch, flags))
    if given and not harmless:  # given without a flag: XLA takes blanks for the name of a file
        _try(flags)


def translate(flags: Sequence[str]) -> list[str]:
    """Return flags in which the names of old, still taught, are those of today's XLA.

    Graphs in the DOT language go to the folder of the other dumps, or else to ./hlo_graph.

    Example:
        >>> translate(["--xla_hlo_graph", "--xla_hlo_graph_path=/tmp/g"])
        ['--xla_dump_to=/tmp/g', '--xla_dump_hlo_as_dot']
    """
    graph = any(map(_GRAPH.fullmatch, flags))
    folders = [match[1] for flag in flags if (match := _GRAPH_FOLDER.fullmatch(flag))]
    rest = [f for f in flags if not _GRAPH.fullmatch(f) and not _GRAPH_FOLDER.fullmatch(f)]
    if not (graph or folders):
        return rest
    if not any(flag.startswith("--xla_dump_to=") for flag in rest):
        rest.append(f"--xla_dump_to={folders[-1] if folders else 'hlo_graph'}")
    if "--xla_dump_hlo_as_dot" not in rest:
        rest.append("--xla_dump_hlo_as_dot")
    return rest


def _try(flags: Sequence[str]) -> None:
    refusal = _refusal(os.environ["XLA_FLAGS"])
    if refusal is None:
        return
    named = [flag for flag in flags if flag.split("=")[0].lstrip("-") in refusal]
    culprit = f": {' '.join(named)}" if named else ""
    raise ConfigError(
        f"XLA refuses XLA_FLAGS={os.environ['XLA_FLAGS']!r}{culprit}",
        hint="correct or unset XLA_FLAGS; XLA would have ended the process",
        stderr=refusal,
    )


@cache
def _refusal(flags: str) -> str | None:
    """Return what XLA says before it ends a process with these flags, None if it doesn't."""
    code = "import jax; jax.devices('cpu')"
    command, environment = [sys.executable, "-c", code], os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return None if done.returncode == 0 else done.stderr


_taken: str | None = None
"""XLA_FLAGS as XLA has read them, or as last warned of."""
_in_force = ""


def taken() -> None:
    """Note that XLA reads XLA_FLAGS now, for good."""
    global _taken, _in_force
    _taken = _in_force = os.environ.get("XLA_FLAGS", "")


def in_force() -> str:
    """Return XLA_FLAGS as XLA has read them, for a process that is to do as this one does."""
    return _in_force


def check_unchanged() -> None:
    """Warn, once for each change, if XLA_FLAGS were changed since XLA read them."""
    global _taken
    now = os.environ.get("XLA_FLAGS", "")
    if _taken is None or now == _taken:
        return
    _taken = now
    message = f"XLA_FLAGS={now!r} comes too late: XLA reads it once, before its first compilation"
    emit(Warned(message))
    warnings.warn(message, stacklevel=2)
