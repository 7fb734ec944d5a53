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
_SHARED_SECONDS = 10.0  # seconds for which a failure also meets those who come a little later


def cause(output: str, status: int, folder: Path, memory_before: int) -> str:
    """What the machine lacked, with what was free; empty if it was not the machine."""
    text = output.lower()
    free = resources.free_disk(folder)
    # lld writes through memory maps: on a full disk it dies of a bus error and says nothing.
    full = free < 1 << 20 or (status == _BUS_ERROR and free < 1 << 24)
    if full or any(phrase in text for phrase in resources.DISK_WORDS):
        return disk_full(folder)
    at_start = f"{resources.megabytes(memory_before)} when the build began, "
    if any(phrase in text for phrase in resources.MEMORY_WORDS):
        return f"out of memory: {_memory(at_start)}"
    if status == _KILLED:
        return f"the compiler was killed, most likely for lack of memory: {_memory(at_start)}"
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"the compiler died of {signal.Signals(status - 128).name}"
    return ""


def disk_full(folder: Path) -> str:
    """Return the error text for a full disk: the folder and the MiB free on it."""
    free = resources.megabytes(resources.free_disk(folder))
    return (
        f"the disk is full: {free} free in {folder}; make room (`rfops cache gc --max-size 1G`) "
        "or point RFOPS_CACHE_DIR elsewhere"
    )


def _memory(at_start: str = "") -> str:
    return (
        f"{resources.megabytes(resources.free_memory())} of memory free now, {at_start}"
        f"{resources.jobs()} compilers at once at most; RFOPS_JOBS=1 takes the least"
    )


def from_os(shelf: ArtifactCache, error: OSError) -> BuildError:
    """The BuildError for what the system refused outside of the compiler."""
    cause = ""
    if error.errno in _DISK_ERRORS:
        cause = disk_full(shelf.folder)
    elif error.errno == errno.ENOMEM:
        cause = f"out of memory: {_memory()}"
    return BuildError(shelf.module, "", str(error), None, cause)


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


def _last_failure(shelf: ArtifactCache, build_key: str) -> _Failure | None:
    return records.read_sealed(shelf.root, _file(shelf, build_key), _Failure)


def last_id(shelf: ArtifactCache, build_key: str) -> str:
    """Names the last failure; ask before waiting for a build."""
    failed = _last_failure(shelf, build_key)
    return failed.id if failed else ""


def record(shelf: ArtifactCache, build_key: str, error: BuildError, read: Contents) -> BuildError:
    """Tell the others, and write the log; the error with the log's path."""
    log: Path | None = shelf.folder / "failed" / f"{build_key}.log"
    try:
        assert log is not None
        write_atomic(log, f"$ {error.command}\n{error.output}")
    except OSError:
        log = None
    logged_error = BuildError(error.module, error.command, error.output, log, error.cause)
    deps = {name: sha for name, (sha, _) in read.items()} if not error.cause else {}
    name = str(log) if log else None
    failed = _Failure(
        uuid.uuid4().hex,
        logged_error.module,
        logged_error.command,
        logged_error.output,
        name,
        logged_error.cause,
        deps,
    )
    with contextlib.suppress(OSError):
        records.write_sealed(_file(shelf, build_key), failed)
    return logged_error


def raise_again(shelf: ArtifactCache, build_key: str, previous_id: str) -> None:
    """Raise the recorded failure if it is newer than `previous_id`, or if it is at most
    _SHARED_SECONDS old and of the same sources."""
    failed = _last_failure(shelf, build_key)
    if failed is None:
        return
    if failed.id == previous_id:
        try:
            age = abs(time.time() - _file(shelf, build_key).stat().st_mtime)
        except OSError:
            return
        contents = shelf.roots.contents(failed.deps)
        is_unchanged = all(contents[name][0] == sha for name, sha in failed.deps.items())
        if not failed.deps or age > _SHARED_SECONDS or not is_unchanged:
            return
    log = Path(failed.log) if failed.log else None
    raise BuildError(failed.module, failed.command, failed.output, log, failed.cause)
