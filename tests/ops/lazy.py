"""Judge an operator of op_db on the lazy device: does it give there what eager gives on the CPU?

    python -m tests.ops.lazy --dtypes float32,int64,bool [--only NAME] [--limit N] [--out FILE]

Each task, an entry in a dtype or an entry's error inputs, runs in a worker that may die alone.
Prints what is not right and a count; exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

import torch_galley
from tests.ops.compare import UNWRITTEN, compare, free_indices, judged
from tests.ops.worker import ERRORS, Worker, answer, spread, tasks
from torch_galley.core.errors import GalleyError

PATIENCE = 300
"""Seconds a task may take."""
BAD = ("wrong", "error", "crash", "timeout")
Call = Callable[..., Any]


def judge(op: Any, dtype: torch.dtype, limit: int | None = None) -> tuple[str, str]:
    """Judge an entry by `limit` of its samples, called plainly and, where there is one, in
    place: right, wrong, error, refused (by a named error of ours) or skipped, and what is wrong.
    """
    status = "skipped"
    samples = op.sample_inputs("cpu", dtype, requires_grad=False)
    for number, sample in spread(samples, limit):
        for variant in filter(None, (op.op, op.inplace_variant)):
            call, tensors = function_of(variant, sample)
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
        call, tensors = function_of(op.op, case.sample_input)
        wanted, given = _raised(call, tensors, "cpu"), _raised(call, tensors, "xla")
        if wanted is None:
            continue
        status = "right"
        if not isinstance(given, type(wanted)):
            told = "no error" if given is None else _line(given)
            return "wrong", f"error input {number}: {told}, not {_line(wanted)}"
    return status, ""


def function_of(function: Call, sample: Any) -> tuple[Call, list[torch.Tensor]]:
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

    def eager(given: Sequence[torch.Tensor]) -> list[Any]:
        return _run(call, given, "cpu")[0]

    free = free_indices(op, sample, want, got)
    pointwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
    difference = judged(eager, tensors, want, got, free, pointwise)
    if op.name in UNWRITTEN:  # what an empty tensor's argument holds is as open
        return difference
    written = compare(want_given, got_given, frozenset())
    if written and not difference and len(want) == 1 and want[0] is not None:
        # An argument written in place is the result, whose difference has been judged.
        written = "" if compare(want_given[:1], want, frozenset()) == "" else written
    return difference or (written and f"argument: {written}")


def _run(call: Call, tensors: Sequence[torch.Tensor], device: str) -> tuple[list[Any], list[Any]]:
    """Return the results, and the arguments, which the call may have written; all on the CPU."""
    torch.manual_seed(0)
    with torch.no_grad(), torch_galley.config(rng="native"):
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
    """Answer tasks from stdin."""
    os.environ |= {"GALLEY_DECIDE": "size", "GALLEY_MIN_CLUSTER_SIZE": "1"}
    torch_galley.device()
    warnings.simplefilter("ignore")

    def verdict(op: Any, dtype: str) -> tuple[str, str]:
        try:
            return judge_errors(op) if dtype == ERRORS else judge(op, getattr(torch, dtype), limit)
        except Exception as error:
            return "error", f"the judge: {_line(error)}"

    answer(verdict)


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
    command = ["-m", "tests.ops.lazy", "--worker", str(args.limit or 0)]
    worker, counts = Worker(command, PATIENCE), Counter[tuple[str, str]]()
    out = open(args.out, "w") if args.out else None  # noqa: SIM115  (closed at the end of main)
    for task in tasks(args.dtypes.split(","), args.only):
        found = worker.ask(task)
        status, detail = (found, "") if isinstance(found, str) else found
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
