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

from ..cache import records
from ..cache.files import write_atomic
from ..cache.shelf import ArtifactCache, Contents
from ..errors import BuildError
from . import resources

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


def from_os(shelf: ArtifactCache, error: OSError) -> BuildError:
    """The BuildError for what the system refused outside of the compiler."""
    why = ""
    if error.errno in _DISK_ERRORS:
        why = disk_full(shelf.folder)
    elif error.errno == errno.ENOMEM:
        why = f"out of memory: {_memory()}"
    return BuildError(shelf.module, "", str(error), None, why)


class _Failure(records.Record, frozen=True):
    id: str
    module: str
    command: str
    output: str
    log: str | None
    cause: str
    deps: dict[str, str]  # of what was compiled; empty where the machine was the cause


def _file(shelf: ArtifactCache, build_key: str) -> Path:
    return shelf.folder / "failed" / f"{build_key}.json"


def _last(shelf: ArtifactCache, build_key: str) -> _Failure | None:
    return records.read_sealed(shelf.root, _file(shelf, build_key), _Failure)


def last(shelf: ArtifactCache, build_key: str) -> str:
    """Names the last failure; ask before waiting for a build."""
    failed = _last(shelf, build_key)
    return failed.id if failed else ""


def record(shelf: ArtifactCache, build_key: str, error: BuildError, read: Contents) -> BuildError:
    """Tell the others, and write the log; the error with the log's path."""
    log: Path | None = shelf.folder / "failed" / f"{build_key}.log"
    try:
        assert log is not None
        write_atomic(log, f"$ {error.command}\n{error.output}")
    except OSError:
        log = None
    told = BuildError(error.module, error.command, error.output, log, error.cause)
    deps = {name: sha for name, (sha, _) in read.items()} if not error.cause else {}
    name = str(log) if log else None
    failed = _Failure(
        uuid.uuid4().hex, told.module, told.command, told.output, name, told.cause, deps
    )
    with contextlib.suppress(OSError):
        records.write_sealed(_file(shelf, build_key), failed)
    return told


def raise_again(shelf: ArtifactCache, build_key: str, before: str) -> None:
    """Raise the failure that came after `before`, or that a moment ago met the same sources."""
    failed = _last(shelf, build_key)
    if failed is None:
        return
    if failed.id == before:
        try:
            age = abs(time.time() - _file(shelf, build_key).stat().st_mtime)
        except OSError:
            return
        now = shelf.roots.contents(failed.deps)
        same = all(now[name][0] == sha for name, sha in failed.deps.items())
        if not failed.deps or age > _MEANT_FOR or not same:
            return
    log = Path(failed.log) if failed.log else None
    raise BuildError(failed.module, failed.command, failed.output, log, failed.cause)
