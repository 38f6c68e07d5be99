"""What torch looks for in `torch.xla`: one device, whose work is over when a call asks for it.

Streams and events are accepted and mean nothing: operations run in the order of the program.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from torch_galley.capture.lazy import stream
from torch_galley.capture.lazy.flush import flush
from torch_galley.core.errors import CaptureError


class NotBuilt(CaptureError, AttributeError):
    """A feature of torch.<device> that the xla device hasn't got; hasattr() says so too."""


class Stream:
    """A stream of the xla device. All are one."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.device = torch.device("xla", 0)

    def query(self) -> bool:
        """Whether its work is over."""
        return True

    def synchronize(self) -> None:
        """Run what was recorded."""
        flush("sync")

    def wait_event(self, event: Any) -> None:
        """Do nothing: what comes later runs later."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: what comes later runs later."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event recorded now."""
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)


class Event:
    """A point in the program. It has a time if it was made with `enable_timing=True`."""

    def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any):
        self._timed, self._at = enable_timing, 0.0

    def record(self, stream: Any = None) -> None:
        """Note that the program has come here; to tell the time, run what was recorded."""
        if self._timed:
            flush("sync")
            self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: what comes later runs later."""

    def query(self) -> bool:
        """Whether what was before it is over."""
        return True

    def synchronize(self) -> None:
        """Run what was recorded."""
        flush("sync")

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events that were made with `enable_timing`."""
        if not (self._timed and end._timed):
            raise CaptureError(
                "these events have no times", hint="make them with enable_timing=True"
            )
        return (end._at - self._at) * 1000


class Module:
    """`torch.xla`."""

    __name__ = "torch.xla"
    Stream = Stream
    Event = Event

    class device:
        """The context manager `torch.xla.device(index)`; there is one device."""

        def __init__(self, device: Any = 0):
            self.index = device

        def __enter__(self) -> None:
            pass

        def __exit__(self, *args: object) -> None:
            pass

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: Any = None) -> str:
        return "XLA:CPU"

    def synchronize(self, device: Any = None) -> None:
        flush("sync")

    def current_stream(self, device: Any = None) -> Stream:
        return Stream()

    def default_stream(self, device: Any = None) -> Stream:
        return Stream()

    def set_stream(self, stream: Any) -> None:
        pass

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def empty_cache(self) -> None:
        pass  # memory that nobody can read any more is free at once

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        stream.restart()  # seeds come from the CPU generator, which torch.manual_seed seeds

    def manual_seed_all(self, seed: int) -> None:
        stream.restart()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def __getattr__(self, name: str) -> Any:
        raise NotBuilt(
            f"torch.xla.{name} isn't built yet", hint="see docs/errors.md for what the device has"
        )


def patch_torch() -> None:
    """Make what torch offers no hook for work with the device, and as before without."""
    _patch_generator()
    _patch_synchronize()
    stream.patch_states()


def _patch_generator() -> None:
    base = torch._C.Generator

    class Like(type(base)):
        def __instancecheck__(cls, other: object) -> bool:
            return isinstance(other, base)

    class Generator(base, metaclass=Like):  # type: ignore[misc]
        """torch.Generator; for the xla device one of the CPU, where its numbers are drawn."""

        def __new__(cls, device: Any = "cpu") -> Any:
            here = torch.device(device).type == "xla"
            return base.__new__(base, torch.device("cpu") if here else device)  # pyright: ignore

    torch.Generator = Generator  # type: ignore[misc]


def _patch_synchronize() -> None:
    theirs = torch.accelerator.synchronize

    def synchronize(device: Any = None, /) -> None:
        if device is None or torch.device(device).type == "xla":
            flush("sync")
        else:
            theirs(device)

    torch.accelerator.synchronize = synchronize
