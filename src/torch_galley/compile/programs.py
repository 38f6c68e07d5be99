"""The way from the clusters of one graph to their executables, made now or in the background."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache

from torch_galley.cluster.clustered import Clustered, XlaCluster
from torch_galley.compile import flags
from torch_galley.compile.background import Background
from torch_galley.compile.cache import CacheKey, ExecutableCache
from torch_galley.compile.client import Build, Compiled, compile, start_client
from torch_galley.compile.engine import engine
from torch_galley.compile.key import key_of, lowerings, program_text
from torch_galley.core.config import current
from torch_galley.core.lock import fork_safe_lock
from torch_galley.lower.driver import Argument, lower, platform_of
from torch_galley.lower.symbol import Bindings

_making = fork_safe_lock()


def executables() -> ExecutableCache[Compiled]:
    """The process's executables."""
    with _making:
        return _executables()


@cache
def _executables() -> ExecutableCache[Compiled]:
    return ExecutableCache(current().cache_size)


def background() -> Background:
    """The process's pool that compiles in the background."""
    with _making:
        return _background()


@cache
def _background() -> Background:
    return Background(current().compile_workers)


class Programs:
    """Finds and makes the executables of a clustered graph's clusters.

    What it has given out counts as used by a living plan until nobody refers to it any more.
    """

    def __init__(self, clustered: Clustered):
        self.config = clustered.captured.config
        self._texts = {cluster.name: program_text(cluster) for cluster in clustered.clusters}
        self.recompiles_told = False
        """Whether somebody warned that a cluster is compiled for no further shapes: of a graph's
        equal layers, one tells for all."""
        self._held: set[CacheKey] = set()
        weakref.finalize(self, executables().release, self._held).atexit = False

    def key(
        self, cluster: XlaCluster, arguments: Sequence[Argument], bindings: Bindings
    ) -> CacheKey:
        """Return the key of the executable for a cluster and given inputs."""
        # A dump is part of the key: an executable that is there already would write none. So is
        # what a user's lowering is by now: the same name may mean another function.
        settings = (self.config.check_indices, self.config.dump_dir, lowerings(cluster))
        return key_of(self._texts[cluster.name], arguments, bindings, settings)

    def find(self, key: CacheKey) -> Compiled | None:
        """Return the executable if it has been made."""
        found = executables().find(key)
        if found is not None:
            self._hold(key)
        return found

    def make(
        self,
        key: CacheKey,
        cluster: XlaCluster,
        arguments: Sequence[Argument],
        bindings: Bindings,
        build: Build | None = None,
    ) -> Compiled:
        """Return the executable, made if there is none.

        Raises:
            LoweringError: the cluster can't be lowered.
            CompileError: XLA refused it.
        """
        made = executables().get(
            key, lambda: compile(lower(cluster, arguments, bindings, self.config), build)
        )
        self._hold(key)
        return made

    def make_later(
        self,
        key: CacheKey,
        cluster: XlaCluster,
        arguments: Sequence[Argument],
        bindings: Bindings,
    ) -> Future[Compiled]:
        """Have the executable made in the background."""
        # Here, so that whoever forks this process knows that XLA runs in it, and that a warning
        # about XLA_FLAGS comes from the thread that changed them.
        start_client()
        flags.check_unchanged()
        engine(platform_of(cluster))
        return background().submit(
            key, lambda build: self.make(key, cluster, arguments, bindings, build)
        )

    def _hold(self, key: CacheKey) -> None:
        if key not in self._held:
            self._held.add(key)
            executables().hold(key)
