"""The zoo, measured: writes docs/models.md and docs/models.json.

    python -m benchmarks.models [--only NAME] [--no-timing] [--render]

Each model and question (check, time, peak of one contender, train) is a child process of its own.
Every answer is merged into the JSON at once, so an interrupted run loses nothing, and `--only`
replaces the rows of one model. `--render` writes the page anew from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "models.json", DOCS / "models.md"
CONTENDERS = ("eager", "galley", "inductor")
STEPS = 10
LOSS_LIMIT = 1e-3
LIMIT_SECONDS = 900


def main() -> int:
    """Run what was asked for; return 1 if a model is wrong or its child failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one model, by its name in the zoo")
    parser.add_argument("--no-timing", action="store_true", help="correctness and training alone")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON")
    parser.add_argument("--calls", type=int, default=7, help="timed calls of each (default 7)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_CHILDREN[args.child[0]](*args.child[1:])))
        return 0
    from benchmarks import zoo  # after the children, which import it when they need it

    results = json.loads(JSON.read_text("utf-8")) if JSON.exists() else {}
    results = {"header": {}, "models": {}, "training": {}} | results
    chosen = [args.only] if args.only else list(dict.fromkeys([*zoo.FULL, *zoo.TRAINED]))
    unknown = [name for name in chosen if name not in zoo.FULL and name not in zoo.TRAINED]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join([*zoo.FULL, *zoo.TRAINED])}")
    for name in [] if args.render else chosen:
        if name in zoo.FULL:
            row = results["models"].setdefault(name, {})
            questions = [["check", name]]
            if not args.no_timing:
                results["header"] = _header()
                questions += [["time", name, str(args.calls)]]
                questions += [["peak", name, contender] for contender in CONTENDERS]
            for question in questions:
                row |= _ask(*question)
                _write(results)
        if name in zoo.TRAINED:
            results["training"][name] = _ask("train", name)
            _write(results)
    results["header"] = results["header"] or _header()
    _write(results)
    rows = [*results["models"].values(), *results["training"].values()]
    return int(any(not row.get("equal") or row.get("failed") for row in rows))


def _header() -> dict[str, Any]:
    import jax  # here, so that a child pays only for what it uses
    import torch
    import transformers

    return {
        "command": "make models",
        "torch": torch.__version__,
        "jax": jax.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": _cpu(),
    }


def _cpu() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    return found[1] if found else platform.processor()


