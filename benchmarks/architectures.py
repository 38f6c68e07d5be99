"""Architectures of transformers, chosen by a rule: writes docs/architectures.md and .json.

    python -m benchmarks.architectures [--first N] [--only NAME] [--again STATUS] [--render]

The rule: all model types that transformers' AutoModel knows, every fifth of the alphabet first
(benchmarks.shrinking.names), of these the first N. Each is shrunk by rules on its configuration's
names and given inputs by the names of its arguments (benchmarks.shrinking). Eager runs first: what
it can't build or run so, or where its result is not finite, is "not ours". Then the same model is
compiled with every cluster in XLA and compared.

Each is a child process with a limit of processor time. What is in the JSON is not run again, so
that an interrupted run goes on; `--again differs` runs those with that status once more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
JSON, PAGE = DOCS / "architectures.json", DOCS / "architectures.md"
LIMIT_SECONDS = 120
"""Processor time for one architecture, so that a busy machine changes no verdict."""
HANGING_SECONDS = 1200
"""Time by the clock after which a child that waits for something is ended."""
PRELOADED = ("benchmarks.judging", "benchmarks.shrinking", "torch._dynamo.backends.common")
PRELOADED += ("functorch.compile", "torch_galley.pipeline", "torch_galley.ops.aten")
"""What every child needs; they are forked off a process that has it loaded and started nothing."""
STATUSES = ("equal", "differs", "not ours", "error", "timed out")


def main() -> int:
    """Run what was asked for; return 1 if an architecture is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.architectures", description=__doc__)
    parser.add_argument("--first", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--only", metavar="NAME", action="append", help="these model types")
    parser.add_argument("--again", choices=STATUSES, help="run those with this status once more")
    parser.add_argument("--render", action="store_true", help="write the page from the JSON")
    args = parser.parse_args()
    from benchmarks import shrinking  # here, so that --help is quick

    results: dict[str, Any] = json.loads(JSON.read_text("utf-8")) if JSON.exists() else {}
    done = results.setdefault("architectures", {})
    chosen = args.only or shrinking.names()[: args.first]
    if not args.only:
        wanted = {name for name, row in done.items() if row["status"] == args.again}
        chosen = [name for name in chosen if name not in done or name in wanted]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    for name in [] if args.render else chosen:
        row = _in_child(context, name)
        done[name] = row
        print(name, json.dumps(row), flush=True)
        results["header"] = _header()
        _write(results)
    _write(results)
    return int(any(row["status"] not in ("equal", "not ours") for row in done.values()))


def _header() -> dict[str, str]:
    import jax  # here, so that --help is quick
    import torch
    import transformers

    return {
        "command": "make architectures",
        "torch": torch.__version__,
        "jax": jax.__version__,
        "transformers": transformers.__version__,
    }


def _in_child(context: Any, name: str) -> dict[str, Any]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(name, theirs))
    process.start()
    theirs.close()
    row: dict[str, Any] = {"status": "timed out"}
    try:
        if ours.poll(HANGING_SECONDS):
            row = ours.recv()
    except EOFError:
        process.join()
        if process.exitcode != -signal.SIGXCPU:
            row = {"status": "error", "why": f"the process died, exit code {process.exitcode}"}
    process.join(5)
    process.kill()
    process.join()
    return row


def _child(name: str, pipe: Any) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, most))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        row = _judged(name)
    except Exception as error:
        row = {"status": "error", "why": _line(error)}
    pipe.send(row | {"seconds": round(time.process_time(), 1)})


