"""The cache kept below a size, and clean of what killed builders left."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, LockTimeout
from . import archive, lock, records, trust
from .files import DAMAGE, cache_root
from .kept import kept_root
from .shelf import ENGINE_VERSION, read_index

_DAY = 86400.0
_HOUR = 3600.0


@dataclass
class Collected:
    """What `collect` did, in bytes and entries."""

    freed: int = 0
    removed: int = 0
    kept_bytes: int = 0
    in_use: int = 0


def size_of(folder: Path) -> int:
    """Return the bytes of all files in the folder and below; files that vanish meanwhile count
    0."""
    total = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder_path) / name).lstat().st_size
    return total


def collect(max_bytes: int) -> Collected:
    """Remove what was used longest ago until the cache is no larger, and all that is damaged or
    left over. What a process uses, or is building, stays. Raises ConfigError."""
    root, collected = cache_root(), Collected()
    if not (root.is_dir() or kept_root().is_dir()):
        return collected
    trust.check(root)
    trust.check(kept_root())
    try:
        return _collect(root, collected, max_bytes)
    except OSError as error:
        raise ConfigError(f"cannot clean up {root}: {error}") from error


def _collect(root: Path, collected: Collected, max_bytes: int) -> Collected:
    shelves = [i.parent for arch in ("gfx*", "host") for i in root.glob(f"{arch}/*/index")]
    for leftover in root.glob(".import-*"):
        if _age(leftover) > _DAY:  # of a process that was killed
            collected.freed += size_of(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
    for shelf in shelves:
        _sweep_leftovers(shelf, collected)
    libraries = set(kept_root().glob("[0-9a-f]*"))
    folders = (*archive.folders(root), root / "zig", *libraries)
    collected.kept_bytes = size_of(root) + size_of(kept_root())
    for folder, size in [(f, size_of(f)) for f in sorted(folders, key=_last_use)]:
        is_whole = _is_library(folder) if folder in libraries else _is_whole(folder)
        if is_whole and (collected.kept_bytes <= max_bytes or not size):
            continue
        remove = _remove_library if folder in libraries else _remove
        if remove(root, folder, is_whole):
            collected.freed, collected.removed = collected.freed + size, collected.removed + 1
            collected.kept_bytes -= size
        else:
            collected.in_use += 1
    for shelf in shelves:
        _sweep_indices(shelf)
    return collected


def _is_whole(folder: Path) -> bool:
    return folder.name == "zig" or _is_foreign(folder) or archive.verified_meta(folder) is not None


def _is_library(folder: Path) -> bool:
    return any(folder.glob("*.so"))


class _Engine(records.Record, frozen=True):
    engine: int


def _is_foreign(folder: Path) -> bool:
    """Whether another version of the engine has made the entry: its checks are others."""
    try:
        meta = records.decode((folder / "meta.json").read_bytes(), _Engine, sealed=False)
        return meta.engine != ENGINE_VERSION
    except DAMAGE:
        return False


def _last_use(folder: Path) -> float:
    try:
        library = next(folder.glob("*.so"), None) if folder.parent == kept_root() else None
        return (library or folder / ("z" if folder.name == "zig" else "meta.json")).stat().st_mtime
    except OSError:
        return 0.0


def _remove(root: Path, folder: Path, is_whole: bool) -> bool:
    """Unless it is in use; nobody can use what is damaged."""
    if folder.name == "zig":  # zig's own: nobody says when it is in use
        if _age(folder / "tmp") < _HOUR:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    with lock.unused(root, folder.name) as unused:
        if unused is None:  # who uses it has at least loaded it today, and does not need it again
            unused = _age(folder / "meta.json") > _DAY
        if unused or not is_whole:
            gone = folder.with_name(f".gone-{uuid.uuid4().hex}")  # at once for whoever looks
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return unused or not is_whole


def _remove_library(_root: Path, folder: Path, is_whole: bool) -> bool:
    """Unless it is being built. Who has loaded it keeps it."""
    if not is_whole and _age(folder) < _HOUR:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _sweep_leftovers(shelf: Path, collected: Collected) -> None:
    """What killed builders left, and old failures."""
    for leftover in (*shelf.glob(".stage-*"), *shelf.glob(".gone-*"), *shelf.glob(".damaged-*")):
        if _age(leftover) > _DAY or _is_orphan(shelf, leftover):
            collected.freed += size_of(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
    for failed in (shelf / "failed").glob("*"):
        if _age(failed) > _DAY:
            failed.unlink(missing_ok=True)


def _sweep_indices(shelf: Path) -> None:
    """Indices that name no entry, with their locks."""
    for index in (shelf / "index").glob("*.json"):
        with contextlib.suppress(*DAMAGE):
            entries, _ = read_index(index.read_bytes())
            if any((shelf / entry.key).is_dir() for entry in entries):
                continue
        with _locked(shelf / f".{index.stem}.lock") as is_locked:
            if is_locked:
                index.unlink(missing_ok=True)
                (shelf / f".{index.stem}.lock").unlink(missing_ok=True)


def _is_orphan(shelf: Path, leftover: Path) -> bool:
    """Whether the build of a stage folder is over: its key's lock is free."""
    if not leftover.name.startswith(".stage-"):
        return True
    locks = list(shelf.glob(f".{leftover.name.split('-')[2]}*.lock"))
    if not locks:
        return False  # a stage without a lock: only its age tells
    with _locked(locks[0]) as is_locked:
        return is_locked


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        try:
            is_locked = stack.enter_context(lock.hold(file, "garbage collection", timeout=0))
        except (LockTimeout, OSError):
            is_locked = False
        yield is_locked
