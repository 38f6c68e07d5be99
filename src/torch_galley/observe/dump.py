"""Writes what each cluster became: StableHLO, HLO before and after optimisation.

Switched on by the setting `dump_dir`. A cluster's folder is written under a temporary name and
renamed, so that a folder that is there is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torch_galley.core.errors import ToolError
from torch_galley.core.events import ClusterCompiled, Event, listen

if TYPE_CHECKING:
    from torch_galley.compile.client import Compiled


def _on_event(event: Event) -> None:
    if isinstance(event, ClusterCompiled):
        folder = event.compiled.lowered.config.dump_dir
        if folder is not None:
            dump(event.compiled, folder)


listen(_on_event)


def dump(compiled: Compiled, folder: str) -> Path:
    """Write a compiled cluster into `folder`/<cluster name> and return that path.

    An older folder of that name is replaced: names follow from the program, so it is of the same.

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
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{lowered.name}-", dir=folder))
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        if target.exists():
            stale = Path(tempfile.mkdtemp(prefix=".stale-", dir=folder))
            os.replace(target, stale / "old")
            shutil.rmtree(stale, ignore_errors=True)
        os.replace(fresh, target)
    except OSError as error:
        raise ToolError(f"can't write the dump {target}: {error}", hint="check dump_dir") from error
    return target
