"""Locks of the cache. They are the kernel's: whoever dies has none; a lock file's text only tells a
waiter on whom it waits, and is never believed. Nothing breaks without them: where a filesystem has
none, everybody compiles and the first rename wins.

A build's lock is filelock's, the whole file of one key. What is in use is told by byte ranges of
one file, which filelock does not have: they are fcntl's.
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
from typing import IO, TYPE_CHECKING

from .. import log, settings
from ..errors import LockTimeout
from . import trust

if TYPE_CHECKING:
    from filelock import FileLock

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_FIRST_REPORT, _REPORT_EVERY = 1.0, 10.0  # seconds of waiting
_POLL = 0.02  # a freed lock is seen within this


@contextlib.contextmanager
def hold(file: Path, purpose: str, timeout: int | None = None) -> Iterator[bool]:
    """Hold the lock; True if it excludes others, False where the filesystem has no locks.

    Raises LockTimeout after `timeout` (RFOPS_LOCK_TIMEOUT) seconds, OSError if the file cannot be
    made.
    """
    from filelock import FileLock  # only builds wait: what is cached takes no lock

    lock = FileLock(
        file,
        mode=-1 if trust.is_shared(file) else 0o600,  # -1: as the umask has it
        thread_local=False,
        poll_interval=_POLL,
        fallback_to_soft=False,
        on_acquired=_sign,
    )
    limit = settings.number("RFOPS_LOCK_TIMEOUT") if timeout is None else timeout
    is_held = _wait(lock, file, purpose, limit)
    try:
        yield is_held
    finally:
        lock.release()


def _wait(lock: FileLock, file: Path, purpose: str, limit: int) -> bool:
    """Take the lock, and say every ten seconds who has it; False where there are none. Raises
    LockTimeout, OSError."""
    from filelock import Timeout

    begin, report = time.monotonic(), _FIRST_REPORT
    while True:
        seconds = time.monotonic() - begin
        try:
            lock.acquire(timeout=max(0.0, min(report, limit) - seconds))
            return True
        except Timeout:
            seconds = time.monotonic() - begin
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.get().debug("no locks in %s: building without", file.parent)
            return False
        if seconds >= limit:
            raise LockTimeout(
                f"{purpose}: {_describe(_owner(file))} has held {file} for longer than {limit} s; "
                "RFOPS_LOCK_TIMEOUT sets the longest wait"
            )
        report = seconds + _REPORT_EVERY
        log.get().info(
            "waiting %.0f s for %s to build %s", seconds, _describe(_owner(file)), purpose
        )


def _sign(handle: int) -> None:
    """Say in the lock file who has it."""
    owner = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    with contextlib.suppress(OSError):  # a full disk: the lock works without a text
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(owner).encode())


def _owner(file: Path) -> dict[str, object]:
    try:
        owner = json.loads(file.read_bytes()[:4096])
        return owner if isinstance(owner, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _describe(owner: dict[str, object]) -> str:
    if "pid" not in owner:
        return "another process"
    since = owner.get("since")
    age = f", {max(0.0, time.time() - since):.0f} s" if isinstance(since, float) else ""
    return f"another process (pid {owner['pid']} on {owner.get('host')}{age})"


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Hold a folder for the moment that changing a file in it takes. It leaves no lock file, as
    these folders are people's own. Where the filesystem has no locks that is said, and the block
    runs."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (*_NO_LOCKS, errno.EBADF):  # EBADF: of NFS, for folders
                raise
            log.get().warning("no locks in %s: two that write there lose rows", path)
        yield
    finally:
        os.close(handle)


# ---------------------------------------------------------------- what is in use

# One byte of `<cache>/v1/in-use` stands for one key; who uses an artifact has a shared lock on its
# byte until it dies, in one file descriptor for all.
_uses: dict[Path, tuple[IO[bytes], set[int]]] = {}
_guard = threading.Lock()


def _forget() -> None:
    """A forked child has no locks of its parent's."""
    global _guard
    _guard = threading.Lock()
    _uses.clear()


os.register_at_fork(after_in_child=_forget)


def _open(file: Path) -> IO[bytes]:
    return os.fdopen(trust.create(file, os.O_RDWR | os.O_APPEND), "a+b")


def _same_file(stream: IO[bytes], file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), file.stat())
    except OSError:
        return False


def _lock_byte(key: str) -> int:
    return int(key[:12], 16)


def _lock_file(root: Path) -> tuple[IO[bytes], set[int]]:
    file = root / "in-use"
    if root not in _uses or not _same_file(_uses[root][0], file):  # the cache was removed meanwhile
        _uses[root] = _open(file), set()
    return _uses[root]


def use(root: Path, key: str) -> None:
    """Keep the key from `rfops cache gc` as long as this process lives, where there are locks."""
    byte = _lock_byte(key)
    with _guard, contextlib.suppress(OSError):
        stream, own_bytes = _lock_file(root)
        if byte not in own_bytes:
            fcntl.lockf(stream, fcntl.LOCK_SH, 1, byte)  # waits while the key is being removed
            own_bytes.add(byte)


@contextlib.contextmanager
def unused(root: Path, key: str) -> Iterator[bool | None]:
    """Whether no process uses the key, None where there are no locks to tell; nobody begins to
    while the block runs."""
    byte = _lock_byte(key)
    with _guard:
        stream, own_bytes = _lock_file(root)
        if byte in own_bytes:
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
