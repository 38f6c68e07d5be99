"""The page docs/ops.md, made from the rows of docs/ops.json."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.ops.worker import ERRORS

RIGHT = ("lowered", "mixed", "native")
BAD = ("wrong", "error", "crash", "timeout")
SIGN = {"lowered": "●", "mixed": "◐", "native": "○", "skipped": "·"}
"""What stands in the table; for what is bad, the word itself."""
DTYPES = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "complex64")
DTYPES += ("float16", "complex128", "int16", "int8", "uint8")

ABOUT = """\
Every entry of `op_db`, PyTorch's own database of operators, with its own samples, run by eager and
by us. `tests/ops/judge.py` is the judge. Each sample is captured by AOTAutograd directly, and all
it consists of goes to XLA where it can (`min_cluster_size=1`); the first two samples of an entry,
in the first dtype it takes, go through `torch.compile` as well. Where a result differs by more
than a few units in the last place, eager in double precision decides: we are right if we are at
most twice as far from it.

- ● lowered: all samples right, and none with a node outside of XLA.
- ◐ mixed: all samples right, some nodes native.
- ○ native: all samples right, all nodes native. The reasons are at the end of the page.
- wrong: another result than eager's. error: we raised. crash: the process died. timeout: it hung.
- `·`: eager itself takes none of the samples. Empty: the operator does not take the dtype.

Percentages are of all entries that take the dtype, less those marked `·`. An entry counts as right
if it is lowered, mixed or native; as lowered only if it is that. One wrong sample makes an entry
wrong. A result that is a view of an argument is copied behind the operator: alone, it would
compute nothing.
"""


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    rows = [row for row in results["rows"] if row["dtype"] != ERRORS]
    facts = ", ".join(f"{key} {value}" for key, value in results["header"].items())
    lines = ["# Operators", "", f"Written by `make ops` ({facts}).", "", ABOUT]
    for part in (_counts(rows), _errors(results["rows"]), _entries(rows), _native(rows)):
        lines += [*part, ""]
    return "\n".join(lines)


def _dtypes(rows: list[dict[str, Any]]) -> list[str]:
    """Return the dtypes there are, in a fixed order."""
    return sorted({row["dtype"] for row in rows}, key=DTYPES.index)


def _counts(rows: list[dict[str, Any]]) -> Iterator[str]:
    words = ("dtype", "entries", "right", "lowered", "●", "◐", "○", *BAD, "`·`")
    yield f"| {' | '.join(words)} |"
    yield "|---|" + "---:|" * 11
    for dtype in _dtypes(rows):
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        counts = Counter(row["status"] for row in of_dtype)
        judged = len(of_dtype) - counts["skipped"]
        right = sum(counts[status] for status in RIGHT)
        cells = [dtype, judged, _percent(right, judged), _percent(counts["lowered"], judged)]
        cells += [counts[status] for status in (*RIGHT, *BAD, "skipped")]
        yield f"| {' | '.join(map(str, cells))} |"
    cut = [row for row in rows if not row.get("whole", True)]
    yield ""
    yield (
        "All samples of each entry were judged."
        if not cut
        else (
            f"{len(cut)} of these {len(rows)} rows were judged by at most "
            f"{max(row['samples'] for row in cut)} samples each, the others by all."
        )
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _errors(rows: list[dict[str, Any]]) -> Iterator[str]:
    found = [row for row in rows if row["dtype"] == ERRORS]
    total = {key: sum(row.get(key, 0) for row in found) for key in ("traced", "native", "ours")}
    bad = [row for row in found if row["status"] in BAD]
    yield "## Error inputs"
    yield ""
    yield (
        f"`op_db` has inputs that an operator must refuse, for {len(found)} entries. torch's own "
        f"tracing settles {total['traced']} before us: it refuses them, or makes of them what "
        f"eager runs without complaint. A native operator refuses {total['native']} in eager's "
        f"words, and a cluster {total['ours']}, with eager's type of exception and the operator's "
        f"name. {len(bad)} entries do otherwise."
    )
    yield ""
    for row in bad:
        yield f"- {_name(row)}: {row['status']}, {_cell(row['reason'])}"


def _entries(rows: list[dict[str, Any]]) -> Iterator[str]:
    dtypes = _dtypes(rows)
    table: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        table[_name(row)][row["dtype"]] = SIGN.get(row["status"], row["status"])
    yield "## Entries"
    yield ""
    yield f"| entry | {' | '.join(dtypes)} |"
    yield "|---|" + ":-:|" * len(dtypes)
    for name, signs in sorted(table.items()):
        yield f"| `{name}` | {' | '.join(signs.get(dtype, '') for dtype in dtypes)} |"
    wrong = [row for row in rows if row["status"] in BAD]
    if wrong:
        yield ""
        for row in wrong:
            yield f"- {_name(row)}, {row['dtype']}: {row['status']}, {_cell(row['reason'])}"


def _native(rows: list[dict[str, Any]]) -> Iterator[str]:
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row["status"] in ("mixed", "native"):
            for reason in row["reason"].split("; "):
                groups[reason][_name(row)] = None
    yield "## Why native"
    yield ""
    yield "| reason | entries |"
    yield "|---|---|"
    for reason, names in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        yield f"| {_cell(reason)} | {', '.join(names)} |"


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']}.{row['variant']}" if row["variant"] else row["op"]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
