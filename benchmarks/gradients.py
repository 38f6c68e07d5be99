"""The gradients of torch's op_db, judged by eager: docs/gradients.md and docs/gradients.json.

    python -m benchmarks.gradients [--dtypes COLUMNS] [--only NAME] [--limit N] [--again STATUS]
                                   [--render] [--folder FOLDER]

A column is a dtype, a path and an order: "float32" compiled, "float32 lazy 2nd" the second order
on the lazy device. tests.ops.gradient says how they are judged, benchmarks.sweep what can be asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import gradients_page, sweep
from benchmarks.gradients_page import COLUMNS


def _judge(op: Any, column: str, limit: int | None) -> sweep.Row:
    os.environ["GALLEY_MIN_CLUSTER_SIZE"] = "1"  # on the device; what is compiled is told so
    from tests.ops.gradient import judge  # here: only workers compute

    return vars(judge(op, column, limit))


def _takes() -> Callable[[Any, str], bool]:
    from tests.ops.gradient import takes  # here: it imports torch

    return takes


SWEEP = sweep.Sweep("gradients", COLUMNS, gradients_page.page, _judge, _takes)

if __name__ == "__main__":
    sys.exit(sweep.main(SWEEP, __doc__))
