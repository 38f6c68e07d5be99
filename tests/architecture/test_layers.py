"""Imports go left: core < hlo | ops < capture < ... < cli | studio. Found with `ast`, kept here."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = "torch_galley"

ORDER = """core < hlo | ops < capture < cluster < lower < compile < run < pipeline, backend
           < compat, observe < tools < cli | studio"""
"""Left of `<` only. `a, b` may see each other, `a | b` may not."""

CLOSED = {("ops", "hlo"), ("capture", "hlo"), ("cluster", "hlo"), ("lower", "hlo")}
"""Forbidden although it goes left: HLO text is a library of its own, for what comes after XLA."""

STEPS = [step.split() for step in ORDER.replace(",", " , ").replace("|", " | ").split("<")]
RANK = {name: rank for rank, step in enumerate(STEPS) for name in step if name not in ",|"}
APART = {name for step in STEPS if "|" in step for name in step}


def allowed(importer: str, imported: str) -> bool:
    """Whether one part of the package may import another; "" is the package's own __init__."""
    if importer == "__main__":
        return imported in ("", "cli")
    if importer == "":
        return imported not in ("cli", "studio")
    if imported == "":  # the package's __init__ sees nearly all, so only who stands last may use it
        return RANK[importer] >= RANK["tools"]
    if importer == imported:
        return True
    if RANK[importer] == RANK[imported]:
        return importer not in APART
    return RANK[imported] < RANK[importer] and (importer, imported) not in CLOSED


def imported_parts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and part of every import of the package's own modules, wherever it stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            if top == PACKAGE:
                part = rest.split(".")[0]
                yield node.lineno, part if part in RANK else ""


def violations(source: Path) -> list[str]:
    """Return a line for each import under `source` that breaks the order."""
    found = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        inner = path.relative_to(source / PACKAGE)
        importer = "" if inner.name == "__init__.py" and len(inner.parts) == 1 else inner.parts[0]
        importer = importer.removesuffix(".py")
        if importer not in RANK and importer not in ("", "__main__"):
            found.append(f"{inner}: {importer} has no place in the order")
            continue
        for line, imported in imported_parts(ast.parse(path.read_text())):
            if not allowed(importer, imported):
                found.append(f"{inner}:{line}: {importer} imports {imported or PACKAGE}")
    return found


def test_imports_go_left():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line", "verdict"),
    [
        ("core/config.py", "import torch_galley.cluster.dag", "core imports cluster"),
        ("cluster/dag.py", "from torch_galley.run import buffer", "cluster imports run"),
        ("ops/check.py", "from torch_galley import hlo", "ops imports hlo"),
        ("lower/driver.py", "from torch_galley.hlo import parser", "lower imports hlo"),
        ("run/buffer.py", "import torch_galley", "run imports torch_galley"),
        ("__init__.py", "from torch_galley.cli import main", " imports cli"),
        ("pipeline.py", "def f():\n    from torch_galley.tools import x", "pipeline imports tools"),
        ("helpers.py", "", "helpers has no place in the order"),
    ],
)
def test_a_rule_broken_in_a_copy_is_found(tmp_path, file, line, verdict):
    shutil.copytree(SOURCE / PACKAGE, tmp_path / PACKAGE)
    with (tmp_path / PACKAGE / file).open("a") as out:
        out.write(f"\n{line}\n")
    (found,) = violations(tmp_path)
    assert file in found
    assert found.endswith(verdict)


@pytest.mark.parametrize(
    ("importer", "imported", "may"),
    [
        ("backend", "pipeline", True),
        ("backend", "capture", True),
        ("compile", "hlo", True),
        ("hlo", "ops", False),
        ("cli", "studio", False),
        ("cli", "tools", True),
        ("pipeline", "observe", False),
    ],
)
def test_the_order_is_read_as_meant(importer, imported, may):
    assert allowed(importer, imported) is may
