"""Compiling in the background: a few threads, each with a process in which XLA works.

Note [A process for XLA]. A thread inside XLA can't be stopped, and one that comes back from XLA
while the interpreter ends aborts the process (jaxlib 0.10.2 with Python 3.11: 15 of 17 times). So a
thread only lowers, which is short, and a child process compiles, which is killed at exit. What
comes back is the very executable that compiling here would give. Where there is no child (another
platform than the CPU, a jaxlib that can't hand over executables) XLA works in the thread, and the
end of the interpreter waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
from jaxlib import version

from torch_galley.compile import flags
from torch_galley.compile.client import Build
from torch_galley.compile.engine import Engine, Executable, Options, OwnEngine
from torch_galley.core.errors import CompileError

Result = TypeVar("Result")

_IDLE_SECONDS = 30.0
"""After so long without work a thread and its process end; starting them anew takes half a
second, keeping them 100 MB."""


class Child:
    """A process that compiles, started when first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self._closed = self._useless = False

    def build(self, way: Engine, stage: jax.stages.Lowered, options: Options) -> Executable:
        """Compile a program there, or here if it can't be done there.

        Raises:
            JaxRuntimeError: XLA refused the program.
            CompileError: the process ended.
        """
        if not isinstance(way, OwnEngine) or not self._started():
            return way.compile(stage, options)
        made, refusal = self._ask((way.program(stage), list(options.items())))
        if refusal is not None:
            raise jax.errors.JaxRuntimeError(refusal)
        try:
            return way.load(made)
        except Exception:  # whatever a private entry point may do when it has changed
            self._useless = True
            return way.compile(stage, options)

    def _started(self) -> bool:
        """Whether there is a process that compiles as we would."""
        with self._changing:
            if self._closed:
                raise CompileError("the interpreter is about to end")
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._process is None and not self._useless:
                try:
                    self._process = _start()
                except OSError:  # there is no interpreter to be found: Python is embedded
                    self._useless = True
                else:
                    self._useless = self._answer() != version.__version__
        return not self._useless

    def _ask(self, request: object) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            answer = self._answer()
        except BrokenPipeError:
            answer = None
        if answer is None:
            code = self.close()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            raise CompileError(
                f"the process that compiles ended with {how}",
                hint="XLA may have crashed or run out of memory: keep this part native, or see "
                "whether compile='now' fares better",
            )
        return answer

    def _answer(self) -> Any:
        """Return the next answer, None if there will be none."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            return None

    def close(self, final: bool = False) -> int:
        """End the process, at once; the next request starts another unless this is `final`."""
        self._closed |= final
        with self._changing:
            return self._end()

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()  # does nothing to one that has ended
        with contextlib.suppress(BrokenPipeError), process:
            pass  # closes the pipes, which may hold what was never read, and waits
        return process.returncode


def _start() -> subprocess.Popen[bytes]:
    program = str(Path(__file__).with_name("child.py"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "XLA_FLAGS": flags.in_force(),
    }
    return subprocess.Popen(
        [sys.executable, "-P", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us
    )


@dataclass
class _Job:
    key: Hashable
    make: Callable[[Build], Any]
    future: Future[Any]
    context: contextvars.Context


class Background:
    """A bounded pool that makes values in the background, each once at a time.

    Example:
        >>> pool = Background(1)
        >>> pool.submit("key", lambda build: 6 * 7).result()
        42
    """

    def __init__(self, workers: int):
        self._workers = workers
        self._forget()
        os.register_at_fork(after_in_child=self._fork)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._flying: dict[Hashable, Future[Any]] = {}
        self._threads: dict[threading.Thread, Child] = {}
        self._stopping = False

    def _fork(self) -> None:
        """In a fork's child: threads and processes are the parent's."""
        self._forget()
        self._stopping = True

    def submit(self, key: Hashable, make: Callable[[Build], Result]) -> Future[Result]:
        """Have `make` called with what compiles there; it sees this thread's context variables.

        Whoever asks for a key that is being made gets the same future. Close to the interpreter's
        end, and in a fork's child, the future never comes.
        """
        with self._lock:
            if key in self._flying:
                return self._flying[key]
            job = _Job(key, make, Future(), contextvars.copy_context())
            if self._stopping:
                return job.future
            if not self._threads:
                atexit.register(self.stop)
            self._flying[key] = job.future
            self._jobs.put(job)
            if len(self._threads) < min(self._workers, len(self._flying)):
                child = Child()
                thread = threading.Thread(
                    target=self._work, args=[child], name="galley-compile", daemon=True
                )
                self._threads[thread] = child
                thread.start()
        return job.future

    def _work(self, child: Child) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    self._threads.pop(threading.current_thread(), None)
                child.close()
                return
            if job is None:
                return
            try:
                job.future.set_result(job.context.run(job.make, child.build))
            except BaseException as error:  # whoever asks for the result gets it
                job.future.set_exception(error)
            with self._lock:
                self._flying.pop(job.key, None)
            del job  # or it would keep a plan alive until the next one comes

    def wait(self) -> None:
        """Return when nothing is being made, or waits for it."""
        while True:
            with self._lock:
                flying = list(self._flying.values())
            if not flying:
                return
            futures.wait(flying)

    def stop(self) -> None:
        """Drop what waits, kill the processes, and wait for what is being lowered."""
        atexit.unregister(self.stop)
        with self._lock:
            self._stopping = True
            threads = dict(self._threads)
            self._threads.clear()
            while not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    del self._flying[job.key]
            for _ in threads:
                self._jobs.put(None)
        for child in threads.values():
            child.close(final=True)
        for thread in threads:
            thread.join()
