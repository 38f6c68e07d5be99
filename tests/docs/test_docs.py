"""The examples in docstrings and pages run, and the tables say what the code says."""

import dataclasses
import doctest
import importlib
import re
from pathlib import Path

import pytest

from torch_galley.cli.main import VERBS
from torch_galley.core.config import Config

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torch_galley"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]
FENCES = [
    (f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}", match[1])
    for page in PAGES
    for text in [page.read_text("utf-8")]
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("place", "code"), FENCES, ids=[place for place, _ in FENCES])
def test_fence(place, code, monkeypatch, forgets_torch_xla):
    for field in dataclasses.fields(Config):  # as a reader has it, not as the tests do
        monkeypatch.delenv(f"GALLEY_{field.name.upper()}", raising=False)
    exec(compile(code, place, "exec"), {"__name__": "__main__"})


def test_there_is_something_to_run():
    assert len(MODULES) >= 10
    assert len(FENCES) >= 3


def test_settings_page_lists_every_setting():
    rows = re.findall(
        r"^\| `(.*?)` \| `(.*?)` \| `(.*?)` \| (.*) \|$", page("docs/settings.md"), re.M
    )
    assert rows == [
        (f.name, f"GALLEY_{f.name.upper()}", repr(f.default), f.metadata["doc"])
        for f in dataclasses.fields(Config)
    ]


def test_readme_lists_every_verb():
    rows = re.findall(r"^\| `galley (\w+).*?` \| (.*?)(?:;.*)? \|$", page("README.md"), re.M)
    assert dict(rows) == VERBS


def test_layout_lists_every_folder():
    named = set(re.findall(r"^\| `(\w+)(?:/|\.py)`", page("docs/layout.md"), re.M))
    folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert folders <= named


def test_layout_names_entries_that_are_there():
    rows = re.findall(r"^\| `(\w+)/` \|.*\| `(\w+)\.(\w+)` \|$", page("docs/layout.md"), re.M)
    assert len(rows) >= 9
    for folder, module, entry in rows:
        if entry != "py":
            assert hasattr(importlib.import_module(f"torch_galley.{folder}.{module}"), entry)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")
