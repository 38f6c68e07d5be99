"""Every operator of torch's op_db in every dtype, judged by eager: docs/ops.md and docs/ops.json.

    python -m benchmarks.ops [--dtypes NAMES] [--only NAME] [--limit N] [--again STATUS] [--render]
                             [--folder FOLDER]

A task is an entry of op_db in a dtype, or an entry's error inputs. tests.ops.judge says how it is
judged, with all samples or N evenly spread ones. Tasks run in `--shards` workers; one that dies or
hangs takes only its task along, and a new one goes on. What is in the JSON is not run again unless
more samples are asked for than it was judged by, so that an interrupted run goes on; `--again
wrong` runs those with that status once more, `--only NAME` those of an operator. A trial that is
no part of the record goes into another folder, `--folder build/ops --only NAME`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import checks, ops_page
from benchmarks.ops_page import DTYPES
from tests.ops import worker
from tests.ops.worker import ERRORS, Task

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "ops.json", DOCS / "ops.md"
KEPT_EVERY = 20
"""The JSON is written after so many rows."""

Row = dict[str, Any]


def main() -> int:
    """Run what was asked for; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.ops", description=__doc__)
    parser.add_argument("--dtypes", default=",".join((*DTYPES, ERRORS)), help="with commas")
    parser.add_argument("--only", metavar="NAME", action="append", help="these operators")
    parser.add_argument("--limit", type=int, help="samples of each entry (default all)")
    parser.add_argument("--again", metavar="STATUS", help="run those with this status once more")
    parser.add_argument("--shards", type=int, default=os.cpu_count(), help="workers at a time")
    parser.add_argument("--patience", type=float, default=300, help="seconds a task may take")
    parser.add_argument("--folder", type=Path, default=DOCS, help="of ops.json and ops.md")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        _work(args.worker or None)
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    file, page = args.folder / JSON.name, args.folder / PAGE.name
    results = load(file)
    if not args.render:
        done = {(row["op"], row["variant"], row["dtype"]): row for row in results["rows"]}
        chosen = worker.tasks(args.dtypes.split(","), args.only)
        wanted = [task for task in chosen if _due(task, done, args)]
        results["header"] = _header()
        for number, row in enumerate(_judged(wanted, args.shards, args.limit, args.patience)):
            done[row["op"], row["variant"], row["dtype"]] = row
            print(json.dumps(row), flush=True)
            if number % KEPT_EVERY == 0:
                _keep(file, results, done)
        _keep(file, results, done)
    _write(page, ops_page.page(results, checks.load()))
    return int(any(row["status"] in ops_page.BAD for row in results["rows"]))


def _keep(file: Path, results: dict[str, Any], done: dict[Task, Row]) -> None:
    results["rows"] = [done[key] for key in sorted(done)]
    _write(file, text(results))


def load(file: Path = JSON) -> dict[str, Any]:
    """Return what the JSON holds: a header, and a row for each task."""
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return {"header": {}, "rows": []} | found


def text(results: dict[str, Any]) -> str:
    """Return the JSON, a row a line."""
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    return f'{{"header": {json.dumps(results["header"])},\n"rows": [\n{rows}\n]}}\n'


def _due(task: Task, done: dict[Task, Row], args: argparse.Namespace) -> bool:
    row = done.get(task)
    if row is None or args.only or row["status"] == args.again:
        return True
    more = args.limit is None or row.get("samples", 0) < args.limit
    return not args.again and more and not row.get("whole", True)


def _header() -> dict[str, str]:
    import jax  # here, so that --help is quick
    import torch

    return {"command": "make ops", "torch": torch.__version__, "jax": jax.__version__}


def _judged(tasks: list[Task], shards: int, limit: int | None, patience: float) -> Iterator[Row]:
    """Yield the row of each task as it comes, `shards` at a time."""
    waiting = iter(tasks)
    lock, rows = threading.Lock(), queue.SimpleQueue[Row | None]()

    def shard() -> None:
        child = child_for(limit, patience)
        while True:
            with lock:
                task = next(waiting, None)
            if task is None:
                break
            rows.put(asked(child, task))
        child.close()
        rows.put(None)

    for _ in range(shards):
        threading.Thread(target=shard, daemon=True).start()
    running = shards
    while running:
        row = rows.get()
        if row is None:
            running -= 1
        else:
            yield row


def child_for(limit: int | None, patience: float) -> worker.Worker:
    """Return a worker that judges by at most so many samples."""
    return worker.Worker(["-m", "benchmarks.ops", "--worker", str(limit or 0)], patience)


def asked(child: worker.Worker, task: Task) -> Row:
    """Return the row of a task, whose status is "crash" or "timeout" if the worker gave none."""
    found = child.ask(task)
    return _row(task, found, "") if isinstance(found, str) else found


def _work(limit: int | None) -> None:
    """Answer tasks from stdin."""
    import torch  # here: only workers compute

    from tests.ops.judge import judge, judge_errors
    from torch_galley.compile.programs import executables

    def row(op: Any, dtype: str) -> Row:
        try:
            if dtype == ERRORS:
                return vars(judge_errors(op))
            first = next(d for d in DTYPES if op.supports_dtype(getattr(torch, d), "cpu"))
            return vars(judge(op, getattr(torch, dtype), limit, dynamo=dtype == first))
        except Exception as error:  # op_db's own samples fail
            why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return _row((op.name, op.variant_test_name, dtype), "skipped", why)
        finally:
            executables().clear()

    worker.answer(row)


def _row(task: Task, status: str, reason: str) -> Row:
    op, variant, dtype = task
    return {"op": op, "variant": variant, "dtype": dtype, "status": status, "reason": reason}


def _write(path: Path, content: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(content, "utf-8")
    os.replace(new, path)  # whole or not at all


if __name__ == "__main__":
    sys.exit(main())
