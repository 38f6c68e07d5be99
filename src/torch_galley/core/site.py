"""Where in the user's code a graph node came from."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

_TORCH = importlib.util.find_spec("torch")  # found, not imported: `import torch_galley` is light
_TORCH_ROOT = str(Path(_TORCH.origin).parent) if _TORCH and _TORCH.origin else "torch"
_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')


@dataclass(frozen=True)
class Site:
    """A place in the user's program.

    Example:
        >>> str(Site("model.py", 42, "forward", "encoder.0"))
        'model.py:42 in forward (encoder.0)'
    """

    file: str
    """Path of the source file, as Python reports it."""
    line: int
    """Line number, 1-based."""
    function: str = ""
    """Name of the enclosing function."""
    module: str = ""
    """Path of the innermost nn.Module, such as "encoder.layer.0"."""
    code: str = ""
    """The source line itself, stripped."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.function:
            where += f" in {self.function}"
        return where + (f" ({self.module})" if self.module else "")


def parse_stack(stack_trace: str | None, module: str = "") -> Site | None:
    """Return the innermost frame of the user's own code in a stack trace as torch.fx keeps it.

    Frames inside torch itself are passed over unless there is nothing else. None without a frame.

    Example:
        >>> parse_stack('File "a.py", line 3, in f\\n    return x + 1').line
        3
    """
    sites: list[Site] = []
    lines = (stack_trace or "").splitlines()
    for text, after in zip_longest(lines, lines[1:], fillvalue=""):
        if match := _FRAME.match(text):
            code = "" if _FRAME.match(after) else after.strip()
            sites.append(Site(match["file"], int(match["line"]), match["function"], module, code))
    own = [site for site in sites if not site.file.startswith(_TORCH_ROOT)]
    return (own or sites or [None])[-1]


def module_path(meta: dict[str, Any]) -> str:
    """Return the path of the innermost nn.Module that a node belongs to, "" at top level.

    Reads torch.fx's `nn_module_stack`; for a backward node the forward's (`fwd_nn_module_stack`).
    """
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and entry]
    # Dynamo spells the root as L['self'] and attributes as L['self'].layer or ._modules['0'].
    path = re.sub(r"^L\['\w+'\]\.?", "", str(paths[-1])) if paths else ""
    path = re.sub(r"\._modules\['([^']*)'\]|_modules\['([^']*)'\]", r".\1\2", path)
    return re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", path).lstrip(".")


def site_of(meta: dict[str, Any]) -> Site | None:
    """Return the user's place for a graph node's `meta`, or None if capture kept none."""
    return parse_stack(meta.get("stack_trace"), module_path(meta))
