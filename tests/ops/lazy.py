"""Judge an operator of op_db on the lazy device: does it give there what eager gives on the CPU?

    python -m tests.ops.lazy --dtypes float32,int64,bool [--only NAME] [--limit N] [--out FILE]

Each task, an entry in a dtype or an entry's error inputs, runs in a worker that may die alone.
Prints what is not right and a count; exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_galley
from tests.ops.judge import _as_near, _free, compare, entries
from torch_galley.core.errors import GalleyError

ERRORS = "errors"
"""Stands in a dtype's place for an entry's error inputs."""
BAD = ("wrong", "error", "crash", "timeout")
UNSPECIFIED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNSPECIFIED |= {"new_empty_strided"}
"""Entries whose values eager leaves open."""
TASKS_A_WORKER = 150
"""A worker is renewed after so many, since torch and XLA keep memory."""
Call = Callable[..., Any]


def judge(op: Any, dtype: torch.dtype, limit: int | None = None) -> tuple[str, str]:
    """Judge an entry by its first `limit` samples, called plainly and, where there is one, in
    place: right, wrong, error, refused (by a named error of ours) or skipped, and what is wrong.
    """
    status = "skipped"
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for number, sample in enumerate(islice(samples, limit)):
        for variant in filter(None, (op.op, op.inplace_variant)):
            call, tensors = _prepared(variant, sample)
            try:
                expected = _run(call, tensors, "cpu")
            except Exception:
                continue  # eager doesn't take it either
            try:
                actual = _run(call, tensors, "xla")
            except GalleyError as error:
                return "refused", f"sample {number}: {_line(error)}"
            except Exception as error:
                return "error", f"sample {number}: {_line(error)}"
            status = "right"
            difference = _difference(op, sample, call, tensors, expected, actual)
            if difference:
                return "wrong", f"sample {number}: {difference}"
    return status, ""


def judge_errors(op: Any) -> tuple[str, str]:
    """Judge an entry by its error inputs: right if we raise eager's type of exception."""
    status = "skipped"
    for number, case in enumerate(op.error_inputs("cpu")):
        call, tensors = _prepared(op.op, case.sample_input)
        wanted, given = _raised(call, tensors, "cpu"), _raised(call, tensors, "xla")
        if wanted is None:
            continue
        status = "right"
        if not isinstance(given, type(wanted)):
            told = "no error" if given is None else _line(given)
            return "wrong", f"error input {number}: {told}, not {_line(wanted)}"
    return status, ""


