"""Builds that failed: why, if it was the machine and not the source, and one report for all who
wait. `failed/<build key>.json` on the shelf has the last one; whoever waited for that build raises
it again instead of compiling the same once more.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import time
import uuid
from pathlib import Path

from . import resources
from .cache import Contents, Shelf
from .errors import BuildError
from .files import read_sealed, write_atomic, write_sealed

_KILLED, _BUS_ERROR = 128 + signal.SIGKILL, 128 + signal.SIGBUS  # as shells report them
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_MEANT_FOR = 10.0  # seconds for which a failure also meets those who come a little later


def cause(output: str, status: int, folder: Path, memory_before: int) -> str:
    """What the machine lacked, with what was free; empty if it was not the machine."""
    text = output.lower()
    free = resources.free_disk(folder)
    # lld writes through memory maps: on a full disk it dies of a bus error and says nothing.
    full = free < 1 << 20 or (status == _BUS_ERROR and free < 1 << 24)
    if full or any(word in text for word in resources.DISK_WORDS):
        return disk_full(folder)
    began = f"{resources.megabytes(memory_before)} when the build began, "
    if any(word in text for word in resources.MEMORY_WORDS):
        return f"out of memory: {_memory(began)}"
    if status == _KILLED:
        return f"the compiler was killed, most likely for lack of memory: {_memory(began)}"
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"the compiler died of {signal.Signals(status - 128).name}"
    return ""


def disk_full(folder: Path) -> str:
    free = resources.megabytes(resources.free_disk(folder))
    return (
        f"the disk is full: {free} free in {folder}; make room (`rfops cache gc --max-size 1G`) "
        "or point RFOPS_CACHE_DIR elsewhere"
    )


def _memory(began: str = "") -> str:
    return (
        f"{resources.megabytes(resources.free_memory())} of memory free now, {began}"
        f"{resources.jobs()} compilers at once at most; RFOPS_JOBS=1 takes the least"
    )


def from_os(shelf: Shelf, error: OSError) -> BuildError:
    """The BuildError for what the system refused outside of the compiler."""
    why = ""
    if error.errno in _DISK_ERRORS:
        why = disk_full(shelf.folder)
    elif error.errno == errno.ENOMEM:
        why = f"out of memory: {_memory()}"
    return BuildError(shelf.module, "", str(error), None, why)


def _file(shelf: Shelf, build_key: str) -> Path:
    return shelf.folder / "failed" / f"{build_key}.json"


def last(shelf: Shelf, build_key: str) -> str:
    """Names the last failure; ask before waiting for a build."""
    return str(read_sealed(shelf.root, _file(shelf, build_key)).get("id", ""))


def record(shelf: Shelf, build_key: str, error: BuildError, read: Contents) -> BuildError:
    """Tell the others, and write the log; the error with the log's path."""
    log_path: Path | None = shelf.folder / "failed" / f"{build_key}.log"
    try:
        assert log_path is not None
        write_atomic(log_path, f"$ {error.command}\n{error.output}")
    except OSError:
        log_path = None
    told = BuildError(error.module, error.command, error.output, log_path, error.cause)
    deps = {name: sha for name, (sha, _) in read.items()} if not error.cause else {}
    body = {
        "id": uuid.uuid4().hex, "module": told.module, "command": told.command,
        "output": told.output, "log": log_path and str(log_path), "cause": told.cause, "deps": deps,
    }  # fmt: skip
    with contextlib.suppress(OSError):
        write_sealed(_file(shelf, build_key), body)
    return told


def raise_again(shelf: Shelf, build_key: str, before: str) -> None:
    """Raise the failure that came after `before`, or that a moment ago met the same sources."""
    failed = read_sealed(shelf.root, _file(shelf, build_key))
    try:
        if failed["id"] == before:
            age = abs(time.time() - _file(shelf, build_key).stat().st_mtime)
            deps = failed["deps"]
            now = shelf.contents(deps)
            if not deps or age > _MEANT_FOR or any(now[d][0] != deps[d] for d in deps):
                return
        place = Path(failed["log"]) if failed["log"] else None
        args = failed["module"], failed["command"], failed["output"], place, failed["cause"]
    except (OSError, KeyError, TypeError):
        return
    raise BuildError(*args)
