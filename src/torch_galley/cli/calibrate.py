"""galley calibrate: measure what things take here, so that clusters are judged by it."""

from __future__ import annotations

import argparse
import json
import sys

from torch_galley.core.config import config as settings
from torch_galley.core.config import parse_setting

_ABOUT = """\
Measure, in a few seconds, what an operation, a tensor handed over, a byte, a product
and so on take on this machine, natively and in XLA. decide="model" and "measure" judge
clusters by these rates; without them they use shipped ones.

They are kept in rates.json in ~/.cache/torch-galley (XDG_CACHE_HOME or the setting
cache_dir move it), by processor, threads, and versions of torch and jaxlib. Run it again
after one of these has changed, on a machine that does nothing else.

Exit code 1 says that they could not be kept."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "calibrate", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting, such as cache_dir=FOLDER",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, keep and print the rates; 1 if they could not be kept.

    Raises:
        ConfigError: an unknown setting, or a wrong value.
    """
    from torch_galley.tools.calibrate import calibrate, table  # here: a wrong setting is told soon

    chosen = {name: value for text in args.set for name, value in parse_setting(text).items()}
    with settings(**chosen) as now:
        found = calibrate(now)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print(found.machine)
        rows = [("", "natively", "in XLA", ""), *table(found.rates)]
        for name, natively, in_xla, meaning in rows:
            print(f"{name:<12} {natively:>14} {in_xla:>14}  {meaning}".rstrip())
        print(f"kept in {found.file}" if found.kept else "not kept")
    if found.problem:
        print(f"galley: {found.problem}" + ("; replaced" if found.kept else ""), file=sys.stderr)
    return 0 if found.kept else 1
