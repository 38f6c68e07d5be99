"""`galley demo`: BERT-base in eager, compiled, and with two operators kept out of XLA."""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_galley.cluster import report
from torch_galley.core.errors import ToolError
from torch_galley.core.events import ClusterCompiled, ClusterLowered, Event, GraphBuilt, listen
from torch_galley.run.execute import Plan
from torch_galley.tools.measure import alternate, measure

DENIED = ("aten.gelu", "aten.native_layer_norm")
"""What the third run keeps out of XLA, so that clusters and the native remainder show."""


def add_parser(subparsers: Any) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="BERT-base in eager and compiled, with what it cost and gained",
        description="Runs BERT-base (random weights) in eager, through torch.compile("
        'backend="galley"), and again with two operators denied.',
    )
    parser.add_argument("--batch", type=int, default=4, help="sequences (default 4)")
    parser.add_argument("--length", type=int, default=128, help="tokens in each (default 128)")
    parser.add_argument("--layers", type=int, default=12, help="encoder layers (default 12)")
    parser.add_argument("--calls", type=int, default=7, help="timed calls of each (default 7)")
    parser.add_argument("--dump", metavar="DIR", help="where to write the HLO (default: temporary)")


@dataclass
class _Seen:
    """What the stages told while one contender was compiled."""

    plans: list[Plan] = field(default_factory=list)
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case GraphBuilt(plan=plan):
                self.plans.append(plan)
            case ClusterLowered(seconds=seconds):
                self.lower_seconds += seconds
            case ClusterCompiled(seconds=seconds):
                self.compile_seconds += seconds
            case _:
                pass


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit status."""
    for name in ("batch", "length", "layers", "calls"):
        if getattr(args, name) < 1:
            raise ToolError(f"--{name} is {getattr(args, name)}", hint="give 1 or more")
    if args.length > 512:
        raise ToolError(f"--length is {args.length}", hint="BERT has positions for 512 tokens")
    folder = args.dump or tempfile.mkdtemp(prefix="galley-demo-")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)  # before minutes are spent
    except OSError as error:
        raise ToolError(f"can't write to --dump {folder}: {error.strerror}") from error
    say(f"BERT-base, {args.layers} layers, {args.batch} x {args.length} tokens, random weights")
    model, ids = _bert(args)
    with torch.no_grad():
        wanted = _step("eager, first call", lambda: model(ids))[1].last_hidden_state
        eager_peak = _peak_bytes()
        runs = [
            _contender("galley", model, ids, wanted, Path(folder) / "galley", ()),
            _contender("denied", model, ids, wanted, Path(folder) / "denied", DENIED),
        ]
        say(f"timing {args.calls} calls of each, in turn")
        contenders: dict[str, Callable[[], Any]] = {"eager": lambda: model(ids)}
        contenders |= {r.name: r.call for r in runs}
        seconds = alternate(contenders, args.calls)
        for contender in runs:
            _report(contender, seconds)
    print(
        f"\npeak memory of this process: {report.size(eager_peak)} after eager alone, "
        f"{report.size(_peak_bytes())} at the end"
    )
    print(
        "η: share of operations in clusters. ∂C, D(C): edges out of a cluster and their bytes.\n"
        "ΣT_op: its operations natively, one by one. T_fused: its executable. T_sync: its border."
    )
    print(f"HLO of every cluster, before and after optimisation: {folder}")
    return 0


@dataclass(frozen=True)
class _Contender:
    name: str
    call: Callable[[], Any]
    first_seconds: float
    seen: _Seen
    difference: float
    """Largest difference from eager, relative to eager's largest value."""


def _contender(
    name: str,
    model: torch.nn.Module,
    ids: torch.Tensor,
    wanted: torch.Tensor,
    folder: Path,
    deny_ops: tuple[str, ...],
) -> _Contender:
    seen = _Seen()
    options = {"dump_dir": str(folder), "deny_ops": deny_ops}
    stop = listen(seen)
    compiled = torch.compile(model, backend="galley", options=options)
    label = f"galley without {' and '.join(deny_ops)}" if deny_ops else "galley"
    try:
        first, given = _step(f"{label}, first call (compiles)", lambda: compiled(ids))
    finally:
        stop()
    difference = (given.last_hidden_state - wanted).abs().max() / wanted.abs().max()
    return _Contender(name, lambda: compiled(ids), first, seen, difference.item())


def _report(contender: _Contender, seconds: dict[str, list[float]]) -> None:
    """Print what one contender is made of, what it cost, and what it gained."""
    seen = contender.seen
    eager = statistics.median(seconds["eager"])
    ours = statistics.median(seconds[contender.name])
    print(f"\n== {contender.name} ==")
    for plan in seen.plans:
        print(report.text(plan.clustered))
    compiling = seen.lower_seconds + seen.compile_seconds
    capture = max(0.0, contender.first_seconds - compiling - ours)
    print(
        f"compile time: {capture + compiling:.2f} s (capture and clustering {capture:.2f}, "
        f"lowering {seen.lower_seconds:.2f}, XLA {seen.compile_seconds:.2f})"
    )
    print(
        f"one call: {ours * 1e3:.1f} ms, eager {eager * 1e3:.1f} ms: "
        f"{eager / ours:.2f}x eager's speed (medians of {len(seconds['eager'])})"
    )
    if ours < eager:
        calls = math.ceil((capture + compiling) / (eager - ours))
        print(f"the compile time is paid back after {calls} calls")
    else:
        print("the compile time is never paid back: eager is as fast")
    costs = measure(contender.call, seen.plans)
    print("S = ΣT_op / (T_fused + T_sync) of each cluster, ms:")
    print(f"  {'cluster':<18} {'ΣT_op':>9} {'T_fused':>9} {'T_sync':>8} {'S':>6}  scratch memory")
    for cost in costs.clusters:
        terms = cost.terms
        print(
            f"  {cost.name:<18} {terms.t_ops * 1e3:9.2f} {terms.t_fused * 1e3:9.2f} "
            f"{terms.t_sync * 1e3:8.3f} {terms.speedup:6.2f}  {report.size(cost.temporary_bytes)}"
        )
    print(
        f"call overhead: {costs.overhead * 1e3:.2f} ms "
        f"(guards and Python {costs.around * 1e3:.2f}, the rest T_sync)"
    )
    print(f"largest difference from eager: {contender.difference:.1e} of the largest value")


def _bert(args: argparse.Namespace) -> tuple[torch.nn.Module, torch.Tensor]:
    try:
        from transformers import BertConfig, BertModel  # an extra: only the demo needs it
    except ImportError as error:
        raise ToolError(
            "the demo needs transformers", hint="pip install 'torch-galley[demo]'"
        ) from error
    torch.manual_seed(0)
    size = BertConfig(num_hidden_layers=args.layers)
    _, model = _step("building the model", lambda: BertModel(size).eval())
    return model, torch.randint(0, size.vocab_size, (args.batch, args.length))


def say(text: str) -> None:
    """Show progress at once."""
    print(f"* {text}", flush=True)


def _step(text: str, call: Callable[[], Any]) -> tuple[float, Any]:
    print(f"* {text} ...", end="", flush=True)
    started = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - started
    print(f" {seconds:.2f} s", flush=True)
    return seconds, result


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
