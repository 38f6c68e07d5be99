"""Folders that a value is saved in: plain text and JSON, written to a temporary name and renamed.

Each kind of value has one file KIND.json, which also lists the other files it needs with their
checksums. It is renamed last, so a folder whose checksums fit is complete. Reading goes through
`Fields`, which names file and field when something is missing or of a wrong type.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch_galley.core.errors import ToolError

FORMAT = 1
"""Number of the file format; a reader refuses any other."""

LARGEST = 1 << 28
"""Bytes that a file may have: what is saved here has far fewer."""

Value = TypeVar("Value")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name in the same folder, then rename it.

    Raises:
        ToolError: it can't be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.chmod(fresh, 0o644)
            os.replace(fresh, path)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ToolError(f"can't write {path}: {error}", hint="name a folder to write in") from error


def read_bytes(path: Path, most: int = LARGEST, *, follow: bool = True) -> bytes:
    """Return what a plain file holds, without waiting for what may never come.

    Args:
        path: the file.
        most: the bytes that it may have.
        follow: whether it may be a link to the file.

    Raises:
        OSError: it can't be opened or read.
        ValueError: it is a pipe or a device, or has more bytes; the text goes on after its name.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is no plain file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"has more than {most} bytes")
    return data


def parse_json(data: bytes, **options: Any) -> Any:
    """Return the data in a JSON file's bytes.

    Args:
        data: the bytes.
        options: what json.loads takes besides, such as parse_constant.

    Raises:
        ValueError: it is no JSON, or nested too deeply; the text goes on after the file's name.
    """
    try:
        return json.loads(data.decode("utf-8"), **options)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None


def write_record(
    folder: str | Path,
    kind: str,
    value: Mapping[str, Any],
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a value's JSON as `folder`/KIND.json, after the other files that belong to it.

    Raises:
        ToolError: a file can't be written.
    """
    target = Path(folder)
    sums = {}
    for name, content in (files or {}).items():
        write_file(target / name, content)
        sums[name] = _sum(content.encode() if isinstance(content, str) else content)
    record = {"galley": kind, "format": FORMAT, "files": sums, "value": dict(value)}
    write_file(target / f"{kind}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return target


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Fields:
    """An object read from a JSON file, which knows its place in it.

    Example:
        >>> Fields(Path("a.json"), "nodes[3].", {"op": 5}).get("op", str)
        Traceback (most recent call last):
        torch_galley.core.errors.ToolError: a.json: nodes[3].op is 5, not a str
    """

    file: Path
    place: str
    """What stands before a field's name: "", "nodes[3]."."""
    data: Any

    def get(self, name: str, kind: type[Value]) -> Value:
        """Return a field of type `kind`.

        Raises:
            ToolError: there is none, or it is of another type.
        """
        if not isinstance(self.data, dict) or name not in self.data:
            raise self.wrong(name, "is missing")
        value = self.data[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self.wrong(name, f"is {_short(value)}, not a {kind.__name__}")
        return value

    def each(self, name: str) -> list[Fields]:
        """Return the items of a list, each with its place.

        Raises:
            ToolError: there is no such list.
        """
        items = self.get(name, list)
        return [Fields(self.file, f"{self.place}{name}[{i}].", x) for i, x in enumerate(items)]

    def inside(self, name: str) -> Fields:
        """Return the object in a field.

        Raises:
            ToolError: there is no such object.
        """
        return Fields(self.file, f"{self.place}{name}.", self.get(name, dict))

    def wrong(self, name: str, problem: str) -> ToolError:
        """Return the error that says what is wrong with a field."""
        field = f"{self.place}{name}"
        return ToolError(f"{self.file}: {field} {problem}", file=str(self.file), field=field)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


@dataclass(frozen=True)
class Record:
    """What `write_record` wrote."""

    folder: Path
    value: Fields
    sums: Mapping[str, Any]

    def bytes(self, name: str) -> bytes:
        """Return the content of one of the value's files.

        Raises:
            ToolError: the file is missing or has changed.
        """
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ToolError(f"can't read {path}: {error.strerror}", file=str(path)) from error
        if self.sums.get(name) != _sum(data):
            raise ToolError(
                f"{path}: content does not fit the checksum in {self.value.file}",
                hint="the folder was changed or written halfway; save it again",
                file=str(path),
                field="files",
            )
        return data

    def text(self, name: str) -> str:
        """Return the content of one of the value's files as text.

        Raises:
            ToolError: the file is missing or has changed.
        """
        return self.bytes(name).decode()


def read_record(folder: str | Path, kind: str) -> Record:
    """Read `folder`/KIND.json.

    Raises:
        ToolError: no such file, no JSON, another kind, or another format.
    """
    path = Path(folder) / f"{kind}.json"
    try:
        data = parse_json(read_bytes(path))
    except OSError as error:
        raise ToolError(
            f"can't read {path}: {error.strerror}",
            hint=f"give the folder that a {kind} value was saved in",
            file=str(path),
        ) from error
    except ValueError as error:
        raise ToolError(f"{path} {error}", file=str(path)) from error
    top = Fields(path, "", data)
    if top.get("galley", str) != kind:
        raise top.wrong("galley", f"is {data['galley']!r}, not {kind!r}")
    if top.get("format", int) != FORMAT:
        raise top.wrong("format", f"is {data['format']}; this version reads {FORMAT}")
    value = Fields(path, "value.", top.get("value", dict))
    return Record(Path(folder), value, top.get("files", dict))
