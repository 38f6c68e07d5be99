"""The command line: arguments in, a verb's module called, its status out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_galley.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run `galley` with the given arguments and return the exit status."""
    parser = argparse.ArgumentParser(prog="galley", description="PyTorch on XLA.")
    subparsers = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (run,):
        verb.add_parser(subparsers)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
