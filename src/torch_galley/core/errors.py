"""Every error torch-galley raises on purpose.

    GalleyError              anything below
    |- ConfigError           a setting, option, environment variable or version we can't work with
    |- CaptureError          a PyTorch program that can't be recorded
    |- ClusterError          a graph that can't be cut into clusters
    |- LoweringError         an operator that could not be turned into StableHLO
    |- CompileError          XLA refused or failed to compile a cluster
    |- RunError              a compiled cluster failed while it ran
    |- HloSyntaxError        HLO text that does not parse
    `- ToolError             a tool was asked something it can't answer

What we merely don't support is no error: it is a Reason (reasons.py) and runs natively.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_galley.core.site import Site


class GalleyError(Exception):
    """The base of the tree: a sentence, and the facts behind it as attributes.

    Args:
        message: what is wrong, in one sentence.
        site: where in the user's code, if known.
        hint: the way out, in one sentence.
        facts: named values behind the message, for tools.

    Example:
        >>> print(GalleyError("no such thing", hint="try another"))
        no such thing
          hint: try another
    """

    stage = "galley"

    def __init__(
        self, message: str, *, site: Site | None = None, hint: str | None = None, **facts: Any
    ):
        super().__init__(message)
        self.message, self.site, self.hint, self.facts = message, site, hint, facts

    @property
    def docs(self) -> str:
        """The anchor of this error in docs/errors.md."""
        return f"docs/errors.md#{type(self).__name__.lower()}"

    def __str__(self) -> str:
        lines = [self.message]
        if self.site is not None:
            lines.append(f"  at {self.site}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return _printable("\n".join(lines))


def _printable(text: str) -> str:
    """Return text with control characters spelled out: names and paths may hold anything.

    Example:
        >>> _printable("a\x1b[2Jb")
        'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


class ConfigError(GalleyError):
    """A setting, option, environment variable or installed version we can't work with."""

    stage = "config"


class CaptureError(GalleyError):
    """A PyTorch program that can't be recorded."""

    stage = "capture"


class ClusterError(GalleyError):
    """A graph that can't be cut into clusters."""

    stage = "cluster"


class LoweringError(GalleyError):
    """An operator that could not be turned into StableHLO. `facts["node"]` names the node."""

    stage = "lower"


class CompileError(GalleyError):
    """XLA refused or failed to compile a cluster."""

    stage = "compile"


class RunError(GalleyError):
    """A compiled cluster failed while it ran."""

    stage = "run"


class HloSyntaxError(GalleyError):
    """HLO text that does not parse."""

    stage = "hlo"


class ToolError(GalleyError):
    """A tool was asked something it can't answer."""

    stage = "tool"
