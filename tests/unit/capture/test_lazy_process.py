"""The lazy device and the process: modes, threads, forks, interrupts, memory, import."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_galley
from torch_galley.capture.lazy import storage
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import (
    ClusterCompiled,
    ClusterLowered,
    Event,
    Flushed,
    GraphBuilt,
    PlanExecuted,
    listen,
)


@pytest.fixture
def events(xla: torch.device) -> Iterator[list[Event]]:
    seen: list[Event] = []
    stop = listen(seen.append)
    yield seen
    stop()


def causes(events: list[Event]) -> list[str]:
    return [event.cause for event in events if isinstance(event, Flushed)]


def python(code: str, **env: str) -> str:
    """Run a program in a process of its own; return what it printed, having ended well."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=os.environ | env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["eager", "blocking"])
def test_modes_run_at_once(mode: str, events: list[Event], xla: torch.device) -> None:
    x = torch.ones(2, device=xla)
    torch_galley.sync()
    events.clear()
    with torch_galley.config(mode=mode):
        y = (x + 1) * 2
        assert causes(events) == [mode, mode]
    z = y + 1
    assert causes(events) == [mode, mode]
    assert z.tolist() == [5, 5]
    compiled = sum(isinstance(event, ClusterCompiled) for event in events)
    with torch_galley.config(mode=mode):
        assert ((x + 1) * 2).tolist() == [4, 4]
    assert sum(isinstance(event, ClusterCompiled) for event in events) == compiled


