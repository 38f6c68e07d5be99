"""One frozen Config. Every setting is declared once: its type, its default, a line of doc.

A setting `name` is given, later ones winning, by the environment variable `GALLEY_NAME`, by
`with torch_galley.config(name=...)`, or by `torch.compile(..., options={"name": ...})`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_galley.core.errors import ConfigError


def _setting(
    default: Any,
    doc: str,
    choices: tuple[Any, ...] = (),
    minimum: float | None = None,
    joined: str = "",
):
    """Declare a setting; `joined` is what the names in an entry of a list have between them."""
    meta = {"doc": doc, "choices": choices, "minimum": minimum, "joined": joined}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Config:
    """All settings.

    Example:
        >>> Config(min_cluster_size=1).decide
        'size'
    """

    decide: str = _setting(
        "size",
        "How a cluster earns its keep: 'size' keeps those of min_cluster_size, 'model' only what "
        "is predicted to pay, 'measure' times what is in doubt at the first call, 'replay' takes "
        "what was measured before, and the prediction for the rest.",
        ("size", "model", "measure", "replay"),
    )
    min_cluster_size: int = _setting(
        4, "Fewest operations a cluster must have; views and constants do not count.", minimum=1
    )
    min_speedup: float = _setting(
        1.1, "Lowest predicted speed-up at which a cluster is kept, where that decides.", minimum=0
    )
    time_all: bool = _setting(
        False, "Under decide='measure', time every cluster, not only those in doubt."
    )
    native: str = _setting(
        "eager",
        "What else may run a whole graph where that is measured: 'eager', or also 'inductor'.",
        ("eager", "inductor"),
    )
    decisions: str | None = _setting(
        None, "File of what was measured, to be shipped and replayed; none given: in cache_dir."
    )
    cache_dir: str | None = _setting(
        None, "Folder for what is measured on this machine; none given: ~/.cache/torch-galley."
    )
    max_cluster_size: int = _setting(
        0, "Most operations a cluster may have, getitem not counted; 0 for no limit.", minimum=0
    )
    order: str = _setting(
        "auto",
        "How clusters grow: 'topo' from the last operation on, 'bytes' along the heaviest tensors "
        "first, 'auto' the cheaper border of both, 'topo' beyond 20,000 operations.",
        ("auto", "topo", "bytes"),
    )
    search_budget: int = _setting(
        256,
        "Operations that are looked at to find whether two clusters can be one, at most; when "
        "that is not enough they stay two.",
        minimum=1,
    )
    horizontal: bool = _setting(
        False, "Let operations share a cluster that no dependency holds together."
    )
    refine: bool = _setting(
        True, "Compute cheap operations twice, and leave views out of clusters, where that pays."
    )
    allow_ops: tuple[str, ...] = _setting((), "Operators that XLA may have; none given: all.")
    deny_ops: tuple[str, ...] = _setting(
        (), "Operators kept out of XLA, such as 'aten.gelu' or 'aten.add.Tensor'."
    )
    allow_nodes: tuple[str, ...] = _setting(
        (), "Names or patterns ('add_*') of operations that XLA may have; none given: all."
    )
    deny_nodes: tuple[str, ...] = _setting(
        (), "Names or patterns ('add_*') of operations kept out of XLA."
    )
    allow_modules: tuple[str, ...] = _setting(
        (), "Paths or patterns ('encoder.layer.*') of modules XLA may have; none given: all."
    )
    deny_modules: tuple[str, ...] = _setting(
        (), "Paths or patterns ('encoder.layer.*') of modules kept out of XLA."
    )
    must_compile: tuple[str, ...] = _setting(
        (),
        "Names or patterns of operations, or paths of modules: a cluster with one of these is "
        "kept, however small.",
    )
    groups: tuple[str, ...] = _setting(
        (),
        "Names or patterns of operations, or paths of modules, several joined by '+'; what an "
        "entry means is in one cluster, or native as a whole.",
        joined="+",
    )
    scopes: tuple[str, ...] = _setting(
        (), "Paths or patterns of modules; operations of different ones share no cluster."
    )
    fuel: int = _setting(
        -1, "Operations of a graph, the first ones, that XLA may have; -1 for all.", minimum=-1
    )
    require_full: bool = _setting(
        False,
        "Raise, listing them, if any operation would run natively; a result that is a view may.",
    )
    dry_run: bool = _setting(
        False, "Cut graphs and report, but compile nothing: everything runs natively."
    )
    strict: bool = _setting(
        False, "Raise when a lowering fails, instead of running that operator natively."
    )
    compile: str = _setting(
        "now",
        "When clusters are compiled: 'now', while a graph is built, 'lazy' at their first "
        "execution, 'background' from then on, running natively meanwhile.",
        ("now", "lazy", "background"),
    )
    compile_workers: int = _setting(
        1, "Processes that compile in the background, at most.", minimum=1
    )
    recompile_after: int = _setting(
        1,
        "How often other shapes than its first must come before a cluster is compiled for them, "
        "too; until then it runs natively.",
        minimum=1,
    )
    recompile_limit: int = _setting(
        64,
        "Shapes for which a cluster is compiled besides its first; if it ran less than "
        "recompile_runs times for each by then, it runs natively for all others. 0 for no limit.",
        minimum=0,
    )
    recompile_runs: int = _setting(50, "See recompile_limit.", minimum=1)
    check_indices: bool = _setting(
        True,
        "Raise on an index out of range, a division by zero, a singular matrix, as eager does.",
    )
    rng: str = _setting(
        "xla",
        "Who draws random numbers: 'xla' from a seed that each call takes from torch's generator, "
        "or 'native', torch's own operators, with eager's very numbers.",
        ("xla", "native"),
    )
    cache_size: int = _setting(
        512, "Executables kept in memory; the least recently used go first.", minimum=1
    )
    mode: str = _setting(
        "lazy",
        "When the xla device runs: 'lazy' when a value is asked for, 'eager' and 'blocking' at "
        "each operation, waiting for its result.",
        ("lazy", "eager", "blocking"),
    )
    max_pending: int = _setting(
        8_000,
        "Operations that the xla device records without a sync or a read, at most.",
        minimum=1,
    )
    max_pending_bytes: int = _setting(
        2**31,
        "Bytes that are brought to the xla device without a sync or a read, at most.",
        minimum=1,
    )
    dump_dir: str | None = _setting(
        None, "Write each compiled cluster's StableHLO and HLO into this folder."
    )


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config)}
_VARIABLES = {name: f"GALLEY_{name.upper()}" for name in _DEFAULTS}


def _parse(name: str, text: str, origin: str) -> Any:
    """Turn the text of an environment variable into the setting's type."""
    default = next(f for f in dataclasses.fields(Config) if f.name == name).default
    if isinstance(default, bool):
        words = {"1": True, "true": True, "yes": True, "on": True}
        words |= {"0": False, "false": False, "no": False, "off": False}
        if text.strip().lower() not in words:
            raise ConfigError(f"{origin}={text!r} is no yes or no", hint="use 1 or 0")
        return words[text.strip().lower()]
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise ConfigError(
                f"{origin}={text!r} is no whole number", hint="such as 1000"
            ) from None
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{origin}={text!r} is no number", hint="such as 1.5") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _checked(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return `values` with lists made tuples, or raise ConfigError naming the bad entry."""
    fields = {f.name: f for f in dataclasses.fields(Config)}
    out: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
            raise ConfigError(f"unknown setting {name!r} in {origin}", hint=hint, setting=name)
        meta, default = fields[name].metadata, fields[name].default
        if isinstance(default, tuple) and isinstance(value, list | tuple | set | frozenset):
            value = tuple(str(item) for item in value)
        kind = str if default is None else type(default)
        if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
            value = float(value)
        wrong_type = not (isinstance(value, kind) or (default is None and value is None))
        if wrong_type or (kind is int and isinstance(value, bool)):
            named = {tuple: "a list", int: "an int"}.get(kind, f"a {kind.__name__}")
            hint = f"give {named}"
            raise ConfigError(f"setting {name!r} in {origin} is {value!r:.60}", hint=hint)
        if meta["choices"] and value not in meta["choices"]:
            choices = ", ".join(map(repr, meta["choices"]))
            raise ConfigError(
                f"setting {name!r} in {origin} is {value!r}", hint=f"one of {choices}"
            )
        if meta["minimum"] is not None and not value >= meta["minimum"]:  # so that NaN is caught
            raise ConfigError(
                f"setting {name!r} in {origin} is {value!r}", hint=f"at least {meta['minimum']}"
            )
        if isinstance(value, tuple) and (empty := _nameless(value, meta["joined"])) is not None:
            raise ConfigError(
                f"setting {name!r} in {origin} has the entry {empty!r}",
                hint="write a name, or leave the entry out",
            )
        if default is None and isinstance(value, str) and value:
            value = _path(name, value, origin)
        out[name] = value
    return out


