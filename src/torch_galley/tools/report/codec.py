"""The report's dataclasses as JSON and back, checked: what is read may come from anywhere.

Nodes are a table with one array a column, in which texts are numbers of one list: a graph of ten
thousand nodes repeats a few hundred operators, types, modules and places.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from torch_galley.core.errors import ToolError
from torch_galley.core.reasons import Reason, reason_from_json

LONGEST = 65_536
"""Characters that a text may have."""


def plain(value: Any) -> Any:
    """Return a value of the report as plain data.

    Example:
        >>> plain((1, "a", None))
        [1, 'a', None]
    """
    if isinstance(value, Reason):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def read(kind: Any, data: Any, where: str) -> Any:
    """Return the value of a type that `plain` gave.

    Example:
        >>> read(tuple[int, ...], [1, 2], "here")
        (1, 2)

    Raises:
        ToolError: the data is of another form; the message begins with `where`.
    """
    return _reader(kind)(data, where)


Reader = Callable[[Any, str], Any]


@cache
def _reader(kind: Any) -> Reader:
    """Return what reads a type, made once."""
    if kind is Reason:
        return _reason
    if dataclasses.is_dataclass(kind):
        return _object(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        inner = _reader(next(arg for arg in args if arg is not types.NoneType))
        return lambda data, where: None if data is None else inner(data, where)
    if origin is tuple and args[-1] is Ellipsis:
        each = _reader(args[0])

        def many(data: Any, where: str) -> Any:
            _need(isinstance(data, list), where, "a list", data)
            return tuple([each(item, f"{where}[{n}]") for n, item in enumerate(data)])

        return many
    if origin is tuple:
        readers = [_reader(arg) for arg in args]

        def fixed(data: Any, where: str) -> Any:
            wanted = isinstance(data, list) and len(data) == len(readers)
            _need(wanted, where, f"a list of {len(readers)}", data)
            return tuple(read(item, where) for read, item in zip(readers, data, strict=True))

        return fixed
    return _scalar(kind)


def _scalar(kind: type) -> Reader:
    wanted = (int, float) if kind is float else (kind,)
    named = {int: "a whole number", float: "a number", str: "a text", bool: "yes or no"}[kind]

    def scalar(data: Any, where: str) -> Any:
        right = isinstance(data, wanted) and (kind is bool or not isinstance(data, bool))
        _need(right and not (kind is float and not math.isfinite(data)), where, named, data)
        if isinstance(data, str) and len(data) > LONGEST:
            raise ToolError(f"{where} has {len(data)} characters", hint=f"at most {LONGEST}")
        return data

    return scalar


def _object(kind: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    fields = dataclasses.fields(kind)

    def made(data: Any, where: str) -> Any:
        _need(isinstance(data, dict), where, "an object", data)
        for field in fields:
            _need(field.name in data, where, f"an object with {field.name!r}", data)
        return kind(**{f.name: readers[f.name](data[f.name], f"{where}.{f.name}") for f in fields})

    return made


def _reason(data: Any, where: str) -> Reason:
    _need(isinstance(data, dict), where, "a reason", data)
    try:
        return reason_from_json(data)
    except ValueError as error:
        raise ToolError(f"{where} {error}") from error


def _need(right: bool, where: str, wanted: str, data: Any) -> None:
    if not right:
        shown = repr(data) if isinstance(data, str | int | float | None) else type(data).__name__
        raise ToolError(f"{where} is {shown:.60}, not {wanted}")


def table(rows: tuple[Any, ...], kind: Any) -> dict[str, Any]:
    """Return rows of one dataclass as columns, their texts and objects as numbers of a list."""
    shared: dict[str, int] = {}
    values: list[Any] = []

    def number(value: Any) -> int:
        # By type and text: equal dataclasses have equal representations.
        key = f"{type(value).__name__}{value!r}"
        if key not in shared:
            shared[key] = len(values)
            values.append(plain(value))
        return shared[key]

    columns: dict[str, list[Any]] = {}
    for field in dataclasses.fields(kind):
        column = [getattr(row, field.name) for row in rows]
        by_number = _is_shared(get_type_hints(kind)[field.name])
        columns[field.name] = [number(v) for v in column] if by_number else plain(tuple(column))
    return {"columns": columns, "values": values}


def _is_shared(hint: Any) -> bool:
    """Whether a column holds texts or objects, rather than numbers."""
    return hint is str or get_origin(hint) is types.UnionType


def rows(data: Any, kind: Any, where: str) -> tuple[Any, ...]:
    """Return the rows of what `table` gave.

    Raises:
        ToolError: the data is of another form.
    """
    _need(isinstance(data, Mapping), where, "a table", data)
    columns, values = data.get("columns"), data.get("values")
    _need(isinstance(columns, dict), where, "a table with columns", data)
    _need(isinstance(values, list), where, "a table with values", data)
    hints = get_type_hints(kind)
    found: dict[str, list[Any]] = {}
    for field in dataclasses.fields(kind):
        column, at = columns.get(field.name), f"{where}.{field.name}"
        _need(isinstance(column, list), at, "a column", column)
        reader = _reader(hints[field.name])
        if _is_shared(hints[field.name]):
            known: dict[int, Any] = {}
            for n, number in enumerate(column):
                inside = type(number) is int and 0 <= number < len(values)
                _need(inside, f"{at}[{n}]", "the number of a value", number)
                if number not in known:
                    known[number] = reader(values[number], f"{at}[{n}]")
            found[field.name] = [known[number] for number in column]
        else:
            found[field.name] = [reader(item, f"{at}[{n}]") for n, item in enumerate(column)]
    lengths = {len(column) for column in found.values()}
    _need(len(lengths) == 1, where, "a table of columns of one length", data)
    return tuple(kind(*row) for row in zip(*found.values(), strict=True))
