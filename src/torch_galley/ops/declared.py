"""What an operator of a user's is called and takes, checked before torch is told of it.

torch notes a namespace before it looks at the name, and withdraws an operator before it reads its
new schema: what it refuses afterwards leaves it broken, in `torch.compile` too.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

import torch

from torch_galley.core.errors import ConfigError
from torch_galley.ops.schema import is_torchs

_ATTRIBUTES = re.compile(r"(Optional\[)?(str|bool|(List\[)?(int|float|number)\]?)\]?")
"""Types of a schema that a handler of XLA's FFI gets as attributes: XLA knows no others."""


def check_name(name: Any) -> None:
    """Raise ConfigError unless an operator of a user's can be called so.

    Example:
        >>> check_name("mylib::scaled")
    """
    if not isinstance(name, str):
        said = f"{name!r}, a {type(name).__name__}, can't be the name of an operator"
        raise ConfigError(said, hint="write 'mylib::name'")
    fault = _fault(name)
    if fault:
        said = f"{name!r} can't be the name of an operator of yours: {fault}"
        raise ConfigError(said, hint="write 'mylib::name'")


def _fault(name: str) -> str:
    parts = name.split("::")
    if len(parts) != 2:
        return f"it has {len(parts) - 1} '::', not one"
    for part, what in zip(parts, ("namespace", "name"), strict=True):
        if not (part.isascii() and part.isidentifier()) or part.startswith("__"):
            overloads = ", and there are no overloads" if "." in part else ""
            return f"its {what} {part!r} is no name in Python and C{overloads}"
        if keyword.iskeyword(part):
            return f"{part!r} is a word of Python's"
    namespace, own = parts
    if namespace == "torch" or is_torchs(namespace) or _is_pythons(namespace):
        return f"torch, or torch-galley, has the namespace {namespace!r}"
    if own in ("name", "_dir"):  # attributes of every namespace
        return f"torch.ops.{namespace}.{own} means something else"
    return ""


def _is_pythons(namespace: str) -> bool:
    """Whether `torch.ops` has something under this name that is no namespace."""
    found = vars(torch.ops).get(namespace)
    held = found is not None and not isinstance(found, torch._ops._OpNamespace)
    return held or hasattr(type(torch.ops), namespace)


def check_function(name: str, what: str, function: Any, hint: str) -> None:
    """Raise ConfigError unless something can be called."""
    if not callable(function):
        kind = f"{function!r}, a {type(function).__name__}"
        raise ConfigError(f"{what} of {name} is {kind}, not a function", hint=hint)


def schema_of(name: str, schema: Any, functions: list[Callable[..., Any]], handler: bool) -> str:
    """Return the schema that is given, or that a function's annotations say, if torch takes it.

    Args:
        name: what the operator is to be called.
        schema: "(Tensor x, float by) -> Tensor"; None: the annotations say it.
        functions: those that may be annotated, in order of preference.
        handler: it is for a handler of XLA's FFI, which can be given less.

    Raises:
        ConfigError: there is none, or none that an operator called from XLA could have.
    """
    given = _annotated(name, functions) if schema is None else schema
    like = "write schema='(Tensor x, float by) -> Tensor', without the operator's name"
    if not isinstance(given, str):
        said = f"schema= of {name} is {given!r}, a {type(given).__name__}, not a string"
        raise ConfigError(said, hint=like)
    given = given.strip()
    if not given.startswith("("):
        raise ConfigError(f"schema= of {name} is {given!r}, which has no '(' first", hint=like)
    try:
        parsed = torch._C.parse_schema(name + given)
    except RuntimeError as error:
        told = str(error).strip().splitlines()[0]
        raise ConfigError(f"torch can't read {name}{given}: {told}", hint=like) from error
    for kind, items in (("argument", parsed.arguments), ("result", parsed.returns)):
        if any(item.alias_info is not None for item in items):
            raise ConfigError(
                f"{name}{given} writes or returns the memory of its arguments: one {kind} "
                "is marked with (a)",
                hint="XLA has functions only: return new tensors, and leave out the marks",
            )
    returns = [str(result.type) for result in parsed.returns]
    if not returns or set(returns) - {"Tensor", "List[Tensor]"}:
        raise ConfigError(
            f"{name}{given} returns {' and '.join(returns) or 'nothing'}, and XLA has tensors only",
            hint="return a Tensor, or several: '-> (Tensor, Tensor)'",
        )
    if handler:
        _check_handlers(name + given, parsed)
    return given


def _annotated(name: str, functions: list[Callable[..., Any]]) -> str:
    said = ""
    for function in functions:
        try:
            return torch.library.infer_schema(function, mutates_args=())
        except (AttributeError, TypeError, ValueError) as error:  # the first: it is made in C
            said = said or str(error).strip().splitlines()[0]
    raise ConfigError(
        f"{name} needs a schema: {said}",
        hint="annotate the function (x: torch.Tensor, by: float) -> torch.Tensor, or give "
        "schema='(Tensor x, float by) -> Tensor'",
    )


def _check_handlers(told: str, parsed: Any) -> None:
    """Raise ConfigError unless a handler of XLA's FFI can be given what a schema says."""
    for argument in parsed.arguments:
        kind = str(argument.real_type)
        if kind in ("Tensor", "List[Tensor]") or _ATTRIBUTES.fullmatch(kind):
            continue
        if "Tensor" in kind:
            raise ConfigError(
                f"{argument.name} of {told} may be None, and a handler of XLA's FFI gets "
                "its buffers by their order: those after it would move up",
                hint="take a Tensor, and a bool that says whether it counts",
            )
        raise ConfigError(
            f"{argument.name} of {told} is of type {kind}, and a handler of XLA's FFI "
            "has no such attributes",
            hint="take int, float, bool, Scalar or str, or a list of int, float or Scalar",
        )
