"""The bundle: a folder of named blocks of JSON, written at once, read with suspicion.

    NAME/
        manifest.json       format, tool, versions, time, and each block's size and checksum
        BLOCK.json.gz       one a block: UTF-8 JSON, compressed

A tool that has more to say adds blocks, and leaves those that it does not know as they are. A
folder is written under another name and renamed, so a bundle is there in full or not at all.
Bundles come from other people: what is read is bounded, and nothing outside the folder is opened.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from torch_galley.core.errors import ToolError
from torch_galley.core.store import Fields, parse_json, read_bytes, write_file

FORMAT = "galley-bundle/1"
LARGEST = 64 << 20
"""Bytes of a block's JSON, and of the manifest's."""
MOST = 1000
"""Blocks of a bundle."""

_MANIFEST = "manifest.json"
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,63}")


@dataclass(frozen=True)
class Bundle:
    """Blocks by name, each plain data.

    Example: `Bundle.load("run").blocks["overview"]`
    """

    blocks: Mapping[str, Any]
    made: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    """When it was first written."""
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())
    """Of torch_galley and of what it stands on, when it was first written."""

    def text(self) -> str:
        """Return a line a block: name and size of its JSON."""
        sizes = {name: len(_packed(block)) for name, block in self.blocks.items()}
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"{FORMAT}, made {self.made} by {versions}"]
        return "\n".join(lines + [f"  {name}: {size:,} bytes" for name, size in sizes.items()])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        about = {"format": FORMAT, "made": self.made, "versions": dict(self.versions)}
        return about | {"blocks": dict(self.blocks)}

    def save(self, folder: str | Path) -> Path:
        """Write the bundle; one that is there is replaced.

        Raises:
            ToolError: a block has no name of lower-case letters, or is too large; the folder can't
                be written, or something else is there.
        """
        return _write(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """Read a bundle, all of it.

        Raises:
            ToolError: no such folder, or it is broken, truncated, foreign or too large; the
                message names file and field.
        """
        return _read(Path(folder))


def is_bundle(path: str | Path) -> bool:
    """Whether a path is a folder with a bundle's manifest."""
    return (Path(path) / _MANIFEST).is_file()


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch-galley", "torch", "jax", "jaxlib"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _packed(block: Any) -> bytes:
    # As ASCII: a name may be half of a surrogate pair, which has no other encoding.
    return json.dumps(block, allow_nan=False, separators=(",", ":")).encode()


def _write(bundle: Bundle, folder: Path) -> Path:
    if folder.exists() and not is_bundle(folder) and not _is_empty(folder):
        raise ToolError(f"{folder} is there, and no bundle", hint="name a new folder")
    listed, files = [], {}
    for name, block in bundle.blocks.items():
        if not _NAME.fullmatch(name):
            raise ToolError(f"a block can't be named {name!r}", hint="use a-z, 0-9, _ and .")
        raw = _packed(block)
        if len(raw) > LARGEST:
            raise ToolError(f"block {name} has {len(raw)} bytes", hint=f"at most {LARGEST}")
        files[f"{name}.json.gz"] = gzip.compress(raw, mtime=0)  # equal blocks, equal files
        listed.append({"name": name, "bytes": len(raw), "sha256": _sum(raw)})
    manifest = {
        "format": FORMAT,
        "made": bundle.made,
        "versions": dict(bundle.versions),
        "blocks": listed,
    }
    files[_MANIFEST] = (json.dumps(manifest, indent=1) + "\n").encode()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, data in files.items():
                write_file(fresh / name, data)
            fresh.chmod(0o755)
            _put(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise ToolError(
            f"can't write {folder}: {error.strerror or error}", hint="name a folder to write in"
        ) from error
    return folder


def _put(fresh: Path, folder: Path) -> None:
    """Rename a folder to where another one, or nothing, is."""
    if not folder.exists():
        fresh.rename(folder)
        return
    # A folder can't be renamed over one with files in it. In between there is none for a moment.
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    folder.rename(old / folder.name)
    try:
        fresh.rename(folder)
    except OSError:
        (old / folder.name).rename(folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(folder: Path) -> Bundle:
    if not folder.is_dir():
        raise ToolError(f"{folder} is no folder", hint="give the folder of a bundle")
    path = folder / _MANIFEST
    top = Fields(path, "", _parsed(path, _bytes(path, LARGEST)))
    found = top.get("format", str)
    if found != FORMAT:
        raise top.wrong("format", f"is {found!r:.40}; this version reads {FORMAT!r}")
    items = top.each("blocks")
    if len(items) > MOST:
        raise top.wrong("blocks", f"lists {len(items)}; at most {MOST}")
    blocks = {}
    for item in items:
        name = item.get("name", str)
        if not _NAME.fullmatch(name) or name in blocks:
            raise item.wrong("name", f"is {name!r:.80}, no name of a block, or not the first")
        size = item.get("bytes", int)
        if not 0 <= size <= LARGEST:
            raise item.wrong("bytes", f"is {size}; at most {LARGEST}")
        blocks[name] = _block(folder / f"{name}.json.gz", size, item.get("sha256", str))
    versions = {str(k): str(v)[:40] for k, v in top.get("versions", dict).items()}
    return Bundle(blocks, top.get("made", str)[:40], versions)


def _block(path: Path, size: int, checksum: str) -> Any:
    stored = _bytes(path, LARGEST)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(stored)) as file:
            raw = file.read(size + 1)  # no more than promised, whatever it would unpack to
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _broken(path, f"can't be unpacked: {error}") from error
    if len(raw) != size:
        more = "more" if len(raw) > size else f"{len(raw)}"
        raise _broken(path, f"holds {more} bytes, {_MANIFEST} says {size}")
    if _sum(raw) != checksum:
        raise _broken(path, f"does not fit the checksum in {_MANIFEST}")
    return _parsed(path, raw)


def _broken(path: Path, problem: str) -> ToolError:
    hint = "the bundle was changed or copied halfway; write it again"
    return ToolError(f"{path} {problem}", hint=hint, file=str(path))


def _bytes(path: Path, most: int) -> bytes:
    """Return what a plain file holds; links are not followed."""
    try:
        return read_bytes(path, most, follow=False)
    except ValueError as error:
        raise _broken(path, str(error)) from error
    except OSError as error:
        link = path.is_symlink()
        problem = "is a link, which is not followed" if link else f"can't be read: {error.strerror}"
        raise _broken(path, problem) from error


def _parsed(path: Path, data: bytes) -> Any:
    try:
        return parse_json(data, parse_constant=_no_number)
    except ValueError as error:
        raise _broken(path, str(error)) from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")
