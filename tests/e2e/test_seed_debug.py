"""`galley run` on a torch_xla script, unchanged, and lazy programs that end in a process's end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent / "data" / "demo_debug.py"


def galley(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_galley", *map(str, args)]
    settings = os.environ | {"GALLEY_MIN_CLUSTER_SIZE": "4"} | env
    return subprocess.run(command, capture_output=True, text=True, check=False, env=settings)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_the_demo_dumps_its_hlo_every_time(tmp_path: Path) -> None:
    demo, dump = tmp_path / "demo_debug.py", tmp_path / "hlo"
    demo.write_text(DEMO.read_text().replace("/tmp/hlo_dump", str(dump)))
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for _ in range(2):
        done = galley("run", demo, **cache)
        assert done.returncode == 0, done.stderr
        assert "device: xla:0\n" in done.stdout
        assert "output shape: torch.Size([4, 8]) loss: " in done.stdout
        for word in ("compile_seconds", "graph_nodes", "fusions", "executions", "flushes"):
            assert word in done.stdout[:2300]
        count = int(done.stdout.split("hlo files: ")[1].split()[0])
        assert count > 3
        assert any("before_optimizations" in path.name for path in dump.glob("*.txt"))
        for stage in ("flush ", "lower ", "compile ", "run "):
            assert f"[galley] {stage}" in done.stderr
        for path in dump.glob("*.txt"):
            path.unlink()


def test_a_name_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch_xla.core.xla_model as xm\nxm.rendezvous('here')\n")
    done = galley("run", path)
    assert done.returncode == 2
    assert "torch_xla.core.xla_model.rendezvous isn't provided" in done.stderr
    assert f"at {path}:2" in done.stderr
    assert "Traceback" not in done.stderr
    done = galley("run", script(tmp_path, "import torch_xla.distributed.spmd\n"))
    assert done.returncode == 2
    assert "torch_xla.distributed" in done.stderr


def test_the_scripts_own_errors_are_its_own(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nassert sys.argv[1:] == ['-x', 'y']\n1 / 0\n")
    done = galley("run", path, "-x", "y")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "torch_galley" not in done.stderr


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
    path = script(tmp_path, ENDS_IN_BACKWARD)
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
