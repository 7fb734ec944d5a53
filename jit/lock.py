"""Locks of the cache. They are the kernel's (fcntl), so whoever dies has none; a lock file's text
only tells a waiter on whom it waits, and is never believed. Nothing breaks without them: where a
filesystem has none, everybody compiles and the first rename wins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from . import log, settings, trust
from .errors import LockTimeout
from .files import DAMAGE

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_FIRST_REPORT, _REPORT_EVERY = 1.0, 10.0  # seconds of waiting
_LONGEST_NAP = 0.05  # a freed lock is seen within this

# fcntl's locks are the process's: threads take turns by these. A forked child has none of either.
_threads: dict[Path, threading.Lock] = {}
_guard = threading.Lock()


def _forget() -> None:
    global _guard
    _threads.clear()
    _guard = threading.Lock()
    _uses.clear()


@contextlib.contextmanager
def hold(file: Path, what: str, timeout: int | None = None) -> Iterator[bool]:
    """Hold the lock; True if it excludes others, False where the filesystem has no locks.

    Raises LockTimeout after `timeout` (RFOPS_LOCK_TIMEOUT) seconds, OSError if the file cannot be
    made.
    """
    limit = settings.number("RFOPS_LOCK_TIMEOUT") if timeout is None else timeout
    deadline = _Deadline(file, what, limit)
    with _guard:
        mine = _threads.setdefault(file, threading.Lock())
    while not mine.acquire(timeout=deadline.nap()):
        deadline.check({"pid": os.getpid(), "host": os.uname().nodename, "thread": "another"})
    try:
        stream = _open_locked(file, deadline)
        try:
            yield stream is not None
        finally:
            if stream is not None:
                stream.close()  # and with it goes the lock
    finally:
        mine.release()


def _open(file: Path) -> IO[bytes]:
    return os.fdopen(trust.create(file, os.O_RDWR | os.O_APPEND), "a+b")


def _open_locked(file: Path, deadline: _Deadline) -> IO[bytes] | None:
    while True:
        stream = _open(file)
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(stream)
            stream.close()
            if error.errno in _NO_LOCKS:
                log.get().debug("no locks in %s: building without", file.parent)
                return None
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            deadline.check(owner)
            time.sleep(deadline.nap())
            continue
        if _same_file(stream, file):
            stream.truncate(0)
            mine = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
            with contextlib.suppress(OSError):  # a full disk: the lock works without a text
                stream.write(json.dumps(mine).encode())
                stream.flush()
            return stream
        stream.close()  # it was removed meanwhile


def _same_file(stream: IO[bytes], file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), file.stat())
    except OSError:
        return False


def _owner(stream: IO[bytes]) -> dict[str, object]:
    try:
        stream.seek(0)
        owner = json.loads(stream.read(4096))
        return owner if isinstance(owner, dict) else {}
    except DAMAGE:
        return {}


class _Deadline:
    """How long one waits, and what is said meanwhile."""

    def __init__(self, file: Path, what: str, timeout: int) -> None:
        self.file, self.what, self.timeout = file, what, timeout
        self.begin = time.monotonic()
        self.next_report = _FIRST_REPORT
        self._nap = 0.001

    def nap(self) -> float:
        self._nap = min(2 * self._nap, _LONGEST_NAP)
        return self._nap

    def check(self, owner: dict[str, object]) -> None:
        """Say every ten seconds who has the lock. Raises LockTimeout."""
        waited = time.monotonic() - self.begin
        if waited >= self.timeout:
            raise LockTimeout(
                f"{self.what}: {_describe(owner)} has held {self.file} for longer than "
                f"{self.timeout} s; RFOPS_LOCK_TIMEOUT sets the longest wait"
            )
        if waited >= self.next_report:
            self.next_report = waited + _REPORT_EVERY
            log.get().info("waiting %.0f s for %s to build %s", waited, _describe(owner), self.what)


def _describe(owner: dict[str, object]) -> str:
    if "pid" not in owner:
        return "another process"
    since = owner.get("since")
    age = f", {max(0.0, time.time() - since):.0f} s" if isinstance(since, float) else ""
    return f"another process (pid {owner['pid']} on {owner.get('host')}{age})"


# ---------------------------------------------------------------- what is in use

# One byte of `<cache>/v1/in-use` stands for one key; who uses an artifact has a shared lock on its
# byte until it dies, in one file descriptor for all.
_uses: dict[Path, tuple[IO[bytes], set[int]]] = {}
os.register_at_fork(after_in_child=_forget)


def _byte_of(key: str) -> int:
    return int(key[:12], 16)


def _used(root: Path) -> tuple[IO[bytes], set[int]]:
    file = root / "in-use"
    if root not in _uses or not _same_file(_uses[root][0], file):  # the cache was removed meanwhile
        _uses[root] = _open(file), set()
    return _uses[root]


def use(root: Path, key: str) -> None:
    """Keep the key from `rfops cache gc` as long as this process lives, where there are locks."""
    byte = _byte_of(key)
    with _guard, contextlib.suppress(OSError):
        stream, mine = _used(root)
        if byte not in mine:
            fcntl.lockf(stream, fcntl.LOCK_SH, 1, byte)  # waits while the key is being removed
            mine.add(byte)


@contextlib.contextmanager
def unused(root: Path, key: str) -> Iterator[bool | None]:
    """Whether no process uses the key, None where there are no locks to tell; nobody begins to
    while the block runs."""
    byte = _byte_of(key)
    with _guard:
        stream, mine = _used(root)
        if byte in mine:
            yield False
            return
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            yield None if error.errno in _NO_LOCKS else False
            return
        try:
            yield True
        finally:
            fcntl.lockf(stream, fcntl.LOCK_UN, 1, byte)
