"""What recording a step costs: the lazy device and torch_xla's, in processes that take turns.

    python -m benchmarks.recording [--processes N] [--peer PYTHON]

A step of training, 50 linear layers with AdamW, is recorded after everything earlier has run; what
is timed ends before the sync. Both sides run the same code, each with its own torch; AdamW is told
foreach=True, our default but not torch_xla's, because both record that way faster. torch_xla 2.9
needs torch 2.9, so it has an environment of its own, .venv-torch-xla, made at first use (some 7 GB,
since that torch comes with CUDA).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

LAYERS, WIDTH, BATCH = 50, 16, 4
WARM_UP, STEPS = 5, 20
PEER = ("torch==2.9.0", "torch_xla==2.9.0", "numpy")
FOLDER = Path(".venv-torch-xla")


def main() -> int:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.recording", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--processes", type=int, default=7, help="of each side (default 7)")
    parser.add_argument("--peer", type=Path, help="a Python that has torch_xla")
    parser.add_argument("--side", choices=("galley", "torch_xla"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(_recorded(args.side)))
        return 0
    pythons = {"galley": Path(sys.executable), "torch_xla": args.peer or _environment()}
    seconds: dict[str, list[float]] = {side: [] for side in pythons}
    for _ in range(args.processes):
        for side, python in pythons.items():
            seconds[side].append(_asked(python, side))
    for side, samples in seconds.items():
        fastest, median = (1e3 * f(samples) for f in (min, statistics.median))
        print(f"{side:<10} {median:8.2f} ms a step by median, {fastest:8.2f} at fastest")
    ratios = [f(seconds["galley"]) / f(seconds["torch_xla"]) for f in (statistics.median, min)]
    print(f"galley / torch_xla: {ratios[0]:.2f} by medians, {ratios[1]:.2f} by fastest processes")
    return 0


def _environment() -> Path:
    """Return the Python that has torch_xla, making its environment if there is none."""
    python = FOLDER / "bin" / "python"
    if not (FOLDER / "complete").exists():
        print(f"making {FOLDER}: {', '.join(PEER)}", file=sys.stderr)
        venv.create(FOLDER, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER], check=True)
        (FOLDER / "complete").touch()
    return python


def _asked(python: Path, side: str) -> float:
    """Return the seconds of a step by the median of one fresh process."""
    command = [str(python), __file__, "--side", side]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    return float(statistics.median(json.loads(done.stdout.splitlines()[-1])))


def _recorded(side: str) -> list[float]:
    """Return the seconds that recording took, step by step."""
    import torch  # here and below, so that --help is quick and each side imports its own

    wait: Any
    if side == "galley":
        import torch_galley

        device, sync, wait = torch_galley.device(), torch_galley.sync, torch_galley.sync
    else:
        import torch_xla  # type: ignore[import-not-found]
        import torch_xla.core.xla_model as xm  # type: ignore[import-not-found]

        device, sync, wait = torch_xla.device(), torch_xla.sync, xm.wait_device_ops
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(BATCH, WIDTH).to(device)
    y = torch.randn(BATCH, WIDTH).to(device)
    seconds = []
    for _ in range(WARM_UP + STEPS):
        sync()
        wait()
        started = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    sync()
    return seconds[WARM_UP:]


if __name__ == "__main__":
    sys.exit(main())
