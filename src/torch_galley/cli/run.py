"""`galley run SCRIPT [ARGS...]`: a torch_xla script, unchanged, on torch-galley."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from torch_galley.compat.install import install
from torch_galley.core.errors import GalleyError, ToolError
from torch_galley.core.site import Site

_OURS = str(Path(__file__).resolve().parents[1])


def add_parser(subparsers: Any) -> None:
    """Describe the verb to argparse."""
    parser = subparsers.add_parser("run", help="run a torch_xla script unchanged")
    parser.add_argument("script", help="the Python file to run as __main__")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")


def run(args: argparse.Namespace) -> int:
    """Run the script; 0 if it ends well, 1 if it raises.

    Raises:
        ToolError: there is no such file.
        GalleyError: what the script asks for can't be done, with the script's line.
    """
    if not Path(args.script).is_file():
        raise ToolError(f"no such file: {args.script}", hint="give the path of a Python script")
    install()
    sys.argv = [args.script, *args.args]
    sys.path[0] = str(Path(args.script).resolve().parent)
    try:
        runpy.run_path(args.script, run_name="__main__")
    except GalleyError as error:
        error.site = error.site or _place(error)
        raise
    except Exception as error:
        inner = getattr(error, "inner_exception", None)  # Dynamo wraps what a backend raises
        if isinstance(inner, GalleyError):
            inner.site = inner.site or _place(error)
            raise inner from error
        _show(error)
        return 1
    return 0


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback from the script on."""
    frames = traceback.extract_tb(error.__traceback__)
    runner = [i for i, f in enumerate(frames) if f.filename.startswith((_OURS, "<frozen runpy"))]
    first = next((i for i in range(len(frames)) if i not in runner), 0)
    return list(frames[first:])


def _place(error: Exception) -> Site | None:
    """Return the script's own innermost line, or that of what it calls."""
    own = [f for f in _frames(error) if not f.filename.startswith(_OURS)]
    own = [f for f in own if "site-packages" not in f.filename]
    return Site(own[-1].filename, own[-1].lineno or 0, own[-1].name) if own else None


def _show(error: Exception) -> None:
    lines = traceback.format_list(_frames(error))
    lines += traceback.format_exception_only(error)
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(lines), end="", file=sys.stderr)
