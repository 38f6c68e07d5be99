"""galley ops: whether an operator is supported, for which dtypes and devices, and how."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from torch_galley.compile.client import has_device
from torch_galley.core.spec import XLA_DTYPE
from torch_galley.tools.operator import (
    Support,
    control_flow,
    overloads,
    resolve,
    supported,
    sweep_verdicts,
    tried,
)
from torch_galley.tools.target import run_file
from torch_galley.tools.trial import Trial

_ABOUT = """\
Tell whether XLA takes an operator, and how: lowered by a function of torch-galley,
decomposed by torch into simpler ones, rewritten (an in-place or out= form, of which
capture makes the functional one), or native with the reason.

NAME is gelu, aten.gelu, aten.gelu.default or torch.nn.functional.gelu, or
NAMESPACE.NAME of an operator of yours, which --load FILE.py defines. It is tried with
small made-up arguments, for each dtype that XLA has; other arguments may fare
otherwise. Without NAME: a table.

Exit code 1 says that it runs natively in all its forms."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "ops", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="an operator")
    parser.add_argument("--load", metavar="FILE.py", help="run this first: it defines operators")
    parser.add_argument("--all", action="store_true", help="list every overload of ATen")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the answer; 1 if the operator named runs natively in all its forms.

    Raises:
        ToolError: there is no such operator, or no such file, or it raises.
    """
    if args.load is not None:
        run_file(Path(args.load))
    if args.name is None:
        everything = [supported(op) for op in overloads().values()]
        print(_table(everything, args.json, args.all))
        return 0
    if (told := control_flow(args.name)) is not None:
        print(json.dumps({"control_flow": told}) if args.json else textwrap.fill(told, 100))
        return 0
    found = [(op, supported(op)) for op in resolve(args.name)]
    trials = {str(op): tried(op) for op, _ in found}
    if args.json:
        print(json.dumps(_to_json(found, trials), indent=2))
    else:
        print("\n".join(_page(found, trials)))
    return int(all(one.how == "native" for _, one in found))


def _devices() -> dict[str, bool]:
    return {name: has_device(torch.device(name)) for name in ("cpu", "cuda")}


def _to_json(
    found: Sequence[tuple[OpOverload, Support]], trials: dict[str, dict[str, Trial]]
) -> dict[str, Any]:
    return {
        "devices": _devices(),
        "overloads": [
            one.to_json()
            | {
                "trials": {dtype: vars(trial) for dtype, trial in trials[one.op].items()},
                "sweep": sweep_verdicts(one.op),
            }
            for _, one in found
        ],
    }


def _page(
    found: Sequence[tuple[OpOverload, Support]], trials: dict[str, dict[str, Trial]]
) -> Iterator[str]:
    for _, one in found:
        yield f"{one.op}: {one.how}, {one.detail}"
        if one.when:
            yield from _wrapped("if its arguments pass", one.when)
        yield from _trials(one, trials[one.op])
        for row in sweep_verdicts(one.op):
            yield from _wrapped(f"op_db sweep, {_task(row)}", _verdict(row))
    named = [name if there else f"{name} (not in this jax)" for name, there in _devices().items()]
    yield f"devices: {', '.join(named)}"


def _task(row: dict[str, Any]) -> str:
    return f"{row['variant']} {row['dtype']}".strip()


def _verdict(row: dict[str, Any]) -> str:
    said = f"{row['status']}, {row['reason']}" if row["reason"] else row["status"]
    if "draws random numbers" in row["reason"]:  # the sweep lets eager draw, to compare with it
        said += ' (the sweep has rng="native")'
    return said


def _trials(one: Support, trials: dict[str, Trial]) -> Iterator[str]:
    if one.how in ("rewritten", "native"):
        return
    if not trials:
        yield from _wrapped("dtypes", f"not tried; XLA has {', '.join(XLA_DTYPE.values())}")
        return
    first = next((t for d, t in trials.items() if d.startswith("float32")), None)
    first = first or next(iter(trials.values()))
    if one.how == "decomposed" and first.into:
        yield from _wrapped("into", ", ".join(f"{op} ({_how(op)})" for op in first.into))
    groups: dict[str, list[str]] = {}
    for dtype, trial in trials.items():
        groups.setdefault(trial.verdict, []).append(dtype)
    others = "" if "any" in trials else " and other dtypes"
    yield f"  tried with ({first.arguments}){others}:"
    for verdict, dtypes in groups.items():
        label = "in XLA" if verdict == "xla" else f"native, {verdict}"
        yield from _wrapped(f"  {label}", "" if dtypes == ["any"] else ", ".join(dtypes))
    refused = [name for name in XLA_DTYPE.values() if name not in trials]
    if refused and others:
        yield from _wrapped("  eager refuses that of", ", ".join(refused))


def _how(op: str) -> str:
    known = overloads().get(op)
    return supported(known).how if known is not None else "not of ATen"


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        f"{label.lstrip()}: {text}" if text else label.lstrip(),
        100,
        initial_indent="  " + " " * (len(label) - len(label.lstrip())),
        subsequent_indent="      ",
        break_on_hyphens=False,
    )


def _table(everything: Sequence[Support], as_json: bool, full: bool) -> str:
    counts = Counter(one.how for one in everything)
    reasons = Counter(one.reason.code for one in everything if one.reason)
    if as_json:
        data = {"counts": dict(counts), "native": dict(reasons), "devices": _devices()}
        if full:
            data["overloads"] = [one.to_json() for one in everything]
        return json.dumps(data, indent=2)
    meanings = {
        "lowered": "by a function of torch-galley",
        "decomposed": "by torch into simpler operators, each of which is asked about in turn",
        "rewritten": "in-place and out= forms: capture makes the functional form of them",
        "native": "run by torch, outside XLA",
    }
    lines = [f"{len(everything)} overloads of ATen in torch {torch.__version__}"]
    lines += [f"  {how:<11}{counts[how]:>6}  {text}" for how, text in meanings.items()]
    lines += [f"    {code:<19}{count:>6}" for code, count in reasons.most_common()]
    if full:
        width = max(len(one.op) for one in everything)
        lines.append("")
        lines += [f"{one.op:<{width}}  {one.how:<10}  {one.detail}" for one in everything]
    else:
        lines.append("galley ops NAME tells more of one, galley ops --all lists them")
    return "\n".join(lines)
