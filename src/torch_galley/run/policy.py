"""When a cluster is compiled, and when it had better run natively.

Each shape, dtype and layout of a cluster's inputs (a signature) needs an executable of its own. The
first signature is always compiled: while the graph is built, at the first call, or in the
background. Further ones are compiled at once too, unless settings ask that they come several
times first; and no more of them where compiling does not pay: many signatures, each run
a few times.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from torch_galley.cluster.clustered import XlaCluster
from torch_galley.compile.cache import CacheKey
from torch_galley.compile.client import Compiled
from torch_galley.compile.programs import Programs
from torch_galley.core.events import RecompilesStopped, Warned, emit
from torch_galley.core.site import site_of
from torch_galley.lower.driver import Argument
from torch_galley.lower.symbol import Bindings, symbols_of

_REMEMBERED = 4096
"""Signatures whose coming is counted, at most."""


class Policy:
    """Decides for one cluster of a plan. Safe to ask from several threads."""

    def __init__(self, cluster: XlaCluster, programs: Programs):
        self.cluster = cluster
        self.runs = 0
        """Executions with other inputs than the call before, or shapes that vary."""
        self.cause = ""
        """Why the last question got no executable: see ClusterRanNatively."""
        self.at_once = False
        """Whether to compile here and now, whatever the settings say."""
        self._programs = programs
        self._config = programs.config
        self._compiled: set[CacheKey] = set()
        self._jobs: dict[CacheKey, Future[Compiled]] = {}
        self._seen: Counter[CacheKey] = Counter()
        self._values: dict[Any, set[Any]] = {}
        self._stopped = False

    def make(self, arguments: Sequence[Argument], bindings: Bindings) -> Compiled:
        """Return the executable for inputs like these, made here and now if there is none.

        Raises:
            LoweringError: the cluster can't be lowered.
            CompileError: XLA refused it.
        """
        key = self._programs.key(self.cluster, arguments, bindings)
        self._note(key, bindings)
        return self._programs.make(key, self.cluster, arguments, bindings)

    def executable(self, arguments: Sequence[Argument], bindings: Bindings) -> Compiled | None:
        """Return the executable for inputs like these; None: run the cluster natively.

        Raises:
            LoweringError: the cluster can't be lowered.
            CompileError: XLA refused it, now or in the background.
        """
        if self.at_once:
            return self.make(arguments, bindings)
        key = self._programs.key(self.cluster, arguments, bindings)
        found = self._programs.find(key)
        if found is not None:
            self._note(key, bindings)
            self._jobs.pop(key, None)
            return found
        job = self._jobs.get(key)
        if job is not None:
            if not job.done():
                self.cause = "compiling"
                return None
            error = job.exception()
            if error is not None:
                raise error.with_traceback(None)  # or it would grow with each call
            self._jobs.pop(key, None)
        if not self._may_compile(key):
            return None
        self._note(key, bindings)
        if self._config.compile == "background":
            self._jobs[key] = self._programs.make_later(key, self.cluster, arguments, bindings)
            self.cause = "compiling"
            return None
        return self._programs.make(key, self.cluster, arguments, bindings)

    def _note(self, key: CacheKey, bindings: Bindings) -> None:
        """Note a signature that has an executable, or will have one."""
        if key not in self._compiled:
            self._compiled.add(key)
            for symbol, value in bindings.items():
                self._values.setdefault(symbol, set()).add(value)

    def _may_compile(self, key: CacheKey) -> bool:
        config, compiles = self._config, len(self._compiled)
        if config.strict or not compiles or key in self._compiled:
            return True
        limit = config.recompile_limit
        too_many = limit and compiles > limit and self.runs < compiles * config.recompile_runs
        if too_many and not self._stopped:
            self._stopped = True
            self._tell(compiles)
        if self._stopped:
            self.cause = "limit"
            return False
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[key] += 1
        self.cause = "rare"
        return self._seen[key] >= config.recompile_after

    def _tell(self, compiles: int) -> None:
        cluster = self.cluster
        emit(RecompilesStopped(cluster, compiles, self.runs))
        if self._programs.recompiles_told:
            return
        self._programs.recompiles_told = True
        site = next((site for node in cluster.nodes if (site := site_of(node.meta))), None)
        varying = "; ".join(filter(None, map(self._varying, self._values)))
        message = (
            f"{cluster.name} was compiled for {compiles} shapes of its inputs and ran "
            f"{self.runs} times; it runs natively from now on for shapes that it was not compiled "
            f"for{f' ({varying})' if varying else ''}\n"
            f"{f'  at {site}{chr(10)}' if site else ''}"
            "  hint: pad inputs to a few sizes, or raise recompile_limit (0: no limit); other "
            "clusters of its graph may follow without a word"
        )
        emit(Warned(message))
        warnings.warn(message, stacklevel=2)

    def _varying(self, symbol: Any) -> str:
        """Return where a size occurs and what it was, nothing if it was always the same."""
        values = self._values[symbol]
        if len(values) < 2:
            return ""
        places = [
            f"dimension {dim} of {node.name}"
            for node in self.cluster.inputs
            for dim, size in enumerate(node.meta["val"].shape)
            if symbol in symbols_of(size)
        ]
        return f"{places[0] if places else symbol}: {min(values)} to {max(values)}"
