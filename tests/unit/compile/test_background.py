"""The pool that compiles in the background, and the process in which it does."""

import os
import re
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
import torch

from torch_galley.compile import background as module
from torch_galley.compile.background import Background
from torch_galley.compile.client import start_client
from torch_galley.compile.engine import OwnEngine, PublicEngine, engine
from torch_galley.core.config import config, current
from torch_galley.core.errors import CompileError


@pytest.fixture(scope="module")
def stage():
    start_client()
    spec = jax.ShapeDtypeStruct((64, 64), "float32")
    return jax.jit(lambda x: (jnp.sin(x @ x) + x.sum(),)).lower(spec)


@pytest.fixture
def pool():
    pool = Background(1)
    yield pool
    pool.stop()


def ran(executable):
    x = torch.arange(4096.0).view(64, 64) / 5000
    own = engine()
    return own.take(executable.run([own.bring(x)])[0])


def instructions(executable):
    """The HLO without its table of places, whose order differs from one compilation to the next."""
    hlo = executable.hlo()
    return re.sub(r"stack_frame_id=\d+", "", hlo[hlo.index("\n%") :])


def test_the_very_executable(pool, stage):
    made = pool.submit("key", lambda build: build(engine(), stage, {})).result()
    here = engine().compile(stage, {})
    assert torch.equal(ran(made), ran(here))
    assert instructions(made) == instructions(here)
    assert made.memory().temp_size_in_bytes == here.memory().temp_size_in_bytes
    assert made.cost() == here.cost()


def test_xla_refuses(pool, stage):
    asked = pool.submit("key", lambda build: build(engine(), stage, {"xla_no_such_option": 1}))
    assert "No such compile option" in str(asked.exception())
    assert isinstance(asked.exception(), jax.errors.JaxRuntimeError)


def process(pool):
    (child,) = pool._threads.values()
    return child._process


def test_a_process_that_ends(pool, stage):
    def during(build):
        process(pool).send_signal(signal.SIGSTOP)
        threading.Timer(0.2, process(pool).kill).start()
        return build(engine(), stage, {})

    pool.submit("start", lambda build: build(engine(), stage, {})).result()
    assert os.getsid(process(pool).pid) != os.getsid(0)  # it gets no Ctrl-C
    with pytest.raises(CompileError, match="ended with SIGKILL"):
        pool.submit("killed", during).result()
    assert pool.submit("again", lambda build: build(engine(), stage, {})).result().hlo()
    process(pool).kill()
    process(pool).wait()
    assert pool.submit("idle", lambda build: build(engine(), stage, {})).result().hlo()


def no_process(patch):
    command = [sys.executable, "-c", "pass"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    patch.setattr(module, "_start", lambda: subprocess.Popen(command, **pipes))


def no_interpreter(patch):
    patch.setattr(sys, "executable", "/no/such/python")


def no_loading(patch):
    patch.setattr(OwnEngine, "load", lambda self: None)  # another signature


@pytest.mark.parametrize("lack", [no_process, no_interpreter, no_loading])
def test_what_no_process_can_compile_is_compiled_here(pool, stage, monkeypatch, lack):
    lack(monkeypatch)
    for key in range(2):
        made = pool.submit(key, lambda build: build(engine(), stage, {})).result()
        assert torch.equal(ran(made), ran(engine().compile(stage, {})))


def test_other_platforms(pool, stage):
    made = pool.submit("key", lambda build: build(PublicEngine(), stage, {})).result()
    assert instructions(made) == instructions(PublicEngine().compile(stage, {}))


def test_settings_of_the_asking_thread(pool):
    with config(min_cluster_size=7):
        asked = pool.submit("key", lambda build: current().min_cluster_size)
    assert asked.result() == 7


def test_a_key_is_made_once_at_a_time_and_no_more_than_workers():
    pool, go, running = Background(2), threading.Event(), []

    def make(build):
        running.append(threading.current_thread())
        go.wait(20)
        return len(set(running))

    asked = [pool.submit(key, make) for key in "aabbccdd"]
    assert [asked[n] is asked[n + 1] for n in range(7)] == [n % 2 == 0 for n in range(7)]
    go.set()
    pool.wait()
    assert len(running) == 4
    assert len(set(running)) <= 2
    pool.stop()


def test_after_the_end_nothing_comes(pool):
    go = threading.Event()
    started = threading.Event()
    first = pool.submit("first", lambda build: started.set() or go.wait(20))
    waiting = pool.submit("waiting", lambda build: 1)
    started.wait(20)
    threading.Timer(0.1, go.set).start()
    pool.stop()
    assert first.result() is True  # what was under way is waited for
    assert not waiting.done()
    assert not pool.submit("late", lambda build: 1).done()
