"""Random programs on both paths against eager; what differs is made small and kept.

    python -m tests.fuzz.run [--count N] [--paths compile,lazy] [--seed S] [--folder build/fuzz]

Program i of seed S is the same on every run. Each runs in a child process, so that one that dies
or hangs is a finding too. What was done is in the folder and not done again: `--again` forgets it.
Exits with 1 if there is a difference without an explanation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from tests.arguments import among, natural, positive
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink
from tests.ops.worker import Worker

PATHS = ("compile", "lazy")
PATIENCE = 120
"""Seconds that a program may take."""
Row = dict[str, Any]
_ROW = {"number": int, "kind": str, "explained": str, "bad": bool}
"""What is read of a row, and of which type it is."""


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; return 1 if anything differs without an explanation."""
    parser = argparse.ArgumentParser(prog="tests.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=positive, default=200, help="programs in each path")
    parser.add_argument(
        "--paths", type=partial(among, PATHS), default=PATHS, help="compile, lazy, with a comma"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=natural, default=0, help="the first program's number")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="of what is found")
    parser.add_argument("--again", action="store_true", help="forget what was done")
    parser.add_argument("--large", action="store_true", help="leave findings as large as they are")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        _work()
        return 0
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        known = {path: _known(args.folder / _file(path, args), args.again) for path in args.paths}
    except (OSError, ValueError) as error:
        parser.error(f"{error}")
    return max([_path(path, args, rows) for path, rows in known.items()])


def _file(path: str, args: argparse.Namespace) -> str:
    return f"{path}-{args.seed}.jsonl"


def _known(file: Path, again: bool) -> list[Row]:
    """Return the rows of what was done, none if it is to be forgotten.

    Raises:
        ValueError: a line is no row.
        OSError: it can't be read, or forgotten.
    """
    if again:
        file.unlink(missing_ok=True)
    lines = file.read_text("utf-8", "replace").splitlines() if file.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            fits = all(isinstance(row[name], kind) for name, kind in _ROW.items())
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits:
            raise ValueError(f"{file}:{number} is no row of a program; --again forgets the file")
        rows.append(row)
    return rows


def _path(path: str, args: argparse.Namespace, rows: list[Row]) -> int:
    done = {row["number"] for row in rows}
    child = Worker(["-m", "tests.fuzz.run", "--worker"], PATIENCE, renewed_after=400)
    began = time.monotonic()
    with (args.folder / _file(path, args)).open("a") as out:
        for number in range(args.start, args.start + args.count):
            if number in done:
                continue
            row = _asked(child, {"seed": f"{args.seed}-{number}", "path": path})
            row["number"] = number
            if row["bad"]:
                _tell(row, child, path, args)
            rows.append(row)
            print(json.dumps(row), file=out, flush=True)
            if len(rows) % 100 == 0:
                speed = (len(rows) - len(done)) / (time.monotonic() - began)
                print(f"{path}: {len(rows)}, {speed:.1f}/s", flush=True)
    child.close()
    return _summary(path, rows)


def _asked(child: Worker, what: Row) -> Row:
    found = child.ask(what)
    if isinstance(found, str):  # it died, or hung
        return {"kind": found, "detail": "", "explained": "", "bad": True, "program": ""}
    return found


def _tell(row: Row, child: Worker, path: str, args: argparse.Namespace) -> None:
    """Make a finding small, print it, and keep it as a script."""
    if not row["program"]:
        found = child.ask({"seed": f"{args.seed}-{row['number']}", "path": ""})
        if isinstance(found, str):  # making it is what kills: eager's own
            row |= {"kind": f"{found} in eager", "explained": "eager's own", "bad": False}
            return
        row |= {"program": found["program"], "refused": found["refused"]}
    program = Program.from_json(row["program"])

    def same(smaller: Program) -> bool:
        what = {"program": smaller.to_json(), "path": path, "refused": row["refused"]}
        found = _asked(child, what)
        return found["bad"] and found["kind"] == row["kind"]

    if not args.large and row["kind"] != "timeout":  # each try would take as long
        program = shrink(program, same)
    name = f"{path}-{args.seed}-{row['number']}.py"
    (args.folder / name).write_text(f"# {row['kind']}: {row['detail']}\n{program.script(path)}")
    row["small"] = program.to_json()
    print(f"{name}: {row['kind']}: {row['detail'][:200]}\n{program.source()}", flush=True)


def _summary(path: str, rows: list[Row]) -> int:
    bad = [row for row in rows if row["bad"]]
    print(f"{path}: {len(rows)} programs, {len(bad)} unexplained differences")
    counts = Counter((row["explained"], row["kind"]) for row in rows if not row["bad"])
    for (explained, kind), count in sorted(counts.items()):
        print(f"  {count:6} {f'{kind}: {explained}' if kind else 'equal'}".rstrip(": "))
    for kind, count in sorted(Counter(row["kind"] for row in bad).items()):
        print(f"  {count:6} {kind}: UNEXPLAINED")
    return int(bool(bad))


def _work() -> None:
    """Answer programs, or seeds of programs, from stdin."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import torch  # here: only workers compute

    from tests.fuzz.generator import generate
    from tests.fuzz.judge import judge

    torch.set_num_threads(1)
    for line in sys.stdin:
        what = json.loads(line)
        refused = what.get("refused", False)
        if "seed" in what:
            program, refused = generate(what["seed"])
        else:
            program = Program.from_json(what["program"])
        row: Row = {"refused": refused, "bad": False, "program": program.to_json()}
        if what["path"]:
            verdict = judge(program, what["path"], refused)
            row |= vars(verdict) | {"bad": verdict.bad}
            row |= {} if verdict.bad else {"program": ""}
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main())
