"""decide="measure" on the zoo: is it as fast as the faster of eager and all in XLA?

    python -m benchmarks.measure [--only NAME] [--calls N] [--small] [--inductor] [--render]

Each model is a child process: eager, all in XLA (`decide="size", min_cluster_size=1`) and measured
take turns; with --inductor also inductor, which the measured choice then may take, too. Measured
calls are compared, pair by pair, with those of the faster other: the median ratio and its 95 %
interval, by resampling the pairs. A model passes if the lower end is at most 1.05. Answers are
merged into docs/measure.json at once; models that are there are not run again, unless --only says
so. Run it on a machine that does nothing else. Writes docs/measure.json and docs/measure.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "measure.json", DOCS / "measure.md"
LIMIT = 1.05
LIMIT_SECONDS = 1800


def main() -> int:
    """Run what was asked for; return 1 if a model is slower than it may be, or failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.measure", description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="NAME", help="one model, by its name in the zoo")
    parser.add_argument("--calls", type=int, default=15, help="timed calls of each (default 15)")
    parser.add_argument("--small", action="store_true", help="the small models, and no page")
    parser.add_argument("--inductor", action="store_true", help="let inductor contend")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_child(args.child, args.calls, args.small, args.inductor)))
        return 0
    from benchmarks import zoo  # after the children, which import it when they need it
    from torch_galley.core.machine import machine

    models = zoo.SMALL if args.small else zoo.FULL
    if args.only and args.only not in models:
        parser.error(f"no model {args.only!r}; there are {', '.join(models)}")
    results = json.loads(JSON.read_text("utf-8")) if JSON.exists() and not args.small else {}
    results = {"models": {}} | results | {"machine": machine()}
    for name in [] if args.render else [args.only] if args.only else models:
        if name in results["models"] and not args.only:
            continue
        results["models"][name] = _ask(name, args)
        print(name, json.dumps(results["models"][name]), flush=True)
        if not args.small:
            _write(results)
    if not args.small:
        _write(results)
    return int(any(not row.get("passes") for row in results["models"].values()))


def _ask(name: str, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.measure", "--child", name]
    command += ["--calls", str(args.calls)]
    command += [f"--{flag}" for flag in ("small", "inductor") if getattr(args, flag)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {LIMIT_SECONDS} s"}
    if done.returncode:
        return {"failed": f"ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def _child(name: str, calls: int, small: bool, inductor: bool) -> dict[str, Any]:
    import torch

    from benchmarks import judging, zoo
    from torch_galley.core.events import Decided, Event, GraphBuilt, listen
    from torch_galley.tools.measure import alternate

    model, inputs = (zoo.SMALL if small else zoo.FULL)[name]()
    wanted = judging.tensors(judging.run(model, inputs))
    xla = {"min_cluster_size": 1, "strict": True, "rng": "native"}
    decided: list[Any] = []

    def keep(event: Event) -> None:
        if isinstance(event, Decided | GraphBuilt):  # by timing, or before
            choices = [one.to_json() for one in event.plan.clustered.choices]
            decided.extend(one for one in choices if one["by"] != "undecided")

    stop = listen(keep)
    with tempfile.TemporaryDirectory() as folder:
        measured = xla | {"decide": "measure", "decisions": f"{folder}/decisions.json"}
        measured |= {"native": "inductor"} if inductor else {}
        ways = {
            "measured": torch.compile(model, backend="galley", options=measured),
            "eager": model,
            "xla": torch.compile(model, backend="galley", options=xla),
        }
        if inductor:
            ways["inductor"] = torch.compile(model, backend="inductor")
        given = judging.tensors(judging.run(ways["measured"], inputs))
        again = judging.tensors(judging.run(ways["measured"], inputs))
        verdicts = [judging.judge(model, inputs, one, wanted) for one in (given, again)]
        contenders = {way: lambda c=call: judging.run(c, inputs) for way, call in ways.items()}
        seconds = alternate(contenders, calls)
    stop()
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    best = min((way for way in seconds if way != "measured"), key=medians.__getitem__)
    ratios = [a / b for a, b in zip(seconds["measured"], seconds[best], strict=True)]
    low, middle, high = interval(ratios)
    return {
        "ms": {way: round(1e3 * median, 3) for way, median in medians.items()},
        "best": best,
        "ratio": [round(x, 4) for x in (low, middle, high)],
        "kept": sorted(map(_told, decided)),
        "equal": all(verdict.equal for verdict in verdicts),
        "passes": low <= LIMIT and all(verdict.equal for verdict in verdicts),
    }


def _told(choice: dict[str, Any]) -> str:
    """Return what was decided, and the times it was decided by."""
    times = [f", {way} {1e3 * took:.3g} ms" for way, took in choice["seconds"].items()]
    return f"{choice['name']}: {choice['kept']} ({choice['by']}{''.join(times)})"


def interval(ratios: Sequence[float], times: int = 2000) -> tuple[float, float, float]:
    """Return the ends of a 95 % interval of the median, and the median between them.

    Example: `interval([1.0, 1.1, 0.9])`
    """
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(times))
    return (
        medians[round(0.025 * (times - 1))],
        statistics.median(ratios),
        medians[round(0.975 * (times - 1))],
    )


def _write(results: dict[str, Any]) -> None:
    JSON.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    PAGE.write_text(_page(results), "utf-8")


def _page(results: dict[str, Any]) -> str:
    lines = [
        "# The measured choice",
        "",
        f"Written by `make measure` ({results['machine']}).",
        "",
        'The zoo with `decide="measure"` against the faster of eager and all in XLA: medians of',
        "alternating calls in one process, and the median ratio of pairs with its 95 % interval.",
        "",
        "| model | eager ms | all XLA ms | measured ms | ratio to the faster | kept |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results["models"].items():
        if "failed" in row:
            lines.append(f"| {name} | {row['failed']} | | | | |")
            continue
        low, middle, high = row["ratio"]
        ms, verdict = row["ms"], "" if row["passes"] else " MISSED" if row["equal"] else " WRONG"
        lines.append(
            f"| {name} | {ms['eager']} | {ms['xla']} | {ms['measured']} "
            f"| {middle:.3f} ({low:.3f} to {high:.3f}){verdict} | {'; '.join(row['kept'])} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
