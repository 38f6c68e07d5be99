"""`galley run` on a torch_xla script, unchanged, and lazy programs that end in a process's end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent / "data" / "demo_debug.py"


def galley(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_galley", *map(str, args)]
    settings = os.environ | {"GALLEY_MIN_CLUSTER_SIZE": "4"} | env
    return subprocess.run(command, capture_output=True, text=True, check=False, env=settings)


def demo(folder: Path, *, without: str = "") -> tuple[Path, Path]:
    """Return the seed's program, but for one line, and the folder that it dumps into."""
    dump = folder / "hlo"
    text = DEMO.read_text().replace("/tmp/hlo_dump", str(dump))
    if without:
        assert text.count(without) == 1
        text = text.replace(without, "pass")
    path = folder / "demo_debug.py"
    path.write_text(text)
    return path, dump


@pytest.mark.parametrize("without", ["", "xm.mark_step()"])
def test_the_demo_dumps_its_hlo_every_time(tmp_path: Path, without: str) -> None:
    path, dump = demo(tmp_path, without=without)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for _ in range(2):
        done = galley("run", path, **cache)
        assert done.returncode == 0, done.stderr
        assert "device: xla:0\n" in done.stdout
        assert "output shape: torch.Size([4, 8]) loss: " in done.stdout
        report = done.stdout[done.stdout.index("Metric: ") :].partition("hlo files:")[0]
        for name in ("CompileTime", "TensorsGraphSize", "FusedOps", "ExecuteTime"):
            assert f"Metric: {name}\n  TotalSamples: 1\n" in report
        assert "Counter: UncachedCompile\n  Value: 1\n" in report
        assert "Counter: RoundTripsXla\n  Value: 1\n" in report
        count = int(done.stdout.split("hlo files: ")[1].split()[0])
        assert count > 3
        assert any("before_optimizations" in found.name for found in dump.glob("*.txt"))
        lines = path.read_text().split("\n")
        cause = "flush    read: .* in main"
        if not without:
            cause = f"flush    sync: .* at {path}:{lines.index('    xm.mark_step()') + 1} in main"
        assert re.search(rf"^\[galley\] {cause}$", done.stderr, re.M), done.stderr
        for stage in ("record", "lower", "compile", "run"):
            assert re.search(rf"^\[galley\] {stage} .* at {path}:\d+ in \w+$", done.stderr, re.M)
        for found in dump.glob("*.txt"):
            found.unlink()


@pytest.mark.parametrize("flag", ["--xla_hlo_graph", "--xla_dump_hlo_as_dot"])
def test_graphs_in_the_dot_language(tmp_path: Path, flag: str) -> None:
    path, dump = demo(tmp_path)
    path.write_text(path.read_text().replace("--xla_dump_hlo_as_text", flag))
    done = galley("run", path)
    assert done.returncode == 0, done.stderr
    optimised = [found.read_text() for found in dump.glob("*after_optimizations*.dot")]
    assert len(optimised) == 1
    assert optimised[0].startswith("digraph")


def test_an_unknown_flag_is_an_error_and_no_abort(tmp_path: Path) -> None:
    path, _ = demo(tmp_path)
    path.write_text(path.read_text().replace("--xla_dump_hlo_as_text", "--xla_no_such_flag=1"))
    done = galley("run", path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("galley: error: XLA refuses XLA_FLAGS=")
    assert ": --xla_no_such_flag=1\n" in done.stderr


ENDS_IN_BACKWARD = """
import torch
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()  # a CPU backward first: autograd's threads are up
import torch_galley
x = torch.ones(4, 3, device=torch_galley.device(), requires_grad=True)
(x * 2).exp().sum().backward()
"""


@pytest.mark.parametrize("attempt", range(5))
def test_a_script_may_end_in_a_backward(tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "script.py"
    path.write_text(ENDS_IN_BACKWARD)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_registers_and_starts_nothing() -> None:
    code = (
        "import sys, torch, torch_galley as g\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'\n"
        "assert not {'jax', 'torch._dynamo'} & set(sys.modules)\n"
        "g.sync()\n"
        "g.device()\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_forked_children_are_told() -> None:
    code = (
        "import os, sys, torch, torch_galley as g\n"
        "x = torch.ones(2, device=g.device())\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert torch.ones(2).sum() == 2\n"
        "    try:\n"
        "        x + 1\n"
        "    except g.errors.CaptureError as error:\n"
        "        os._exit(0 if 'forked' in str(error) else 3)\n"
        "    os._exit(4)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
