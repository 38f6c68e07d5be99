"""Bundles: what is written is read, and what is broken or foreign is refused by name."""

import dataclasses
import gzip
import hashlib
import json
import os

import pytest

from torch_galley.core.errors import ToolError
from torch_galley.observe.bundle import Bundle, is_bundle


@pytest.fixture
def folder(tmp_path):
    return Bundle({"overview": {"a": [1, "ä"]}, "hlo.0": [None]}).save(tmp_path / "run")


def manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replace(folder, data, **changes):
    """Put other bytes where block "overview" is, with what the manifest says of them."""
    raw = json.dumps(data).encode() if not isinstance(data, bytes) else data
    (folder / "overview.json.gz").write_bytes(gzip.compress(raw))
    entry = {"name": "overview", "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest(folder, blocks=[entry | changes])


def test_read_is_what_was_written(folder):
    found = Bundle.load(folder)
    assert found.blocks == {"overview": {"a": [1, "ä"]}, "hlo.0": [None]}
    assert "torch" in found.versions
    assert "overview" in found.text()
    assert found.to_json()["format"] == "galley-bundle/1"
    assert sorted(os.listdir(folder.parent)) == ["run"]  # nothing temporary is left


def test_blocks_are_added_and_others_stay(folder):
    found = Bundle.load(folder)
    dataclasses.replace(found, blocks={**found.blocks, "time": {}}).save(folder)
    assert list(Bundle.load(folder).blocks) == ["overview", "hlo.0", "time"]
    assert Bundle.load(folder).made == found.made
    assert sorted(os.listdir(folder.parent)) == ["run"]


def test_equal_blocks_are_equal_files(folder, tmp_path):
    other = Bundle(Bundle.load(folder).blocks).save(tmp_path / "other")
    for name in ("overview.json.gz", "hlo.0.json.gz"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


def cut(folder):
    path = folder / "overview.json.gz"
    path.write_bytes(path.read_bytes()[:-9])


def garbage(folder):
    (folder / "overview.json.gz").write_bytes(b"not gzip")


def missing(folder):
    (folder / "overview.json.gz").unlink()


def link(folder):
    secret = folder.parent / "secret"
    secret.write_text("{}")
    missing(folder)
    (folder / "overview.json.gz").symlink_to(secret)


def pipe(folder):
    missing(folder)
    os.mkfifo(folder / "overview.json.gz")


def bomb(folder):
    replace(folder, b" " * (1 << 20), bytes=100)


def deep(folder):
    replace(folder, b"[" * 100_000)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "can't be unpacked"),
        (garbage, "can't be unpacked"),
        (missing, "can't be read: No such file"),
        (link, "is a link, which is not followed"),
        (pipe, "no plain file"),
        (bomb, "holds more bytes, manifest.json says 100"),
        (deep, "nested too deeply"),
        (lambda f: replace(f, {}, sha256="0"), "does not fit the checksum"),
        (lambda f: replace(f, b"[NaN]"), "NaN is no number"),
        (lambda f: replace(f, b"\xff"), "no JSON"),
        (lambda f: replace(f, {}, bytes=1 << 40), "blocks[0].bytes is 1099511627776"),
        (lambda f: replace(f, {}, name="../secret"), "blocks[0].name is '../secret'"),
        (lambda f: replace(f, {}, name="/etc/passwd"), "blocks[0].name is"),
        (lambda f: manifest(f, format="galley-bundle/9"), "format is 'galley-bundle/9'"),
        (lambda f: manifest(f, blocks="no"), "blocks is 'no', not a list"),
        (lambda f: manifest(f, blocks=[{}] * 2000), "blocks lists 2000"),
        (lambda f: (f / "manifest.json").write_text("{"), "no JSON"),
        (lambda f: (f / "manifest.json").write_text("[]"), "format is missing"),
        (lambda f: (f / "manifest.json").unlink(), "can't be read"),
    ],
)
def test_what_is_wrong_is_named(folder, spoil, said):
    spoil(folder)
    with pytest.raises(ToolError) as raised:
        Bundle.load(folder)
    assert said in str(raised.value)


def test_no_folder(tmp_path):
    with pytest.raises(ToolError, match="is no folder"):
        Bundle.load(tmp_path / "none")


def test_what_else_is_there_stays(tmp_path):
    (tmp_path / "thesis.tex").write_text("\\end")
    with pytest.raises(ToolError, match="is there, and no bundle"):
        Bundle({}).save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "\\end"
    assert not is_bundle(tmp_path)


@pytest.mark.parametrize("name", ["", "A", "../a", "a/b", "-a", "a" * 70])
def test_names_of_blocks(tmp_path, name):
    with pytest.raises(ToolError, match="can't be named"):
        Bundle({name: 1}).save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_are_finite(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Bundle({"a": float("nan")}).save(tmp_path / "run")
