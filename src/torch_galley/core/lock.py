"""A lock that a fork does not find taken."""

from __future__ import annotations

import os
import threading


def fork_safe_lock() -> threading.Lock:
    """Return a lock for short work: a fork waits for it, so that it is free in the child.

    Another thread that holds an ordinary lock doesn't come along into the child, where nobody
    would ever release it.

    Example:
        >>> with fork_safe_lock() as taken:
        ...     taken
        True
    """
    lock = threading.Lock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock
