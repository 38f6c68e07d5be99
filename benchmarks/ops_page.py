"""The page docs/ops.md, made from the rows of docs/ops.json."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.checks import cost
from tests.ops.worker import ERRORS

RIGHT = ("lowered", "mixed", "native")
"""Right, and how much of it ran in XLA; a column that doesn't ask for that has "right" alone."""
BAD = ("wrong", "error", "crash", "timeout")
SIGN = {"right": "●", "lowered": "●", "mixed": "◐", "native": "○", "skipped": "·"}
"""What stands in the table; for what is bad, the word itself."""
DTYPES = ("float32", "float64", "int64", "int32", "bool", "bfloat16", "complex64")
DTYPES += ("float16", "complex128", "int16", "int8", "uint8")

Row = dict[str, Any]

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

RULES = """\
## Rules

What the verdicts above allow, and a user should know:

- Equal elements count in the order of their places in `topk`, `kthvalue`, `median` and `nanmedian`,
  where torch promises none. `sort` is always stable; `mode` gives the last place, as eager does.
- `empty` and its kin, and what `resize` adds, hold zeros; in eager, whatever was there.
- Repeated indices: of several writes to one place (`scatter`, `index_put`, `index_copy`) the last
  one stays, as in eager on one thread. Sums over them have an order of their own.
- An index out of range raises, and so do an integer division by zero and a singular matrix, after
  the cluster has run and with the user's line: XLA alone would clamp or wrap without a word.
  `check_indices` ([settings](settings.md)) switches that off; `make checks` measures what it costs.
- float16 and bfloat16 compute in float32 and round once, as eager's vectorised loops do. Eager's
  scalar loop, for the end of a row and what has gaps, rounds `add`, `sub` and `rsub` with `alpha`
  after each step: eager itself then differs by a unit in the last place, by where an element lies.
- Signs of zero and infinity: `neg` of a complex number turns the sign of each part, as eager's
  scalar loop does (its vectorised one gives 0 for 0). An infinity beside a NaN has no sign in C;
  that of a complex sine is positive, as in glibc. Of equal zeros, `scatter_reduce` with `amax` or
  `amin` keeps either sign.
- Random numbers: this page is of `rng="native"`, where torch's own operators draw eager's numbers
  outside of XLA. By default XLA draws others of the same distributions, from a seed that each call
  takes from torch's generator ([decision 0007](decisions/0007-random-numbers.md)).
- Singular vectors and eigenvectors are computed natively, as their signs are LAPACK's own.
"""


def page(results: dict[str, Any], costs: dict[str, Any]) -> str:
    """Return the page, from what `Sweep.load` and `checks.load` give."""
    rows = [row for row in results["rows"] if row["dtype"] != ERRORS]
    lines = ["# Operators", "", written(results), "", ABOUT]
    for part in (
        counts(rows, DTYPES),
        RULES.splitlines(),
        _costs(costs),
        _errors(results["rows"]),
        entries(rows, DTYPES),
        native(rows),
    ):
        if found := list(part):
            lines += [*found, ""]
    return "\n".join(lines)


def written(results: dict[str, Any]) -> str:
    """Return the sentence that says what wrote a page."""
    facts = dict(results["header"])
    command = facts.pop("command", "nothing")
    return f"Written by `{command}` ({', '.join(f'{key} {facts[key]}' for key in facts)})."


def _found(rows: list[Row], columns: Sequence[str]) -> list[str]:
    """Return the columns that have rows."""
    found = {row["dtype"] for row in rows}
    return [column for column in columns if column in found]


def counts(rows: list[Row], columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the totals, a row a column of the large table."""
    words = ("column", "entries", "right", "lowered", "●", "◐", "○", *BAD, "`·`")
    yield f"| {' | '.join(words)} |"
    yield "|---|" + "---:|" * 11
    for column in _found(rows, columns):
        of_column = [row for row in rows if row["dtype"] == column]
        count = Counter(row["status"] for row in of_column)
        judged = len(of_column) - count["skipped"]
        right = sum(count[status] for status in (*RIGHT, "right"))
        lowered = "" if count["right"] else _percent(count["lowered"], judged)
        cells = [column, judged, _percent(right, judged), lowered]
        cells += [count["lowered"] + count["right"]]
        cells += [count[status] for status in ("mixed", "native", *BAD, "skipped")]
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


def _costs(costs: dict[str, Any]) -> Iterator[str]:
    if costs["rows"]:
        yield "## What the checks cost"
        yield ""
        yield (
            f"By `make checks`: medians of {costs['rounds']} rounds in milliseconds, with "
            "`check_indices` and without, in turn in one process."
        )
        yield ""
        yield "| operation | with | without | cost |"
        yield "|---|---:|---:|---:|"
    for row in costs["rows"]:
        cells = (row["operation"], f"{row['with']:.3f}", f"{row['without']:.3f}", cost(row))
        yield f"| {' | '.join(cells)} |"


def _errors(rows: list[Row]) -> Iterator[str]:
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


def entries(rows: list[Row], columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the large table, and what is wrong in it."""
    columns = _found(rows, columns)
    table: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        table[_name(row)][row["dtype"]] = SIGN.get(row["status"], row["status"])
    yield "## Entries"
    yield ""
    yield f"| entry | {' | '.join(columns)} |"
    yield "|---|" + ":-:|" * len(columns)
    for name, signs in sorted(table.items()):
        yield f"| `{name}` | {' | '.join(signs.get(column, '') for column in columns)} |"
    wrong = [row for row in rows if row["status"] in BAD]
    if wrong:
        yield ""
        for row in wrong:
            yield f"- {_name(row)}, {row['dtype']}: {row['status']}, {_cell(row['reason'])}"


def native(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the reasons why something stayed native."""
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


def _name(row: Row) -> str:
    return f"{row['op']}.{row['variant']}" if row["variant"] else row["op"]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")
