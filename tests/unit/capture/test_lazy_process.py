"""The lazy device and the process: modes, threads, forks, interrupts, memory, import."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import torch_galley
from torch_galley.capture.lazy import flush, storage
from torch_galley.core.errors import CaptureError
from torch_galley.core.events import ClusterCompiled, Event, Flushed, listen


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
import os, warnings
warnings.simplefilter("error")
import torch, torch_galley
x = torch.ones(2, device=torch_galley.device()) + 1
torch_galley.sync()
y = x + 1
child = os.fork()
if not child:
    assert (torch.ones(3) * 2).sum() == 6
    for touch in (lambda: x + 1, lambda: x.cpu(), lambda: torch.ones(2, device="xla"),
                  torch_galley.sync):
        try:
            touch()
        except torch_galley.errors.CaptureError as error:
            assert "forked process" in str(error), error
        else:
            os._exit(3)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert y.tolist() == [3, 3]
loader = torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2, num_workers=1)
assert [batch.to("xla").sum().item() for batch in loader] == [1, 5, 9]
"""


def test_a_fork_goes_on_with_the_cpu() -> None:
    assert python(FORK) == ""


def test_an_interrupted_compile_leaves_the_device_usable(
    xla: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(5.0, device=xla)
    y = x.cos() + 0.125
    executor = flush._executor

    def interrupted(captured: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(flush, "_executor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch_galley.sync()
    monkeypatch.setattr(flush, "_executor", executor)
    torch.testing.assert_close(y.cpu(), torch.arange(5.0).cos() + 0.125)


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
