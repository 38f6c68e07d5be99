"""What a measured time depends on besides the program, as text that can be a key."""

from __future__ import annotations

import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import torch


def versions() -> str:
    """Return what computes: the packages and their versions, and how many threads they may use.

    Example: "torch 2.13.0+cpu, jaxlib 0.10.2, 2 threads"
    """
    return f"{_packages()}, {torch.get_num_threads()} threads"


@cache
def _packages() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "jaxlib"))


def machine(device: str = "cpu") -> str:
    """Return a device of this machine, with `versions`.

    Example: "cpu: AMD EPYC 9B45, torch 2.13.0+cpu, jaxlib 0.10.2, 2 threads"
    """
    name = _processor() if device == "cpu" else torch.cuda.get_device_name()
    return f"{device}: {name}, {versions()}"


@cache
def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