def _judged(name: str) -> dict[str, Any]:
    """Return the row of one architecture."""
    import torch  # here: only children compute

    from benchmarks import judging
    from torch_galley.core.events import Warned, listen

    found = _runs_in_eager(name)
    if isinstance(found, str):
        return {"status": "not ours", "why": found}
    level, model, inputs, wanted = found
    seen, warned = judging.Seen(), []
    listen(lambda event: warned.append(event.message) if isinstance(event, Warned) else None)
    options = {"min_cluster_size": 1, "strict": True, "rng": "native"}
    compiled = torch.compile(model, backend="galley", options=options)
    row: dict[str, Any] = {"level": level, "inputs": sorted(inputs)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            given = judging.tensors(seen.watch(lambda: judging.run(compiled, inputs)))
        except Exception as error:
            alone = _without_us(model, inputs)
            if isinstance(alone, str):
                return row | {"status": "not ours", "why": f"torch.compile alone fails: {alone}"}
            return row | {"status": "error", "why": _line(error)}
    verdict = judging.judge(model, inputs, given, wanted)
    breaks = torch._dynamo.utils.counters["graph_break"]
    row |= {
        "status": "equal" if verdict.equal else "differs",
        **vars(verdict),
        "graphs": len(seen.graphs),
        "nodes": seen.nodes,
        "clusters": seen.clusters,
        "breaks": [f"{count} x {_first(text)}" for text, count in breaks.items()],
        "native": seen.native(),
        "warnings": sorted({_first(str(w.message)) for w in caught} | set(warned)),
    }
    if not seen.runs:
        row |= {"status": "error", "why": "nothing was compiled"}
    elif not verdict.equal:
        alone = _without_us(model, inputs)
        if not isinstance(alone, str) and judging.error(given, alone) <= judging.LIMIT:
            why = (
                f"torch.compile alone (aot_eager) differs from eager alike, by {verdict.error:.1e}"
            )
            row |= {"status": "not ours", "why": why}
    return row


def _without_us(model: Any, inputs: dict[str, Any]) -> list[Any] | str:
    """Return what torch.compile gives when eager runs its graphs, or its error."""
    import torch  # here: only children compute

    from benchmarks import judging

    torch._dynamo.reset()
    try:
        compiled = torch.compile(model, backend="aot_eager")
        return judging.tensors(judging.run(compiled, inputs))
    except Exception as error:
        return _line(error)


def _runs_in_eager(name: str) -> str | tuple[str, Any, dict[str, Any], list[Any]]:
    """Return the first level and inputs that eager takes, or why there are none."""
    from benchmarks import judging, shrinking

    whys = []
    for level in shrinking.LEVELS:
        try:
            model = shrinking.build(name, level)
            found = list(shrinking.candidates(model))
        except Exception as error:
            whys.append(_line(error))
            continue
        whys.append("no input that we can make" if not found else "")
        for inputs in found:
            try:
                wanted = judging.tensors(judging.run(model, inputs))
            except Exception as error:
                whys[-1] = _line(error)
                continue
            floats = [tensor for tensor in wanted if tensor.is_floating_point()]
            if floats and all(tensor.isfinite().all() for tensor in floats):
                return level, model, inputs, wanted
            whys[-1] = "eager's result is not finite"
    return whys[0]


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first(str(error))}"


def _first(text: str) -> str:
    """Return a text's first line, shortened, without the paths of this machine."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return re.sub(r"(/[\w.+-]+){2,}/", "", line)[:160]


def _write(results: dict[str, Any]) -> None:
    for path, text in ((JSON, json.dumps(results, indent=1) + "\n"), (PAGE, _page(results))):
        new = path.with_suffix(path.suffix + ".new")
        new.write_text(text, "utf-8")
        os.replace(new, path)  # whole or not at all


def _page(results: dict[str, Any]) -> str:
    """Return the page."""
    rows = dict(sorted(results["architectures"].items()))
    counts = Counter(row["status"] for row in rows.values())
    facts = ", ".join(f"{key} {value}" for key, value in results.get("header", {}).items())
    lines = [
        "# Architectures",
        "",
        f"Written by `make architectures` ({facts}).",
        "The rule by which they were chosen, shrunk and given inputs stands in",
        "`benchmarks/architectures.py` and `benchmarks/shrinking.py`.",
        "",
        ", ".join(f"{counts[s]} {s}" for s in STATUSES) + f" of {len(rows)}.",
        "",
        "- equal: within 1e-4 of float32 eager, relative to scale; or, by float64 eager, no worse",
        "  than 1e-4 or twice float32 eager's own error (`64:` ours, then eager's).",
        "- not ours: eager can't build or run it so, its result is not finite, or torch.compile",
        "  fails or differs from eager alike without us (backend `aot_eager`).",
        "",
        "| model type | status | error | size | graphs | breaks | native |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = {name: row for name, row in rows.items() if row["status"] != "not ours"}
    lines += [_row(name, row) for name, row in ours.items()]
    lines += ["", "## Not ours", "", "| model type | why |", "|---|---|"]
    lines += [
        f"| {name} | {_cell(row['why'])} |"
        for name, row in rows.items()
        if row["status"] == "not ours"
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, row: dict[str, Any]) -> str:
    if "error" not in row:
        return f"| {name} | {row['status']} | {_cell(row.get('why', ''))} | | | | |"
    apart = f"{row['error']:.1e}"
    if row["against_float64"] is not None:
        apart += f" (64: {row['against_float64']:.1e}, {row['eager_against_float64']:.1e})"
    breaks, native = _cell("; ".join(row["breaks"])), _cell("; ".join(row["native"]))
    size = row["level"]
    return (
        f"| {name} | {row['status']} | {apart} | {size} | {row['graphs']} | {breaks} | {native} |"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