def test_mode_by_environment(
    events: list[Event], xla: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLEY_MODE", "eager")
    torch.ones(2, device=xla)
    assert causes(events) == ["eager"]
    monkeypatch.setenv("GALLEY_MODE", "hasty")
    with pytest.raises(torch_galley.errors.ConfigError, match="hasty"):
        torch.ones(2, device=xla)


def test_causes_are_counted_by_line(xla: torch.device) -> None:
    torch_galley.reset_metrics()
    x = torch.ones(3, device=xla)
    for _ in range(2):
        (x + 1).sum().item()
    (x * 2).nonzero()
    y = x * 3
    torch_galley.sync()
    found = torch_galley.metrics()
    causes = {n: v for n, v in found.items() if n.startswith("flushes_") and v}
    assert causes == {"flushes_read": 2, "flushes_native": 1, "flushes_sync": 1}
    first = test_causes_are_counted_by_line.__code__.co_firstlineno
    report = torch_galley.metrics_report()
    for count, cause, line in ((2, "read", 4), (1, "native", 5), (1, "sync", 7)):
        assert re.search(rf"{count} x {cause} .*test_lazy_process.py:{first + line} in", report)
    del y


def test_two_threads_trace_and_sync(xla: torch.device) -> None:
    failures: list[BaseException] = []

    def train(seed: int) -> None:
        try:
            weight = torch.full((4,), float(seed), device=xla).requires_grad_()
            for turn in range(12):
                loss = (weight * weight).sum()
                loss.backward()
                with torch.no_grad():
                    weight -= 0.25 * weight.grad  # halves it
                weight.grad = None
                if turn % 3 == 0:
                    torch_galley.sync()
            assert weight.tolist() == [seed / 2**12] * 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


FORK = """
import os, threading, warnings
warnings.simplefilter("error")
import torch, torch_galley
from torch_galley.capture.lazy import flush
x = torch.ones(2, device=torch_galley.device()) + 1
torch_galley.sync()
y = x + 1
step = torch_galley.jit(lambda: x + 1)
held, over = threading.Event(), threading.Event()

def hold():  # as a flush in another thread does
    with flush.lock:
        held.set()
        over.wait()

if HELD:
    threading.Thread(target=hold).start()
    held.wait()
child = os.fork()
if not child:
    assert (torch.ones(3) * 2).sum() == 6
    for touch in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="xla"), step,
                  torch_galley.sync):
        try:
            touch()
        except torch_galley.errors.CaptureError as error:
            assert "forked process" in str(error), error
        else:
            os._exit(3)
    os._exit(0)
over.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert y.tolist() == [3, 3]
loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2, num_workers=1)
assert [batch.to("xla").sum().item() for batch in loader] == [1, 5, 9]
"""


@pytest.mark.parametrize("held", [False, True])
def test_a_fork_goes_on_with_the_cpu(held: bool) -> None:
    assert python(FORK.replace("HELD", str(held))) == ""


INTERRUPTED = [ClusterLowered, ClusterCompiled, GraphBuilt, PlanExecuted]


def _interrupted_at(kind: type[Event], run: Callable[[], object]) -> None:
    """Run something that Ctrl-C stops where events of a kind come from."""

    def listener(event: Event) -> None:
        if isinstance(event, kind):
            stop()
            signal.raise_signal(signal.SIGINT)

    stop = listen(listener)
    # A shell lets what it runs in the background ignore Ctrl-C, and so would Python.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_an_interrupt_leaves_the_device_usable(kind: type[Event], xla: torch.device) -> None:
    n = 50 + INTERRUPTED.index(kind)  # a program of its own
    x = torch.arange(float(n), device=xla)
    y = (x.cos() * x.sin()).add_(x).mul_(0.5)
    _interrupted_at(kind, torch_galley.sync)
    here = torch.arange(float(n))
    torch.testing.assert_close(y.cpu(), (here.cos() * here.sin()).add_(here).mul_(0.5))
    torch.testing.assert_close((y + x).cpu(), y.cpu() + here)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("kind", INTERRUPTED)
def test_an_interrupted_step_is_as_if_not_called(kind: type[Event], xla: torch.device) -> None:
    n = 60 + INTERRUPTED.index(kind)
    total = torch.zeros(n, device=xla)

    def step(x: torch.Tensor) -> torch.Tensor:
        total.add_(x * 2 + 1)
        return total.sum() + torch.rand((), device=xla)

    jitted, x = torch_galley.jit(step), torch.ones(n, device=xla)
    torch.manual_seed(0)
    drawn = torch.rand(2)
    torch.manual_seed(0)
    _interrupted_at(kind, lambda: jitted(x))
    assert total.tolist() == [0] * n
    assert jitted(x).item() == pytest.approx(3 * n + drawn[0].item())
    _interrupted_at(PlanExecuted, lambda: jitted(x))
    assert total.tolist() == [3] * n
    jitted(x)
    assert total.tolist() == [6] * n


def test_two_threads_share_a_step(xla: torch.device) -> None:
    failures: list[BaseException] = []

    def run(jitted: Callable[[torch.Tensor], torch.Tensor], seed: int) -> None:
        try:
            for turn in range(8):
                x = torch.full((3 + turn % 2,), float(seed), device=xla)
                assert jitted(x + turn).tolist() == [2.0 * (seed + turn)] * (3 + turn % 2)
                assert (x * 3).sum().item() == 3 * seed * (3 + turn % 2)
        except BaseException as error:
            failures.append(error)

    double = torch_galley.jit(lambda x: x * 2)
    threads = [threading.Thread(target=run, args=(double, seed)) for seed in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_nothing_is_kept_of_what_is_gone(xla: torch.device) -> None:
    def held() -> int:
        return len(storage.all_contents())

    gc.collect()  # of what earlier tests have left in cycles
    before = held()
    x = torch.zeros(4, 4, device=xla)
    for _ in range(300):
        row = x[1]
        row += 1
        x.view(-1)[3:9].mul_(0.5)
        x = x.t().contiguous()
    assert held() <= before + 2
    torch_galley.sync()
    del x, row
    assert held() == before


ENDLESS = """
import os, warnings
import torch, torch_galley
from torch_galley.core.events import Flushed, listen

warnings.simplefilter("ignore", UserWarning)  # too much was recorded without a sync
ran, sizes, turn = 0, [], 0

def count(event):
    global ran
    ran += event.nodes if isinstance(event, Flushed) else 0

listen(count)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

x = torch.zeros(256, 256).to(torch_galley.device())
while ran < 120_000:
    row = x[turn % 4]
    row += 1
    x.view(-1)[3:9000].mul_(0.5)
    x[:, ::2].t().clamp_(max=2)
    y = x.t().contiguous()
    x.copy_(y)
    x[1:3, 5:] = y[4:6, 5:]
    turn += 1
    if EVERY and turn % EVERY == 0:
        torch_galley.sync()
    if ran >= 20_000 * (len(sizes) + 1):
        sizes.append(resident())
print(ran, (sizes[-1] - sizes[0]) / 2**20)
"""


@pytest.mark.slow  # 20 to 40 s each
@pytest.mark.parametrize("every", [0, 20])
def test_memory_is_flat_over_100_000_operations(every: int) -> None:
    ran, grown = map(float, python(ENDLESS.replace("EVERY", str(every))).split())
    assert ran >= 120_000
    assert grown < 16  # MiB; a tensor kept in each turn would be 900, 400 bytes a step 40


def test_import_leaves_torch_as_it_was() -> None:
    code = """
import torch, torch_galley
assert torch.accelerator.current_accelerator() is None or not torch.accelerator.is_available()
assert not hasattr(torch, "xla")
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
assert torch.Generator is torch._C.Generator
loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert [batch.sum().item() for batch in loader] == [1, 5]
assert torch.cuda.is_initialized() is False
"""
    python(code)


BACKWARDS = """
import torch
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()
import torch_galley
v = torch.ones(3, device=torch_galley.device(), requires_grad=True)
(v * 2).sum().backward()
print(v.grad.sum().item())
(v * 3).sum().backward()
"""


@pytest.mark.parametrize("turn", range(3))
def test_a_script_may_end_in_a_backward(turn: int) -> None:
    assert python(BACKWARDS) == "6.0\n"


def test_a_late_error_names_its_line(xla: torch.device) -> None:
    table = torch.ones(3, 2, device=xla)
    index = torch.tensor([5]).to(xla)
    picked = table[index]  # the line at fault
    with pytest.raises(IndexError, match=r"test_lazy_process.py:\d+ in test_a_late_error") as late:
        torch_galley.sync()
    number = test_a_late_error_names_its_line.__code__.co_firstlineno + 3
    assert f"test_lazy_process.py:{number}" in str(late.value)
    with pytest.raises(CaptureError, match="lost"):
        picked.cpu()
