"""`galley run SCRIPT [ARGS...]`: a torch_xla script, unchanged, on torch-galley."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from torch_galley.compat.install import install
from torch_galley.core.errors import GalleyError

NAME = "run"

_OURS = str(Path(__file__).resolve().parents[1])


def add_parser(subparsers: Any) -> None:
    """Describe the verb to argparse."""
    parser = subparsers.add_parser(NAME, help="run a torch_xla script unchanged")
    parser.add_argument("script", help="the Python file to run as __main__")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the script; 0 if it ends well, 1 if it raises, 2 if we can't do what it asks."""
    if not Path(args.script).is_file():
        print(f"galley run: no such file: {args.script}", file=sys.stderr)
        return 2
    install()
    sys.argv = [args.script, *args.args]
    sys.path[0] = str(Path(args.script).resolve().parent)
    try:
        runpy.run_path(args.script, run_name="__main__")
    except GalleyError as error:
        place = _place(error)
        print(f"galley: {error}" + (f"\n  at {place}" if place else ""), file=sys.stderr)
        return 2
    except Exception as error:
        _show(error)
        return 1
    return 0


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback from the script on."""
    frames = traceback.extract_tb(error.__traceback__)
    runner = [i for i, f in enumerate(frames) if f.filename.startswith((_OURS, "<frozen runpy"))]
    first = next((i for i in range(len(frames)) if i not in runner), 0)
    return list(frames[first:])


def _place(error: GalleyError) -> str:
    if error.site is not None:
        return ""  # in the message already
    own = [f for f in _frames(error) if not f.filename.startswith(_OURS)]
    own = [f for f in own if "site-packages" not in f.filename]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _show(error: Exception) -> None:
    lines = traceback.format_list(_frames(error))
    lines += traceback.format_exception_only(error)
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(lines), end="", file=sys.stderr)
