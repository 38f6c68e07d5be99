"""What calling costs: a small network compiled by us and by inductor, in turn in one process.

    python -m benchmarks.overhead [--rounds N]

Three linear layers of width 32 for 8 rows, in no_grad, on one thread: the work itself takes a few
microseconds, so what is measured is guards, wrappers and the way to the executable and back. Each
round times 100 calls of each contender in processor time; the figures are medians over the rounds
and, since other work on the machine only ever adds, the fastest rounds. Medians count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

CALLS = 100
CONTENDERS = ("eager", "galley", "inductor", "aot_eager")


def main() -> int:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="rounds (default 200)")
    rounds = parser.parse_args().rounds
    import torch  # here, so that --help is quick

    torch.set_num_threads(1)
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = torch.nn.Sequential(linear(32, 32), relu(), linear(32, 32), relu(), linear(32, 32))
    x = torch.randn(8, 32)
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    with torch.no_grad():
        for name in CONTENDERS[1:]:
            calls[name] = torch.compile(own_code(model, name), backend=name)
            assert torch.allclose(calls[name](x), model(x), atol=1e-6)
        seconds = in_turn(calls, (x,), rounds)
    print(f"{'':<10} {'median us':>10} {'fastest us':>11}   (processor time a call)")
    for name, samples in seconds.items():
        print(f"{name:<10} {statistics.median(samples) * 1e6:10.1f} {min(samples) * 1e6:11.1f}")
    medians = {name: statistics.median(samples) for name, samples in seconds.items()}
    fastest = {name: min(samples) for name, samples in seconds.items()}
    print(
        f"galley / inductor: {medians['galley'] / medians['inductor']:.2f} by medians, "
        f"{fastest['galley'] / fastest['inductor']:.2f} by fastest rounds"
    )
    return 0


def own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that calls another, with a code object of its own.

    Dynamo keeps what it compiled by code object, and tries all that it has for one in turn.
    """

    def call(*args: Any) -> Any:
        return function(*args)

    code = call.__code__.replace(co_name=name)
    return types.FunctionType(code, globals(), name, None, call.__closure__)


def in_turn(
    calls: dict[str, Callable[..., Any]],
    args: tuple[Any, ...],
    rounds: int,
    each: int = CALLS,
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, list[float]]:
    """Return the seconds of a call, for each contender a sample (of `each` calls) a round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            started = clock()
            for _ in range(each):
                call(*args)
            if number:  # the first round warms up
                seconds[name].append((clock() - started) / each)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
