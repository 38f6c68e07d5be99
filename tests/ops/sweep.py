"""Judge many entries of op_db, each shard in a worker that may die alone.

    python -m tests.ops.sweep --dtypes float32,int64 --ops sum,mean --shards 2 --out verdicts.json

Prints a table and whatever is wrong; exits with 1 if anything is.
"""

from __future__ import annotations

import argparse
import json
import queue
import selectors
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict
from typing import Any

BAD = ("wrong", "error", "crash", "timeout")


class Worker:
    """A child process that judges one task a line; started anew when it died or hung."""

    def __init__(self, limit: int, patience: float) -> None:
        self.limit, self.patience = limit, patience
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str, dtype: str) -> dict[str, Any]:
        """Return the verdict on a task, "crash" or "timeout" if the worker gave none."""
        if self.process is None:
            command = [sys.executable, "-m", "tests.ops.sweep", "--worker", str(self.limit)]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, dtype]) + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answered = selector.select(self.patience)
        line = self.process.stdout.readline() if answered else ""
        if line:
            return json.loads(line)
        status = "crash" if answered else "timeout"
        self.close()
        return {"op": name, "dtype": dtype, "status": status, "detail": "", "reasons": []}

    def close(self) -> None:
        """End the worker."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def work(limit: int) -> None:
    """Answer tasks from stdin, a line each, on stdout."""
    import torch

    from tests.ops.judge import Verdict, entries, judge, label

    torch.set_num_threads(1)
    known = {label(op): op for op in entries()}
    for line in sys.stdin:
        name, dtype = json.loads(line)
        try:
            verdict = judge(known[name], getattr(torch, dtype), limit)
        except Exception as error:
            detail = f"judge failed: {type(error).__name__}: {str(error)[:300]}"
            verdict = Verdict(name, dtype, "uncaptured", detail=detail)
        print(json.dumps(asdict(verdict)), flush=True)


def sweep(
    tasks: list[tuple[str, str]], shards: int, limit: int, patience: float
) -> list[dict[str, Any]]:
    """Judge all tasks, `shards` at a time."""
    waiting: queue.Queue[tuple[str, str]] = queue.Queue()
    for task in tasks:
        waiting.put(task)
    verdicts: list[dict[str, Any]] = []

    def shard() -> None:
        worker = Worker(limit, patience)
        try:
            while True:
                verdicts.append(worker.ask(*waiting.get_nowait()))
        except queue.Empty:
            worker.close()

    threads = [threading.Thread(target=shard) for _ in range(shards)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(verdicts, key=lambda verdict: (verdict["op"], verdict["dtype"]))


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", help="names, with commas; all if left out")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--limit", type=int, default=8, help="samples of each entry")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--patience", type=float, default=120, help="seconds an entry may take")
    parser.add_argument("--out", help="a JSON file for the verdicts")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0
    import torch

    from tests.ops.judge import entries, label

    names = options.ops.split(",") if options.ops else None
    dtypes = options.dtypes.split(",")
    tasks = [
        (label(op), dtype)
        for op in entries(names)
        for dtype in dtypes
        if op.supports_dtype(getattr(torch, dtype), "cpu")
    ]
    verdicts = sweep(tasks, options.shards, options.limit, options.patience)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(verdicts, file, indent=1)
    bad = [verdict for verdict in verdicts if verdict["status"] in BAD]
    for verdict in bad:
        print(f"{verdict['status']}: {verdict['op']} {verdict['dtype']}: {verdict['detail']}")
    for dtype in dtypes:
        counts = Counter(v["status"] for v in verdicts if v["dtype"] == dtype)
        print(f"{dtype}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
