"""Writes what each cluster became: StableHLO, HLO before and after optimisation.

Switched on by the setting `dump_dir`. Each file is written under a temporary name and renamed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torch_galley.core.errors import ToolError
from torch_galley.core.events import ClusterCompiled, Event, GraphBuilt, listen
from torch_galley.core.store import write_file

if TYPE_CHECKING:
    from torch_galley.compile.client import Compiled


def _on_event(event: Event) -> None:
    if isinstance(event, GraphBuilt):
        folder = event.plan.clustered.captured.config.dump_dir
        if folder is not None:
            _check(Path(folder))
    if isinstance(event, ClusterCompiled):
        folder = event.compiled.lowered.config.dump_dir
        if folder is not None:
            dump(event.compiled, folder)


listen(_on_event)


def _check(folder: Path) -> None:
    """Tell of a folder that can't be written now: there may be nothing to compile.

    Raises:
        ToolError: it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        message = f"can't write to dump_dir {str(folder)!r}: {error}"
        raise ToolError(message, hint="name a folder to write in") from error


def dump(compiled: Compiled, folder: str) -> Path:
    """Write a compiled cluster into `folder`/<cluster name> and return that path.

    Older files of that name are replaced: names follow from the program, so they are of the same.

    Raises:
        ToolError: the folder can't be written.
    """
    lowered = compiled.lowered
    target = Path(folder) / lowered.name
    files = {
        "stablehlo.mlir": lowered.text(),
        "before_optimizations.hlo": lowered.hlo(),
        "after_optimizations.hlo": compiled.hlo(),
        "sites.json": json.dumps({n: str(s or "") for n, s in lowered.sites.items()}, indent=1),
    }
    for name, text in files.items():
        write_file(target / name, text)
    return target
