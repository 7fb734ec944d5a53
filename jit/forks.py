"""Forks beside a first call. A child has the locks that other threads held, and nobody who lets go
of them: of a module that is being imported, it would wait for ever. A fork waits until what rfops
imports late is imported."""

from __future__ import annotations

import functools
import os
import sys
import threading

importing = threading.RLock()  # around what rfops imports when it is first needed


def _renew_locks() -> None:
    """Before Python 3.12 a cached property has a lock, of all instances."""
    if not hasattr(functools.cached_property(repr), "lock"):
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "rfops":
            for kind in list(vars(module).values()):
                for member in vars(kind).values() if isinstance(kind, type) else ():
                    if isinstance(member, functools.cached_property):
                        member.lock = threading.RLock()  # type: ignore[attr-defined]


def _after_in_child() -> None:
    importing.release()
    _renew_locks()


os.register_at_fork(
    before=importing.acquire, after_in_parent=importing.release, after_in_child=_after_in_child
)
