"""`galley run`: a script sees what it would see under python, and errors are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MNIST = Path(__file__).parent / "data" / "train_mnist.py"
TRAINER = Path(__file__).parent / "data" / "train_trainer.py"


def galley(*args: str | Path, cwd: Path | None = None, **env: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "torch_galley", *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | env
    )
    return done.returncode, done.stdout, done.stderr


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


SEES = """\
import os, pickle, sys
import torch
print(torch.ones(2, device="xla").sum().item())
print(sys.argv[1:], __name__, os.path.isabs(__file__), sys.path[0] == os.path.dirname(__file__))
class Own: pass
print(type(pickle.loads(pickle.dumps(Own()))).__module__, sys.modules["__main__"].Own is Own)
def annotated(x: not_defined_anywhere = 1): pass
"""


@pytest.mark.parametrize("verb", [["run"], []])
def test_a_script_sees_what_it_sees_under_python(tmp_path: Path, verb: list[str]) -> None:
    script(tmp_path, SEES)
    code, out, err = galley(*verb, "script.py", "-x", "--", "--help", cwd=tmp_path)
    assert out.splitlines() == [
        "2.0",
        "['-x', '--', '--help'] __main__ True True",
        "__main__ True",
    ]
    assert code == 1
    assert "NameError: name 'not_defined_anywhere' is not defined" in err


def test_a_folder_and_a_pipe_are_scripts_too(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.path[0])", "__main__.py")
    assert galley("run", tmp_path)[:2] == (0, f"{tmp_path}\n")
    pipe = f"{sys.executable} -m torch_galley run <(echo 'print(6 * 7)')"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "42\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.py", "no such file: nowhere.py"), (".", "a folder without __main__.py: .")],
)
def test_what_is_no_script(tmp_path: Path, name: str, message: str) -> None:
    code, out, err = galley("run", name, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"galley: error: {message}\n  hint: ")


SPAWNS = """\
import multiprocessing
import torch
import torch_xla.core.xla_model as xm

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor(i * i) * xm.xrt_world_size()

def double(x):
    import torch_galley
    return x * 2, torch.compile(lambda t: t + 1, backend="openxla")(torch.ones(1)).item()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    print([batch.to(xm.xla_device()).tolist() for batch in loader])
"""


def test_processes_that_a_script_spawns_have_torch_xla(tmp_path: Path) -> None:
    code, out, err = galley("run", script(tmp_path, SPAWNS))
    assert code == 0, err
    assert out == "[(42, 2.0)]\n[[0, 1, 4, 9]]\n"


RAISES = {
    "cause": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    raise ValueError('later') from error\n",
        ["ZeroDivisionError: division by zero", "direct cause", "ValueError: later"],
    ),
    "group": (
        "raise ExceptionGroup('many', [ValueError('one'), KeyError('two')])\n",
        ["ExceptionGroup: many (2 sub-exceptions)", "ValueError: one", "KeyError: 'two'"],
    ),
    "syntax": ("x = (\n", ["SyntaxError: '(' was never closed"]),
    "hook": (
        "import sys\nsys.excepthook = lambda *a: print('mine', a[1], file=sys.stderr)\n1 / 0\n",
        ["mine division by zero"],
    ),
}


@pytest.mark.parametrize("kind", RAISES)
def test_the_scripts_own_errors_look_as_under_python(tmp_path: Path, kind: str) -> None:
    text, words = RAISES[kind]
    path = script(tmp_path, text)
    code, _, err = galley("run", path)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert code == 1
    assert err == plain.stderr
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import torch_xla.core.xla_model as xm; xm.no_such()", "xla_model.no_such isn't provided"),
        ("from torch_xla.runtime import use_spmd", "torch_xla.runtime.use_spmd isn't provided"),
        ("import torch_xla.distributed.fsdp", "the module torch_xla.distributed.fsdp isn't"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = script(tmp_path, f"\n{line}\n")
    code, _, err = galley("run", path)
    assert code == 2
    assert message in err
    assert f"  at {path}:2" in err
    assert "  hint: " in err
    assert "Traceback" not in err


def test_the_scripts_exit_code_is_ours(tmp_path: Path) -> None:
    assert galley("run", script(tmp_path, "import sys; sys.exit(7)"))[0] == 7
    assert galley("run", script(tmp_path, "raise SystemExit('no')"))[::2] == (1, "no\n")


@pytest.mark.parametrize("where", ["> /dev/full", ">&-", "| true"])
def test_output_that_nobody_takes(tmp_path: Path, where: str) -> None:
    path = script(tmp_path, "import time; time.sleep(0.2); print('x')")
    line = f"PYTHONUNBUFFERED= {sys.executable} -m torch_galley run {path} {where}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    wanted = {"> /dev/full": "galley: error: can't write the output: No space left on device\n"}
    assert done.stderr == wanted.get(where, "")


def test_install_alone_registers_the_device() -> None:
    lines = "import torch, torch_galley.compat as compat; compat.install(); "
    lines += "print(torch.ones(2).to('xla').device)"
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("xla:0\n", 0), done.stderr


EAGER = """\
import runpy, sys
import torch, torch_galley.compat
torch_galley.compat.install()
import torch_xla.core.xla_model as xm
xm.xla_device = lambda: torch.device("cpu")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_transformers_trainer_trains_as_in_eager(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    plain = [sys.executable, TRAINER, tmp_path / "cpu"]
    done = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code, out, err = galley("run", TRAINER, tmp_path / "xla")
    assert code == 0, err
    told = [
        dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        for text in (out, done.stdout)
    ]
    given, wanted = told
    assert given["device"] == "xla:0"
    assert wanted["device"] == "cpu"
    losses = [[float(loss) for loss in run["losses"].split()] for run in told]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert len(losses[0]) == 4
    assert given["saved"].split()[0] == "cpu"
    assert float(given["saved"].split()[1]) == pytest.approx(float(given["kept"]))
    assert float(given["kept"]) == pytest.approx(float(wanted["kept"]), rel=1e-2)


def test_a_training_script_trains_as_in_eager(tmp_path: Path) -> None:
    """Written as torch_xla's users write; eager is the same script with the CPU as its device."""
    import torch  # here: most tests of this file only start processes

    code, out, err = galley("run", MNIST, "--output", tmp_path / "given.pt", "--num_workers", "1")
    assert code == 0, err
    eager = [sys.executable, "-c", EAGER, MNIST, "--output", tmp_path / "wanted.pt"]
    done = subprocess.run(eager, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def told(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.lower().startswith("epoch")]

    lines, wanted_lines = told(out), told(done.stdout)
    assert len(lines) == 2 * (4 + 1)
    for line, wanted in zip(lines, wanted_lines, strict=True):
        if "Accuracy" in line:
            assert line == wanted
        else:
            assert line.endswith(" on xla:0")
            assert float(line.split()[5]) == pytest.approx(float(wanted.split()[5]), rel=1e-3)
    given, wanted_state = torch.load(tmp_path / "given.pt"), torch.load(tmp_path / "wanted.pt")
    torch.testing.assert_close(given, wanted_state, rtol=1e-3, atol=1e-4)
    for word in ("Metric: CompileTime", "Metric: ExecuteTime", "Counter: MarkStep"):
        assert word in out