def _nameless(entries: tuple[str, ...], joined: str) -> str | None:
    """Return the first entry that lacks a name, if one does."""
    parts = {entry: entry.split(joined) if joined else [entry] for entry in entries}
    return next((entry for entry in entries if not all(map(str.strip, parts[entry]))), None)


def _path(name: str, path: str, origin: str) -> str:
    """Return a path without "~", or raise ConfigError if there can be no such path."""
    if "\0" in path:
        raise ConfigError(
            f"setting {name!r} in {origin} is {path!r}", hint="a path has no null character"
        )
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        raise ConfigError(
            f"setting {name!r} in {origin} is {path!r}, and there is no such user",
            hint="write the whole path, or ./~ for a name that begins so",
        ) from None


def parse_setting(text: str) -> dict[str, Any]:
    """Return the setting in "name=value", as a command line has it.

    Example:
        >>> parse_setting("deny_ops=aten.gelu,aten.add.Tensor")
        {'deny_ops': ('aten.gelu', 'aten.add.Tensor')}

    Raises:
        ConfigError: no "=", an unknown name, or a value of a wrong type.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} sets nothing", hint="write name=value")
    if name not in {f.name for f in dataclasses.fields(Config)}:
        return _checked({name: value}, "options")  # raises, with the nearest name
    return _checked({name: _parse(name, value, name)}, "options")


_overlay: ContextVar[dict[str, Any] | None] = ContextVar("galley_config", default=None)


def _from_environment() -> dict[str, Any]:
    known = {variable: name for name, variable in _VARIABLES.items()}
    out: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith("GALLEY_") or not text:  # set to nothing is not set
            continue
        if variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{variable} is set, and no setting of ours", hint=hint)
        name = known[variable]
        out |= _checked({name: _parse(name, text, variable)}, variable)
    return out


def current(options: Mapping[str, Any] | None = None) -> Config:
    """Return the settings in force: environment, then `config(...)`, then `options`.

    Raises:
        ConfigError: an unknown name, a wrong type, or a value out of range.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"options is {options!r:.60}", hint="give a dict of settings")
    values = _from_environment() | (_overlay.get() or {})
    return Config(**(values | _checked(options or {}, "options")))


def setting(name: str) -> Any:
    """Return one setting alone, soon: some are asked for at every operation of the xla device.

    Example:
        >>> setting("mode")
        'lazy'
    """
    overlay = _overlay.get()
    if overlay and name in overlay:
        return overlay[name]
    return getattr(current(), name) if os.environ.get(_VARIABLES[name]) else _DEFAULTS[name]


@contextlib.contextmanager
def config(**settings: Any) -> Iterator[Config]:
    """Change settings for the graphs captured inside the `with` block.

    As with torch.no_grad, a thread that is started inside has the settings of the environment. To
    hand these on, start it with `target=contextvars.copy_context().run, args=(function,)`.

    Example:
        >>> with config(min_cluster_size=1) as now:
        ...     now.min_cluster_size
        1
    """
    token = _overlay.set((_overlay.get() or {}) | _checked(settings, "config()"))
    try:
        yield current()
    finally:
        _overlay.reset(token)
