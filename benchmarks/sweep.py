"""A judgement of every entry of op_db in some columns, kept as JSON and shown as a page.

A task is an entry in a column: a dtype, say. Tasks run in `--shards` workers; one that dies or
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
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ops_page
from tests.arguments import among, positive
from tests.ops import worker
from tests.ops.worker import Task

DOCS = Path(__file__).parents[1] / "docs"
KEPT_EVERY = 20
"""The JSON is written after so many rows."""

Row = dict[str, Any]
_ROW = ("op", "variant", "dtype", "status", "reason")
_WAY_OUT = "mend or delete it, or take another --folder"


@dataclass(frozen=True)
class Sweep:
    """What is judged, and where it is kept."""

    name: str
    """Of the module benchmarks.NAME that runs it, of `make NAME`, NAME.json and NAME.md."""
    columns: Sequence[str]
    page: Callable[[dict[str, Any]], str]
    """Makes the page of what `load` gives."""
    judge: Callable[[Any, str, int | None], Row]
    """Judges an entry in a column by so many samples, in a worker."""
    takes: Callable[[], Callable[[Any, str], bool]]
    """Gives what says whether an entry has a column: a function, so that --help is quick."""

    @property
    def json(self) -> Path:
        """Where the rows are kept."""
        return DOCS / f"{self.name}.json"

    def load(self, file: Path | None = None) -> dict[str, Any]:
        """Return what the JSON holds: a header, and a row for each task.

        Raises:
            ValueError: the file holds something else.
            OSError: it can't be read.
        """
        file = file or self.json
        try:
            found = json.loads(file.read_text("utf-8")) if file.exists() else {}
            results = {"header": {}, "rows": []} | found
            fits = all(isinstance(row[name], str) for row in results["rows"] for name in _ROW)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} has no rows of a sweep: {error}; {_WAY_OUT}") from error
        if not fits:
            raise ValueError(f"{file} has a row that is none of a sweep; {_WAY_OUT}")
        return results

    def child(self, limit: int | None, patience: float) -> worker.Worker:
        """Return a worker that judges by at most so many samples."""
        command = ["-m", f"benchmarks.{self.name}", "--worker", str(limit or 0)]
        return worker.Worker(command, patience)


def main(sweep: Sweep, about: str | None, argv: list[str] | None = None) -> int:
    """Run what was asked for; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog=f"benchmarks.{sweep.name}", description=about)
    columns = tuple(sweep.columns)
    parser.add_argument(
        "--dtypes", type=partial(among, columns), default=columns, help="columns, with commas"
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="these operators")
    parser.add_argument("--limit", type=positive, help="samples of each entry (default all)")
    parser.add_argument("--again", metavar="STATUS", help="run those with this status once more")
    parser.add_argument("--shards", type=positive, default=os.cpu_count(), help="workers at a time")
    parser.add_argument("--patience", type=positive, default=300, help="seconds a task may take")
    parser.add_argument("--folder", type=Path, default=DOCS, help="of the JSON and the page")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker is not None:
        _work(sweep, args.worker or None)
        return 0
    file = args.folder / f"{sweep.name}.json"
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        results = sweep.load(file)
    except (OSError, ValueError) as error:
        parser.error(f"{error}")
    if not args.render:
        done = {(row["op"], row["variant"], row["dtype"]): row for row in results["rows"]}
        chosen = worker.tasks(args.dtypes, args.only, sweep.takes())
        wanted = [task for task in chosen if _due(task, done, args)]
        results["header"] = _header(sweep)
        for number, row in enumerate(_judged(sweep, wanted, args)):
            done[row["op"], row["variant"], row["dtype"]] = row
            print(json.dumps(row), flush=True)
            if number % KEPT_EVERY == 0:
                _keep(file, results, done)
        _keep(file, results, done)
    _write(file.with_suffix(".md"), sweep.page(results))
    return int(any(row["status"] in ops_page.BAD for row in results["rows"]))


def _keep(file: Path, results: dict[str, Any], done: dict[Task, Row]) -> None:
    results["rows"] = [done[key] for key in sorted(done)]
    _write(file, text(results))


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


def _header(sweep: Sweep) -> dict[str, str]:
    import jax  # here, so that --help is quick
    import torch

    return {"command": f"make {sweep.name}", "torch": torch.__version__, "jax": jax.__version__}


def _judged(sweep: Sweep, tasks: list[Task], args: argparse.Namespace) -> Iterator[Row]:
    """Yield the row of each task as it comes, so many at a time as there are shards."""
    waiting = iter(tasks)
    lock, rows = threading.Lock(), queue.SimpleQueue[Row | None]()

    def shard() -> None:
        child = sweep.child(args.limit, args.patience)
        while True:
            with lock:
                task = next(waiting, None)
            if task is None:
                break
            rows.put(asked(child, task))
        child.close()
        rows.put(None)

    for _ in range(args.shards):
        threading.Thread(target=shard, daemon=True).start()
    running = args.shards
    while running:
        row = rows.get()
        if row is None:
            running -= 1
        else:
            yield row


def asked(child: worker.Worker, task: Task) -> Row:
    """Return the row of a task, whose status is "crash" or "timeout" if the worker gave none."""
    found = child.ask(task)
    return _row(task, found, "") if isinstance(found, str) else found


def _work(sweep: Sweep, limit: int | None) -> None:
    """Answer tasks from stdin."""
    from torch_galley.compile.programs import executables  # here: only workers compute

    def row(op: Any, column: str) -> Row:
        try:
            return sweep.judge(op, column, limit)
        except Exception as error:  # op_db's own samples fail
            why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return _row((op.name, op.variant_test_name, column), "skipped", why)
        finally:
            executables().clear()

    worker.answer(row)


def _row(task: Task, status: str, reason: str) -> Row:
    op, variant, column = task
    return {"op": op, "variant": variant, "dtype": column, "status": status, "reason": reason}


def _write(path: Path, content: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(content, "utf-8")
    os.replace(new, path)  # whole or not at all
