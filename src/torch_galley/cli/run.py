"""`galley run SCRIPT [ARGS...]`: a torch_xla script, unchanged, on torch-galley."""

from __future__ import annotations

import argparse
import builtins
import io
import os
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from torch_galley.compat.finder import install
from torch_galley.core.errors import GalleyError, ToolError
from torch_galley.core.site import Site

_OURS = str(Path(__file__).resolve().parents[1])


def add_parser(subparsers: Any) -> None:
    """Describe the verb to argparse."""
    parser = subparsers.add_parser("run", help="run a torch_xla script unchanged")
    parser.add_argument("script", help="the Python file to run as __main__")
    parser.add_argument("args", nargs="*", help="its own arguments")


passes_on = True
"""What follows the script is its own, options and "--" too: argparse must not see it."""


def run(args: argparse.Namespace) -> int:
    """Run the script; 0 if it ends well, 1 if it raises.

    Raises:
        ToolError: there is no such script.
        GalleyError: what the script asks for can't be done, with the script's line.
    """
    path = _find(args.script)
    main = _as_python_does(path, [args.script, *args.args])
    try:
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except GalleyError as error:
        error.site = error.site or _place(error)
        raise
    except Exception as error:
        inner = getattr(error, "inner_exception", None)  # Dynamo wraps what a backend raises
        if isinstance(inner, GalleyError):
            inner.site = inner.site or _place(error)
            raise inner from error
        # The script's hook, if it has set one; Python's own shows causes and groups as usual.
        sys.excepthook(type(error), error, _from_script(error))
        return 1
    return 0


def _find(script: str) -> Path:
    """Return the absolute path of what is to be run: a file, a pipe, or a folder's __main__.py."""
    path = Path(os.path.abspath(script))
    if path.is_dir():
        path = path / "__main__.py"
    if not path.exists():
        inside = "a folder without __main__.py" if path.name == "__main__.py" else "no such file"
        raise ToolError(f"{inside}: {script}", hint="give the path of a Python script")
    return path


def _as_python_does(path: Path, argv: list[str]) -> ModuleType:
    """Make the process look as under `python script`; return the module __main__.

    __main__ is replaced for good: multiprocessing, pickle and what runs at exit look there.
    """
    install()
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = ModuleType("__main__")
    main.__file__ = str(path)
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _from_script(error: BaseException) -> TracebackType | None:
    """Return the error's traceback from the script on, without our frames; None if it has none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.__traceback__ = trace
    return trace


def _place(error: BaseException) -> Site | None:
    """Return the script's own innermost line, or that of what it calls."""
    place, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        theirs = not code.co_filename.startswith((_OURS, "<frozen"))
        if theirs and "site-packages" not in code.co_filename:
            place = Site(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return place
