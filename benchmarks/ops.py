"""Every operator of torch's op_db in every dtype, judged by eager: docs/ops.md and docs/ops.json.

    python -m benchmarks.ops [--dtypes NAMES] [--only NAME] [--limit N] [--again STATUS] [--render]
                             [--folder FOLDER]

A column is a dtype, or an entry's error inputs. tests.ops.judge says how they are judged, with all
samples or N evenly spread ones, and benchmarks.sweep what can be asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks import checks, ops_page, sweep
from benchmarks.ops_page import DTYPES
from tests.ops import worker
from tests.ops.worker import ERRORS


def _judge(op: Any, column: str, limit: int | None) -> sweep.Row:
    import torch  # here: only workers compute

    from tests.ops.judge import judge, judge_errors

    if column == ERRORS:
        return vars(judge_errors(op))
    first = next(d for d in DTYPES if op.supports_dtype(getattr(torch, d), "cpu"))
    return vars(judge(op, getattr(torch, column), limit, dynamo=column == first))


def _takes() -> Callable[[Any, str], bool]:
    return worker.takes


def _page(results: dict[str, Any]) -> str:
    return ops_page.page(results, checks.load())


SWEEP = sweep.Sweep("ops", (*DTYPES, ERRORS), _page, _judge, _takes)

if __name__ == "__main__":
    sys.exit(sweep.main(SWEEP, __doc__))