def _prepared(function: Call, sample: Any) -> tuple[Call, list[torch.Tensor]]:
    """Return a function of a device and of a sample's tensors, and these."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(device: str, *given: torch.Tensor) -> Any:
        filled = [
            torch.device(device) if leaf in ("cpu", torch.device("cpu")) else leaf
            for leaf in (None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        ]
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        source, args, kwargs = pytree.tree_unflatten(filled, spec)
        return function(source, *args, **kwargs)

    return call, [leaves[i] for i in places]


def _difference(op: Any, sample: Any, call: Call, tensors: Any, expected: Any, actual: Any) -> str:
    """Return what is wrong in words, looking at the results, then at the arguments."""
    (want, want_given), (got, got_given) = expected, actual
    if op.name in UNSPECIFIED:
        return "" if [x.shape for x in want] == [x.shape for x in got] else "other shapes"
    difference = compare(want, got, _free(op, sample, want, got))
    if difference and _as_near(lambda *given: call("cpu", *given), tensors, want, got):
        difference = ""
    written = compare(want_given, got_given, frozenset())
    if written and not difference and len(want) == 1 and want[0] is not None:
        # An argument written in place is the result, whose difference has been judged.
        written = "" if compare(want_given[:1], want, frozenset()) == "" else written
    return difference or (written and f"argument: {written}")


def _run(call: Call, tensors: Sequence[torch.Tensor], device: str) -> tuple[list[Any], list[Any]]:
    """Return the results, and the arguments, which the call may have written; all on the CPU."""
    torch.manual_seed(0)
    with torch.no_grad():
        given = [tensor.detach().clone().to(device) for tensor in tensors]
        results = pytree.tree_leaves(call(device, *given))
        both = (results, given)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), both)


def _raised(call: Call, tensors: Sequence[torch.Tensor], device: str) -> BaseException | None:
    try:
        _run(call, tensors, device)
    except Exception as error:
        return error
    return None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _work(limit: int | None) -> None:
    """Answer tasks from stdin, a line each, on stdout."""
    torch.set_num_threads(1)
    os.environ |= {"GALLEY_DECIDE": "size", "GALLEY_MIN_CLUSTER_SIZE": "1"}
    torch_galley.device()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what an operator prints is no answer
    known = {(op.name, op.variant_test_name): op for op in entries()}
    for line in sys.stdin:
        name, variant, dtype = json.loads(line)
        op = known[name, variant]
        try:
            answer = (
                judge_errors(op) if dtype == ERRORS else judge(op, getattr(torch, dtype), limit)
            )
        except Exception as error:
            answer = "error", f"the judge: {_line(error)}"
        print(json.dumps(answer), file=answers, flush=True)


class _Worker:
    """A child that judges one task a line; started anew when it died or hung."""

    def __init__(self, limit: int | None) -> None:
        self.command = [sys.executable, "-m", "tests.ops.lazy", "--worker", str(limit or 0)]
        self.process: subprocess.Popen[str] | None = None
        self.asked = 0

    def ask(self, task: tuple[str, str, str]) -> tuple[str, str]:
        """Return the verdict, "crash" or "timeout" if there came none."""
        self.asked += 1
        if self.process is not None and self.asked % TASKS_A_WORKER == 0:
            self._end()
        if self.process is None:
            pipe, silent = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, stderr=silent, text=True
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(task), file=self.process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answered = selector.select(300)
        line = self.process.stdout.readline() if answered else ""
        if line:
            return tuple(json.loads(line))
        self._end()
        return ("crash" if answered else "timeout"), ""

    def _end(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None


def _tasks(dtypes: Sequence[str], only: Sequence[str] | None) -> Iterator[tuple[str, str, str]]:
    for dtype in dtypes:
        for op in entries(only):
            if dtype == ERRORS:
                if op.error_inputs_func is not None:
                    yield op.name, op.variant_test_name, dtype
            elif op.supports_dtype(getattr(torch, dtype), "cpu"):
                yield op.name, op.variant_test_name, dtype


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(prog="tests.ops.lazy", description=__doc__)
    parser.add_argument("--dtypes", default=f"float32,int64,bool,{ERRORS}", help="with commas")
    parser.add_argument("--only", metavar="NAME", action="append", help="these operators")
    parser.add_argument("--limit", type=int, help="samples of each entry (default all)")
    parser.add_argument("--out", help="a file for the verdicts, a JSON line each")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        _work(args.worker or None)
        return 0
    worker, counts = _Worker(args.limit), Counter[tuple[str, str]]()
    out = open(args.out, "w") if args.out else None  # noqa: SIM115  (closed at the end of main)
    for task in _tasks(args.dtypes.split(","), args.only):
        status, detail = worker.ask(task)
        counts[task[2], status] += 1
        if status not in ("right", "skipped"):
            print(f"{status}: {'.'.join(filter(None, task[:2]))} {task[2]}: {detail}", flush=True)
        if out:
            print(json.dumps([*task, status, detail]), file=out, flush=True)
    for dtype in args.dtypes.split(","):
        print(f"{dtype}: " + ", ".join(f"{n} {s}" for (d, s), n in counts.items() if d == dtype))
    return int(any(status in BAD for _, status in counts))


if __name__ == "__main__":
    sys.exit(main())
