"""galley report: what of a model goes into XLA, as text, web page, JSON, DOT or bundle."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torch_galley.cli.explain import add_call, called
from torch_galley.cluster import seed
from torch_galley.core.errors import ToolError
from torch_galley.core.store import write_file
from torch_galley.observe.bundle import is_bundle
from torch_galley.tools.report import others
from torch_galley.tools.report.report import Report

_ABOUT = """\
Show which operations of a model XLA takes, in which clusters, what crosses their borders,
what XLA made of them, why the others run natively, and what would be gained if they did not.

TARGET is what galley explain takes (path/to/file.py:NAME or package.module:NAME), or the
folder of a bundle, or a graph of named operations as galley cluster takes it (a .json file).

Without -o, --bundle, --dot and --json, the report is printed as text."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "report", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="TARGET", help="what to report on")
    parser.add_argument("-o", "--output", metavar="PAGE.html", help="write one static web page")
    parser.add_argument("--bundle", metavar="DIR", help="write a bundle, which TARGET may name")
    parser.add_argument("--dot", metavar="FILE", help="write the graphs for Graphviz")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--all", action="store_true", help="show all entry and exit points")
    parser.add_argument(
        "--against", metavar="BUNDLE", help="print what is different from an earlier report"
    )
    parser.add_argument("--no-compile", action="store_true", help="don't ask XLA")
    parser.add_argument(
        "--measure", action="store_true", help="call the model a dozen times and measure clusters"
    )
    parser.add_argument(
        "--no-source", action="store_true", help="keep lines of the source out of what is written"
    )
    add_call(parser)


def run(args: argparse.Namespace) -> int:
    """Write and print what was asked for.

    Raises:
        ConfigError: an unknown setting.
        ToolError: the target isn't there, has no inputs, or raises; a bundle is broken; a file
            can't be written.
    """
    earlier = Report.load(args.against) if args.against else None  # before minutes are spent
    found = _report(args)
    if args.no_source:
        found = found.without_source()
    written = []
    if args.output:
        write_file(Path(args.output), found.to_html())
        written.append(args.output)
    if args.bundle:
        written.append(str(found.save(args.bundle)))
    if args.dot:
        write_file(Path(args.dot), found.to_dot())
        written.append(args.dot)
    if earlier is not None:
        difference = earlier.diff(found)
        print(json.dumps(difference.to_json(), indent=2) if args.json else difference.text())
    elif args.json:
        print(json.dumps(found.to_json(), indent=2))
    elif not written:
        print(found.text(limit=None if args.all else 8))
    for path in written:
        if not args.json:
            print(f"wrote {path}")
    return 0


def _report(args: argparse.Namespace) -> Report:
    path = Path(args.target)
    if args.target.endswith(".json"):
        _calls_nothing(args, "a graph")
        return others.of_seed(seed.load(path))
    if is_bundle(path):
        _calls_nothing(args, "a bundle")
        return Report.load(path)
    if path.is_dir():
        hint = "galley report TARGET --bundle DIR makes one"
        raise ToolError(f"{path} is a folder, and no bundle", hint=hint)
    if args.measure and args.no_compile:
        raise ToolError("--measure needs the compiler", hint="leave --no-compile out")
    return called(args, compiled=not args.no_compile, measured=args.measure)


def _calls_nothing(args: argparse.Namespace, what: str) -> None:
    """Refuse flags that say how a model is called, where none is."""
    flags = {"--options": args.options, "--deny": args.deny, "--no-grad": args.no_grad}
    flags |= {"--measure": args.measure, "--no-compile": args.no_compile}
    if given := [flag for flag, value in flags.items() if value]:
        message = f"{args.target} is {what}, for which {', '.join(given)} would change nothing"
        raise ToolError(message, hint="leave it out, or name the model")
