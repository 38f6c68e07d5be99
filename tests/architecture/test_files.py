"""House rules that can be read off the files: sizes, names, exports, anchors, local imports."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torch_galley"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_500_lines():
    long = [shown(path) for path in SOURCES if len(path.read_text("utf-8").splitlines()) > 500]
    assert long == []


def test_no_file_is_a_drawer():
    """But for torch_xla's own torch_xla.utils.utils, under whose name programs look."""
    theirs = PACKAGE / "compat" / "path"
    drawers = [p for p in SOURCES if p.stem in ("utils", "common", "helpers")]
    assert [shown(p) for p in drawers if not p.is_relative_to(theirs)] == []


def test_every_module_says_what_it_is():
    assert [
        shown(p) for p in SOURCES if ast.get_docstring(ast.parse(p.read_text("utf-8"))) is None
    ] == []


def exports(path: Path) -> list[str] | None:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def test_exports_are_sorted():
    found = {path: exports(path) for path in SOURCES}
    assert found[PACKAGE / "__init__.py"]
    unsorted = [shown(path) for path, names in found.items() if names and names != sorted(names)]
    assert unsorted == []


def test_no_export_hides_a_folder():
    """`from x import lower` as a function in x's __init__ would shadow the folder x/lower."""
    for path in SOURCES:
        if path.name != "__init__.py":
            continue
        folders = {p.name for p in path.parent.iterdir() if (p / "__init__.py").exists()}
        package = ".".join(path.parent.relative_to(ROOT / "src").parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module != package:
                bound = {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound = {node.name}
            else:
                continue
            assert not bound & folders, f"{shown(path)}:{node.lineno}"


def error_classes() -> list[str]:
    tree = ast.parse((PACKAGE / "core" / "errors.py").read_text("utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def test_every_error_has_its_anchor():
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "errors.md").read_text("utf-8"), re.M)
    assert headings == error_classes()


def test_every_error_is_raised_in_a_test():
    text = "".join(path.read_text("utf-8") for path in TESTS)
    raised = set(re.findall(r"raises\(\s*(?:[\w.]*errors\.)?(\w+Error)\b", text))
    assert set(error_classes()) - {"GalleyError"} - raised == set()


def test_no_path_of_one_machine():
    machine = re.compile("|".join("/" + folder for folder in (r"work/", r"home/\w", r"opt/\w")))
    files = [*SOURCES, *TESTS, *PAGES, *(ROOT / "docs").rglob("*.json")]
    files += [ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run")]
    assert [shown(path) for path in files if machine.search(path.read_text("utf-8"))] == []


def test_imports_inside_functions_say_why():
    """Allowed with a comment on the line or right above the run of imports."""
    silent = []
    for path in SOURCES:
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    above = node.lineno - 2
                    while lines[above].strip().startswith(("import ", "from ")):
                        above -= 1
                    own = "".join(lines[node.lineno - 1 : node.end_lineno])
                    if "#" not in own and "#" not in "".join(lines[above : node.lineno - 1]):
                        silent.append(f"{shown(path)}:{node.lineno}")
    assert silent == []
