"""`torch_xla.debug.profiler`, usually imported as `xp`: XLA's own profiler, as jax offers it."""

from __future__ import annotations

import threading
from typing import Any

import jax

from torch_galley.compat.finder import missing

Trace = jax.profiler.TraceAnnotation
"""A context manager: a named bar in the trace."""
StepTrace = jax.profiler.StepTraceAnnotation
"""A context manager: a named step in the trace; takes step_num=."""


def trace_me(name: str) -> Any:
    """Return a decorator that puts a function's calls into the trace."""
    return lambda function: jax.profiler.annotate_function(function, name=name)


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Start the server that TensorBoard's profiler connects to; keep what is returned."""
    return jax.profiler.start_server(port)


def start_trace(log_dir: str) -> None:
    """Begin a trace that stop_trace writes into a folder, for TensorBoard or xprof."""
    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """End the trace and write it."""
    jax.profiler.stop_trace()


def trace_detached(
    service_addr: str, logdir: str, duration_ms: int = 1000, num_tracing_attempts: int = 3
) -> None:
    """Trace this process from now on, for so long, and write it into a folder meanwhile."""
    start_trace(logdir)
    threading.Timer(duration_ms / 1000, stop_trace).start()


def __getattr__(name: str) -> Any:
    missing(__name__, name)
