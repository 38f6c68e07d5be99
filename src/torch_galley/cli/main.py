"""The command line: finds the verb, hands over the arguments, turns errors into messages."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from torch_galley.core.errors import GalleyError

VERBS = {
    "demo": "run BERT-base in eager and compiled, and show what it cost and gained",
    "run": "run a torch_xla script unchanged",
    "explain": "show what of a model goes into XLA, what does not, and why",
    "report": "show the same as a page, with borders, what XLA made of it, what would help",
    "ops": "tell whether an operator is supported, and how",
    "cluster": "cut a graph of named operations into clusters",
    "calibrate": "measure what things take here, to judge clusters by",
    "version": "print the versions of galley and of what it stands on",
}
"""Each verb and its line of help. `galley VERB` is the module torch_galley.cli.VERB, which has
`add_parser(subparsers)` and `run(args) -> int` and is imported only when the verb is used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `galley`; return the exit code: 0, 1 (a verb's own no), 2 (an error).

    Example: `main(["cluster", "graph.json"])`
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except GalleyError as error:
        return _say(error)
    except KeyboardInterrupt:
        print("galley: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence()  # the reader has gone, as in `galley ... | head`
        return 141
    except SystemExit as stop:  # from argparse, which has printed its message, or from a script
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is not None:
            raise
        _silence()
        print(f"galley: error: can't write the output: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        inner = getattr(error, "inner_exception", None)  # Dynamo wraps what a backend raises
        if isinstance(inner, GalleyError):
            return _say(inner)
        raise


def _silence() -> None:
    """Drop what is still to be printed: Python would try again at exit, and complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: GalleyError) -> int:
    print(f"galley: error: {error}", file=sys.stderr)
    return 2


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        arguments = ["version"]
    if arguments and arguments[0].endswith(".py"):
        arguments = ["run", *arguments]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    verb = arguments[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "galley --help lists the verbs"
        kind = "option" if verb.startswith("-") else "verb"
        print(f"galley: error: unknown {kind} {verb!r}\n  hint: {hint}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"torch_galley.cli.{verb}")
    parser = argparse.ArgumentParser(prog="galley")
    module.add_parser(parser.add_subparsers(metavar="VERB"))
    passes_on = getattr(module, "passes_on", False)
    args = parser.parse_args(arguments[:2] if passes_on else arguments)
    if passes_on:
        args.args = arguments[2:]
    code = module.run(args)
    if sys.stdout is not None:
        sys.stdout.flush()  # here, so that a reader that has gone is noticed above
    return code


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {line}" for verb, line in VERBS.items())
    return f"""\
galley: PyTorch on XLA, with the lid off

usage: galley VERB [arguments]

verbs:
{verbs}

galley VERB --help tells more of one. In Python: torch.compile(model, backend="galley")"""
