"""What checking indices costs: operations with the checks and without, in turn in one process.

    python -m benchmarks.checks [--rounds N] [--write]

Each round times a few calls with `check_indices` and as many without; the figures are medians over
the rounds, in milliseconds. `--write` puts them into docs/checks.json, from which `make ops` or
`python -m benchmarks.ops --render` makes a part of docs/ops.md. To be run on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.overhead import in_turn, own_code

JSON = Path(__file__).parents[1] / "docs" / "checks.json"
CALLS = 3

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def main() -> int:
    """Measure, print a table, and write it where that is asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.checks", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds (default 30)")
    parser.add_argument("--write", action="store_true", help="write docs/checks.json")
    args = parser.parse_args()
    rows = []
    print(f"{'operation':<52} {'with ms':>9} {'without ms':>10} {'cost':>8}")
    for name, function, tensors in _cases():
        row = {"operation": name} | _measured(function, tensors, args.rounds)
        rows.append(row)
        print(f"{name:<52} {row['with']:9.3f} {row['without']:10.3f} {cost(row):>8}", flush=True)
    if args.write:
        text = ",\n".join(json.dumps(row) for row in rows)
        JSON.write_text(f'{{"rounds": {args.rounds}, "rows": [\n{text}\n]}}\n', "utf-8")
    return 0


def cost(row: dict[str, Any]) -> str:
    """Return what the checks add, in percent.

    Example: `cost({"with": 1.02, "without": 1.0})` is "+2.0 %".
    """
    return f"{100 * (row['with'] / row['without'] - 1):+.1f} %"


def load() -> dict[str, Any]:
    """Return what `--write` left."""
    return json.loads(JSON.read_text("utf-8")) if JSON.exists() else {"rounds": 0, "rows": []}


def _cases() -> list[Case]:
    import torch  # here, so that --help is quick
    import torch.nn.functional as F

    torch.manual_seed(0)
    tokens, logits = torch.randint(50257, (1024,)), torch.randn(1024, 50257)
    nodes, edges = torch.randn(100_000, 64), torch.randint(100_000, (1_000_000,))
    whole = torch.randint(1, 1000, (1_000_000,))
    return [
        ("embedding, 1024 of 50257 x 768", F.embedding, (tokens, torch.randn(50257, 768))),
        ("gather, 1024 of 1024 x 50257", torch.gather, (logits, 1, tokens[:, None])),
        ("index_select, 1000000 of 100000 x 64", torch.index_select, (nodes, 0, edges)),
        ("cross_entropy, 1024 x 50257", F.cross_entropy, (logits, tokens)),
        ("index_add, 1000000 to 100000", torch.index_add, (nodes[:, 0], 0, edges, whole.float())),
        ("integer division, 1000000", torch.floor_divide, (edges, whole)),
    ]


def _measured(
    function: Callable[..., Any], tensors: tuple[Any, ...], rounds: int
) -> dict[str, float]:
    import torch

    calls = {}
    for name, checked in (("with", True), ("without", False)):
        options = {"check_indices": checked, "min_cluster_size": 1}
        compiled = torch.compile(own_code(function, name), backend="galley", options=options)
        assert torch.equal(compiled(*tensors), compiled(*tensors))
        calls[name] = compiled
    assert torch.equal(calls["with"](*tensors), calls["without"](*tensors))
    seconds = in_turn(calls, tensors, rounds, CALLS, time.perf_counter)
    return {name: round(1e3 * statistics.median(taken), 4) for name, taken in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
