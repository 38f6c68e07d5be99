"""A function or module named on a command line, and what to call it with."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_galley.core.errors import GalleyError, ToolError
from torch_galley.core.site import Site

_FORM = "write path/to/file.py:name or package.module:name"


@dataclass(frozen=True)
class Target:
    """What to call, and with what."""

    function: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def load(text: str) -> Target:
    """Return what "FILE.py:NAME" or "MODULE:NAME" names, with its inputs.

    Inputs are NAME_inputs or example_inputs of the same module: a tuple (or list) of arguments, a
    dict of keyword arguments, one tensor, or a function that returns one of these. Or NAME is a
    function without parameters that returns (function, inputs).

    Example: `load("model.py:Net")`

    Raises:
        ToolError: no such file, module or name; no inputs; or the user's code raises.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise ToolError(f"{text!r} names no function", hint=_FORM)
    module = run_file(Path(place)) if place.endswith(".py") else _module(place)
    found: Any = module
    for part in name.split("."):
        found = _member(found, part, place)
    if inspect.isclass(found):
        found = _called(f"{name}()", found)
    if not callable(found):
        raise ToolError(
            f"{name} in {place} is a {type(found).__name__}",
            hint="name a function, an nn.Module, or a function that returns (function, inputs)",
        )
    for given in (f"{name.rpartition('.')[2]}_inputs", "example_inputs"):
        if hasattr(module, given):
            inputs = getattr(module, given)
            if callable(inputs) and not isinstance(inputs, torch.Tensor):
                inputs = _called(f"{given}()", inputs)
            return _with(found, inputs)
    return _made(found, name, place)


def _made(found: Any, name: str, place: str) -> Target:
    """Call a factory, or take a function that needs no inputs as it is."""
    plain = inspect.isroutine(found)
    needed = _needed(found if plain else getattr(found, "forward", found))
    if needed:
        raise ToolError(
            f"{name} in {place} needs inputs: {', '.join(needed)}",
            hint=f"define {name}_inputs or example_inputs there, a tuple or a function giving one",
        )
    if not plain:
        return Target(found)
    made = _called(f"{name}()", found)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return _with(*made)
    return Target(found)


def _with(function: Any, inputs: Any) -> Target:
    if isinstance(inputs, tuple | list):
        return Target(function, tuple(inputs))
    if isinstance(inputs, Mapping):
        return Target(function, (), dict(inputs))
    return Target(function, (inputs,))


def _needed(function: Any) -> list[str]:
    """Return the names of parameters without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in several]


def run_file(path: Path) -> ModuleType:
    """Run a file of Python, as a module of a name of its own.

    Raises:
        ToolError: there is no such file, or it raises.
    """
    if not path.is_file():
        raise ToolError(f"no such file: {path}", hint=_FORM)
    name = f"galley_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch look modules up by name
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run
    _called(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        known = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise ToolError(f"no module named {name}", hint=_FORM)
    return _called(f"import {name}", lambda: importlib.import_module(name))


def _member(found: Any, name: str, place: str) -> Any:
    if hasattr(found, name):
        return getattr(found, name)
    near = difflib.get_close_matches(name, dir(found), n=1)
    public = [n for n in vars(found) if not n.startswith("_") and callable(getattr(found, n))]
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(public) or 'none'}"
    raise ToolError(f"{place} has no {name}", hint=hint)


def _called(what: str, function: Any) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:  # a file that ends its process has no function to give
        raise raised(what, error) from error


def raised(what: str, error: BaseException) -> GalleyError:
    """Return the error that says that the user's code raised another, with the user's line.

    An error of ours that Dynamo has wrapped comes out as it was.
    """
    inner = getattr(error, "inner_exception", error)
    if isinstance(inner, GalleyError):
        return inner
    told = str(error).strip().splitlines()
    message = f"{what} raised {type(error).__name__}" + (f": {told[0]}" if told else "")
    return ToolError(message, site=_site(error), hint="see that it runs without torch-galley")


def _site(error: BaseException) -> Site | None:
    """Return the innermost line that is neither ours nor a library's."""
    ours = str(Path(__file__).parents[1])
    trace, found = error.__traceback__, None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((ours, "<")) and "site-packages" not in file:
            found = Site(file, trace.tb_lineno, trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found
