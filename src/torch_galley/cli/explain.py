"""galley explain: what of a model goes into XLA, what does not, and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

import torch

from torch_galley.core.config import parse_setting
from torch_galley.core.errors import GalleyError
from torch_galley.tools import target
from torch_galley.tools.explain import told
from torch_galley.tools.report.report import Report

_ABOUT = """\
Show which operations of a model XLA takes, in which clusters, and why the others run
natively, each with its line. The model is called once, natively; no gradient is computed,
but the backward graph is shown if there would be one.

TARGET is path/to/file.py:NAME or package.module:NAME. NAME is a function or an nn.Module,
and its inputs are NAME_inputs or example_inputs of the same module: a tuple, or a function
that returns one. Or NAME is a function without parameters that returns (function, inputs)."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb's arguments."""
    parser = subparsers.add_parser(
        "explain", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="TARGET", help="what to explain")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--all", action="store_true", help="show all entry and exit points")
    parser.add_argument("--node", metavar="NAME", help="what was decided about one operation")
    parser.add_argument(
        "--why-not", nargs=2, metavar=("A", "B"), help="why two operations share no cluster"
    )
    add_call(parser)


def add_call(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say how a target is called."""
    parser.add_argument("--no-grad", action="store_true", help="as under torch.no_grad()")
    parser.add_argument(
        "--options",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings, such as min_cluster_size=1",
    )
    parser.add_argument(
        "--deny",
        action="append",
        default=[],
        metavar="OP",
        help="keep an operator out of XLA, such as aten.gelu; may be given again",
    )


def called(args: argparse.Namespace, *, compiled: bool = False, measured: bool = False) -> Report:
    """Return the report of the target that the arguments name.

    Raises:
        ConfigError: an unknown setting.
        ToolError: the target isn't there, has no inputs, or raises.
    """
    options = {}
    for text in args.options:
        options |= parse_setting(text)
    if args.deny:
        options["deny_ops"] = (*options.get("deny_ops", ()), *args.deny)
    grad = torch.no_grad() if args.no_grad else contextlib.nullcontext()
    with contextlib.redirect_stdout(sys.stderr), grad:  # what the model prints is no answer
        found = target.load(args.target)
        try:
            return told(
                found.function,
                found.args,
                found.kwargs,
                options,
                compiled=compiled,
                measured=measured,
            )
        except GalleyError:
            raise
        except Exception as error:
            raise target.raised(args.target, error) from error


def run(args: argparse.Namespace) -> int:
    """Print the explanation.

    Raises:
        ConfigError: an unknown setting.
        ToolError: the target isn't there, has no inputs, or raises; an unknown operation.
    """
    found = called(args)
    if args.node:
        chain = found.explain(args.node)
        print(json.dumps({"node": args.node, "chain": chain.split("\n")}) if args.json else chain)
    elif args.why_not:
        why = found.why_not(*args.why_not)
        print(json.dumps(why.to_json(), indent=2) if args.json else why.text())
    elif args.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print(found.text(limit=None if args.all else 8))
    return 0
