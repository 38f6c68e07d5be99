"""Handlers of XLA's FFI, compiled for tests."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from shutil import which

import jax
import pytest


def load_handlers(folder: Path, source: str) -> ctypes.CDLL:
    """Compile C++ and load it; skip the test where there is no compiler."""
    compiler = which("c++") or which("g++") or which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to make a handler of XLA's FFI with")
    (folder / "handlers.cc").write_text(source)
    include = f"-I{jax.ffi.include_dir()}"
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-w", include, "handlers.cc"]
    subprocess.run([*command, "-o", "handlers.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "handlers.so"))
