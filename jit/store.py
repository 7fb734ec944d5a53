"""The cache as a whole: moved as one file, and kept below a size.

An exported file is a tar of `<arch>/<module>/<key>/{meta.json, artifact}`: all names in it are
relative and all keys are of content, so it serves any checkout, user and machine. It holds code
that will be run: import only what you would install.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import archive, lock, records, toolchain, trust
from .build import ENGINE_VERSION
from .cache import Meta, Roots, Seen, Shelf, read_entry, read_index
from .errors import ConfigError, LockTimeout
from .files import DAMAGE, cache_root, cache_roots
from .toolchain import Toolchain

_DAY = 86400.0
_HOUR = 3600.0


def _meta(folder: Path) -> Meta | None:
    """The metadata of a whole entry, else None."""
    try:
        meta = read_entry(folder, (folder / "meta.json").read_bytes())
        return meta if archive.is_entry(meta) else None
    except DAMAGE:
        return None


def _folders(root: Path) -> Iterator[Path]:
    """`<root>/<arch>/<module>/<key>` for all of them."""
    for folder in sorted(root.glob("*/*/" + "[0-9a-f]" * 40)):
        if archive.MEMBER.fullmatch("/".join((*folder.relative_to(root).parts, "x"))):
            yield folder


def export(file: Path, archs: Collection[str] = (), modules: Collection[str] = ()) -> int:
    """Write all whole entries (of these architectures and modules) to one file; how many."""
    seen: set[str] = set()
    aside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with tarfile.open(aside, "w:gz", compresslevel=6) as tar:
            for root in cache_roots():
                trust.check(root)
                for folder in _folders(root):
                    name = folder.relative_to(root).as_posix()
                    arch, module, _ = name.split("/")
                    wanted = (not archs or arch in archs) and (not modules or module in modules)
                    meta = _meta(folder) if wanted and name not in seen else None
                    if meta is not None and archive.MEMBER.fullmatch(f"{name}/{meta.output}"):
                        trust.check_entry(root, folder)
                        seen.add(name)
                        for part in ("meta.json", meta.output):
                            tar.add(folder / part, f"{name}/{part}", filter=_anonymous)
        aside.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)
    return len(seen)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def import_(file: Path, max_bytes: int = archive.MAX_BYTES) -> tuple[int, int]:
    """Add a file's entries to the cache: how many are new, how many were there. All of it is
    checked before anything is written; nothing stays of what is refused. Raises ConfigError."""
    root = cache_root()
    trust.check(root)
    aside = root / f".import-{uuid.uuid4().hex}"
    try:
        if not file.is_file():
            raise archive.Refused("there is no such file")
        with file.open("rb") as stream:
            for _ in archive.entries(stream, max_bytes):
                pass
            stream.seek(0)
            written = [_write(aside, entry) for entry in archive.entries(stream, max_bytes)]
        fresh = [_take(aside, name) for name in written]
    except (OSError, archive.Refused) as error:
        raise ConfigError(f"cannot import {file}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sum(fresh), len(fresh) - sum(fresh)


def _write(aside: Path, entry: archive.Entry) -> archive.Name:
    folder = aside.joinpath(*entry.name)
    trust.make_folder(folder)
    trust.check(aside.parent, *folder.relative_to(aside.parent).parts)
    for name, data in ((entry.meta.output, entry.data), ("meta.json", entry.meta_data)):
        handle = trust.create(folder / name, os.O_WRONLY | os.O_EXCL)
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
    return entry.name


def _take(aside: Path, name: archive.Name) -> bool:
    """Make it an entry of the cache; whether it was none before."""
    arch, module, key = name
    meta = records.decode((aside.joinpath(*name) / "meta.json").read_bytes(), Meta)
    shelf = Shelf(arch, module, Roots(()))
    trust.make_folder(shelf.folder)
    trust.check(shelf.root, *shelf.place)
    new = shelf.rename_in(aside.joinpath(*name), shelf.folder / key)
    shelf.index(meta.build_key, Seen(key, meta.deps, {}))
    kind = "host" if arch == "host" else "device"
    toolchain.note_built(kind, Toolchain(meta.toolchain, (), meta.compiler))
    return new


# ---------------------------------------------------------------- size


@dataclass
class Collected:
    """What `collect` did, in bytes and entries."""

    freed: int = 0
    removed: int = 0
    kept: int = 0
    in_use: int = 0


def size_of(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def collect(max_bytes: int) -> Collected:
    """Remove what was used longest ago until the cache is no larger, and all that is damaged or
    left over. What a process uses, or is building, stays. Raises ConfigError."""
    root, done = cache_root(), Collected()
    if not root.is_dir():
        return done
    trust.check(root)
    try:
        return _collect(root, done, max_bytes)
    except OSError as error:
        raise ConfigError(f"cannot clean up {root}: {error}") from error


def _collect(root: Path, done: Collected, max_bytes: int) -> Collected:
    shelves = [index.parent for index in root.glob("*/*/index")]
    for left in root.glob(".import-*"):
        if _age(left) > _DAY:  # of a process that was killed
            done.freed += size_of(left)
            shutil.rmtree(left, ignore_errors=True)
    for shelf in shelves:
        _sweep_leftovers(shelf, done)
    entries = [(_last_use(f), f, size_of(f)) for f in (*_folders(root), root / "zig")]
    done.kept = size_of(root)
    for _, folder, size in sorted(entries, key=lambda entry: entry[0]):
        whole = folder.name == "zig" or _is_foreign(folder) or _meta(folder) is not None
        if whole and (done.kept <= max_bytes or not size):
            continue
        if _remove(root, folder, whole):
            done.freed, done.removed = done.freed + size, done.removed + 1
            done.kept -= size
        else:
            done.in_use += 1
    for shelf in shelves:
        _sweep_indices(shelf)
    return done


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
        return (folder / ("z" if folder.name == "zig" else "meta.json")).stat().st_mtime
    except OSError:
        return 0.0


def _remove(root: Path, folder: Path, whole: bool) -> bool:
    """Unless it is in use; nobody can use what is damaged."""
    if folder.name == "zig":  # zig's own: nobody says when it is in use
        if _age(folder / "tmp") < _HOUR:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    with lock.unused(root, folder.name) as unused:
        if unused is None:  # who uses it has at least loaded it today, and does not need it again
            unused = _age(folder / "meta.json") > _DAY
        if unused or not whole:
            gone = folder.with_name(f".gone-{uuid.uuid4().hex}")  # at once for whoever looks
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return unused or not whole


def _age(place: Path) -> float:
    try:
        return time.time() - place.stat().st_mtime
    except OSError:
        return 0.0


def _sweep_leftovers(shelf: Path, done: Collected) -> None:
    """What killed builders left, and old failures."""
    for left in (*shelf.glob(".stage-*"), *shelf.glob(".gone-*"), *shelf.glob(".damaged-*")):
        if _age(left) > _DAY or _is_orphan(shelf, left):
            done.freed += size_of(left)
            shutil.rmtree(left, ignore_errors=True)
    for failed in (shelf / "failed").glob("*"):
        if _age(failed) > _DAY:
            failed.unlink(missing_ok=True)


def _sweep_indices(shelf: Path) -> None:
    """Indices that name no entry, with their locks."""
    for index in (shelf / "index").glob("*.json"):
        with contextlib.suppress(*DAMAGE):
            entries, _ = read_index(index.read_bytes())
            if any((shelf / seen.key).is_dir() for seen in entries):
                continue
        with _locked(shelf / f".{index.stem}.lock") as mine:
            if mine:
                index.unlink(missing_ok=True)
                (shelf / f".{index.stem}.lock").unlink(missing_ok=True)


def _is_orphan(shelf: Path, left: Path) -> bool:
    """Whether the build of a stage folder is over: its key's lock is free."""
    if not left.name.startswith(".stage-"):
        return True
    locks = list(shelf.glob(f".{left.name.split('-')[2]}*.lock"))
    if not locks:
        return False  # a stage without a lock: only its age tells
    with _locked(locks[0]) as mine:
        return mine


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        try:
            mine = stack.enter_context(lock.hold(file, "garbage collection", timeout=0))
        except (LockTimeout, OSError):
            mine = False
        yield mine
