"""Tasks over op_db, each done by a child process that may die or hang alone."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

ERRORS = "error inputs"
"""Stands in a dtype's place for an entry's error inputs."""
TASKS_A_WORKER = 150
"""A worker is renewed after so many, since torch and XLA keep memory."""
Task = tuple[str, str, str]
"""An operator, its variant, and a column: a dtype, or ERRORS."""


def takes(op: Any, dtype: str) -> bool:
    """Whether an entry takes a dtype, or has error inputs."""
    import torch  # here, as below: only what computes pays for it

    if dtype == ERRORS:
        return op.error_inputs_func is not None
    return op.supports_dtype(getattr(torch, dtype), "cpu")


def tasks(
    columns: Iterable[str],
    only: Sequence[str] | None = None,
    takes: Callable[[Any, str], bool] = takes,
) -> Iterator[Task]:
    """Yield the tasks in some columns, of all operators or of those with some names that have it.

    A column is a dtype or ERRORS, unless `takes` says what others mean.
    """
    from tests.ops.judge import entries

    for column in columns:
        for op in entries(only):
            if takes(op, column):
                yield op.name, op.variant_test_name, column


def spread(samples: Iterable[Any], limit: int | None) -> list[tuple[int, Any]]:
    """Return at most `limit` samples with their numbers, evenly spread: op_db's neighbours are
    much alike.

    Example:
        >>> spread("abcdefg", 3), spread("ab", 3)
        ([(0, 'a'), (3, 'd'), (6, 'g')], [(0, 'a'), (1, 'b')])
    """
    every = list(enumerate(samples))
    if limit is None or len(every) <= limit:
        return every
    return [every[i * (len(every) - 1) // max(limit - 1, 1)] for i in range(limit)]


class Worker:
    """A child that runs `command`, which calls `answer`; started anew when it died or hung."""

    def __init__(
        self, command: Sequence[str], patience: float, renewed_after: int = TASKS_A_WORKER
    ) -> None:
        self.command, self.patience = [sys.executable, *command], patience
        self.renewed_after = renewed_after
        self.process: subprocess.Popen[str] | None = None
        self.asked = 0

    def ask(self, task: Any) -> Any:
        """Return the answer to a task (plain data); "crash" or "timeout" if there came none."""
        if self.process is None or self.asked == self.renewed_after:
            self.close()
            self.asked = 0
            pipe, silent = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, stderr=silent, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.asked += 1
        print(json.dumps(task), file=self.process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answered = selector.select(self.patience)
        line = self.process.stdout.readline() if answered else ""
        if line:
            return json.loads(line)
        self.close()
        return "crash" if answered else "timeout"

    def close(self) -> None:
        """End the child."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def answer(judge: Callable[[Any, str], Any]) -> None:
    """Answer tasks from stdin, a line each, on stdout, with what `judge(entry, dtype)` returns."""
    import torch

    from tests.ops.judge import entries

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what an operator prints is no answer
    known = {(op.name, op.variant_test_name): op for op in entries()}
    for line in sys.stdin:
        name, variant, dtype = json.loads(line)
        print(json.dumps(judge(known[name, variant], dtype)), file=answers, flush=True)
