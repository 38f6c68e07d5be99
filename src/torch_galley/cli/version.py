"""galley version: what is installed, and whether it is new enough."""

from __future__ import annotations

import argparse
import platform

from torch_galley import __version__
from torch_galley.core.versions import installed


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb, which takes no arguments."""
    subparsers.add_parser("version", description="Print the versions of galley and its needs.")


def run(args: argparse.Namespace) -> int:
    """Print a line per package; 1 if one is missing or too old."""
    print(f"galley  {__version__}")
    print(f"python  {platform.python_version()}")
    packages = installed()
    for one in packages:
        verdict = "ok" if one.fits else f"needs {one.needed} or newer"
        print(f"{one.package:<7} {one.version or 'not installed':<14} {verdict}")
    return 0 if all(one.fits for one in packages) else 1