def _ask(*question: str) -> dict[str, Any]:
    """Return a child's answer, or what is known of its failure."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.models", "--child", *question]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        failure = f"{question[0]} ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        answer, failure = None, f"{question[0]} took more than {LIMIT_SECONDS} s"
    seconds = time.perf_counter() - started
    shown = failure if answer is None else json.dumps(answer)
    print(f"{' '.join(question)}: {seconds:.0f} s {shown}", flush=True)
    if answer is None:
        return {"failed": failure}
    return answer | ({"failed": None} if question[0] == "check" else {})


# What the children do. Each imports torch itself, so that `peak` measures its contender alone.


def _compiled(model: Any, contender: str) -> Callable[..., Any]:
    import torch

    if contender == "eager":
        return model
    ours = {"min_cluster_size": 1, "strict": True, "rng": "native"}
    options = ours if contender == "galley" else None
    return torch.compile(model, backend=contender, options=options)


def _check(name: str) -> dict[str, Any]:
    from benchmarks import judging, zoo

    model, inputs = zoo.FULL[name]()
    wanted = judging.tensors(judging.run(model, inputs))
    seen = judging.Seen()
    compiled = _compiled(model, "galley")
    started = time.perf_counter()
    given = judging.tensors(seen.watch(lambda: judging.run(compiled, inputs)))
    first = time.perf_counter() - started
    verdict = judging.judge(model, inputs, given, wanted)
    return {
        "nodes": seen.nodes,
        "graphs": len(seen.graphs),
        "clusters": seen.clusters,
        "coverage": seen.coverage,
        "native": seen.native(),
        "equal": verdict.equal and bool(seen.clusters) and not seen.unexcused(),
        **vars(verdict),
        "first_call_seconds": round(first, 2),
        "compile_seconds": round(seen.lower_seconds + seen.compile_seconds, 2),
    }


def _time(name: str, calls: str) -> dict[str, Any]:
    from benchmarks import judging, zoo
    from torch_galley.tools.measure import alternate

    model, inputs = zoo.FULL[name]()
    runs = {contender: _compiled(model, contender) for contender in CONTENDERS}
    contenders: dict[str, Callable[[], Any]] = {
        contender: lambda call=call: judging.run(call, inputs) for contender, call in runs.items()
    }
    seconds = alternate(contenders, int(calls))
    return {"ms": {name: round(1e3 * statistics.median(s), 2) for name, s in seconds.items()}}


def _peak(name: str, contender: str) -> dict[str, Any]:
    from benchmarks import judging, zoo

    model, inputs = zoo.FULL[name]()
    call = _compiled(model, contender)
    for _ in range(3):
        judging.run(call, inputs)
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    return {f"peak_mib_{contender}": round(int(found[1]) / 1024) if found else None}


def _train(name: str) -> dict[str, Any]:
    import torch

    from benchmarks import judging, zoo

    wanted = zoo.losses(name, STEPS, lambda model: model)
    seen = judging.Seen()
    given = seen.watch(lambda: zoo.losses(name, STEPS, lambda model: _compiled(model, "galley")))
    apart = _apart(given, wanted)
    passes, judged = apart <= LOSS_LIMIT, {}
    if (
        not passes
    ):  # AdamW divides by the gradient's size, so rounding noise may grow: who is right?
        truth = zoo.losses(name, STEPS, lambda model: model, dtype=torch.float64)
        ours, eager = _apart(given, truth), _apart(wanted, truth)
        judged = {"against_float64": ours, "eager_against_float64": eager}
        passes = ours <= max(LOSS_LIMIT, 2 * eager)
    return {
        "eager": wanted,
        "galley": given,
        "difference": apart,
        **judged,
        "native": seen.native(),
        "clusters": seen.clusters,
        "runs": seen.runs,
        "equal": passes and seen.runs == 2 * STEPS and not seen.unexcused(),
    }


def _apart(given: list[float], wanted: list[float]) -> float:
    return max(abs(g - w) / abs(w) for g, w in zip(given, wanted, strict=True))


_CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "check": _check,
    "time": _time,
    "peak": _peak,
    "train": _train,
}


def _write(results: dict[str, Any]) -> None:
    for path, text in ((JSON, json.dumps(results, indent=1) + "\n"), (PAGE, _page(results))):
        new = path.with_suffix(path.suffix + ".new")
        new.write_text(text, "utf-8")
        os.replace(new, path)  # whole or not at all


def _page(results: dict[str, Any]) -> str:
    """Return the page."""
    facts = ", ".join(f"{key} {value}" for key, value in results["header"].items())
    lines = [
        "# Models",
        "",
        f"Written by `make models` ({facts}).",
        "Random weights, float32, inference, all clusters in XLA (`min_cluster_size=1`); the sizes",
        "stand in `benchmarks/zoo.py`.",
        "",
        "- η: operations in clusters by all operations. Native: what stayed out of XLA, and why.",
        "- Error: the largest difference from float32 eager, relative to the largest value of the",
        "  same result; `64:` ours and then eager's, from float64 eager, where that was asked.",
        "- First call: capture, clustering, lowering, XLA and one run; of it, lowering and XLA.",
        "- ms: medians of alternating calls in one process. Peak: VmHWM of a fresh process each,",
        "  after three calls; it contains the imports, and for the compiled ones the compiler.",
        "",
        "| model | nodes | graphs | clusters | η | native | error | first call, s | of it XLA, s "
        "| eager ms | galley ms | inductor ms | peak MiB eager / galley / inductor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, row) for name, row in results["models"].items()]
    lines += [
        "",
        f"## Training: {STEPS} steps of AdamW",
        "",
        "No dropout, equal seeds; the largest relative difference of a loss from eager's.",
        "",
        "| model | first loss | last loss | difference | native |",
        "|---|---|---|---|---|",
    ]
    for name, row in results["training"].items():
        if row.get("failed"):
            lines.append(f"| {name} | {row['failed']} | | | |")
            continue
        native = "; ".join(row["native"]) or "none"
        first, last = row["galley"][0], row["galley"][-1]
        lines.append(f"| {name} | {first:.4f} | {last:.4f} | {_difference(row)} | {native} |")
    return "\n".join(lines) + "\n"


def _difference(row: dict[str, Any]) -> str:
    text = f"{row['difference']:.1e}"
    if row.get("against_float64") is not None:
        text += f" (64: {row['against_float64']:.1e}, {row['eager_against_float64']:.1e})"
    return text if row["equal"] else text + " WRONG"


def _row(name: str, row: dict[str, Any]) -> str:
    if "nodes" not in row:
        return f"| {name} | {row.get('failed')} |" + " |" * 11
    apart = f"{row['error']:.1e}"
    if row["against_float64"] is not None:
        apart += f" (64: {row['against_float64']:.1e}, {row['eager_against_float64']:.1e})"
    if not row["equal"]:
        apart += " WRONG"
    ms = [str(row.get("ms", {}).get(contender, "")) for contender in CONTENDERS]
    peaks = " / ".join(str(row.get(f"peak_mib_{contender}", "?")) for contender in CONTENDERS)
    cells = [
        name + (f" ({row['failed']})" if row.get("failed") else ""),
        str(row["nodes"]),
        str(row["graphs"]),
        str(row["clusters"]),
        f"{row['coverage']:.1%}",
        "; ".join(row["native"]) or "none",
        apart,
        str(row["first_call_seconds"]),
        str(row["compile_seconds"]),
        *ms,
        peaks,
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
