"""The content-addressed cache: `<cache>/v1/<arch>/<module>/<key>/`.

Two keys. The *build key* is known before compiling: recipe, flags, compiler, source names. The
*content key* adds the content of every file that the compiler reported reading. An index file per
build key remembers which files those were; a hit costs one `stat` a file, and a hash only where
that is not conclusive. Folders are built aside and renamed in whole, `meta.json` written last.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import log, settings
from .errors import ConfigError, LockTimeout
from .files import cache_root, digest, fsync_folder, write_atomic

_RECENT_NS = 2_000_000_000  # a file this young may change again without its stat showing it
_MAX_REMEMBERED = 8  # versions of the sources that an index keeps


# Name of a file -> its sha256, and its stat if that is conclusive.
Contents = dict[str, tuple[str, list[int] | None]]


@dataclass(frozen=True)
class Roots:
    """Names for folders, so that a key does not depend on where the checkout lies."""

    folders: tuple[tuple[str, Path], ...]

    def name_of(self, path: Path) -> str:
        for name, folder in self.folders:
            if path.is_relative_to(folder):
                return f"{name}/{path.relative_to(folder).as_posix()}"
        return str(path)

    def path_of(self, name: str) -> Path:
        for root, folder in self.folders:
            if name.startswith(f"{root}/"):
                return folder / name[len(root) + 1 :]
        return Path(name)


@dataclass(frozen=True)
class Artifact:
    """A whole, published build."""

    folder: Path
    meta: Mapping[str, Any]
    fresh: bool = False  # built by this call, not found

    @property
    def file(self) -> Path:
        return self.folder / str(self.meta["output"])


def _stat(path: Path) -> list[int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def _settled(stat: list[int] | None) -> list[int] | None:
    """The stat if a later change must show in it, else None: then the content decides."""
    if stat is None or time.time_ns() - max(stat[1], stat[2]) < _RECENT_NS:
        return None
    return stat


class Shelf:
    """One module on one architecture."""

    def __init__(self, arch: str, module: str, roots: Roots) -> None:
        self.module = module
        self.folder = cache_root() / arch / module
        self.roots = roots

    def _index(self, build_key: str) -> Path:
        return self.folder / "index" / f"{build_key}.json"

    def _entries(self, build_key: str) -> list[dict[str, Any]]:
        """What the index remembers; a damaged one remembers nothing."""
        try:
            entries = json.loads(self._index(build_key).read_bytes())["entries"]
            dicts = [e for e in entries if type(e["deps"]) is type(e["stats"]) is dict]
            return [entry for entry in dicts if entry["key"] and entry["deps"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def find(self, build_key: str) -> Artifact | None:
        """The artifact whose files are as they are now, or None."""
        now: Contents = {}
        for entry in self._entries(build_key):
            if self._unchanged(entry) or self._same_content(entry, now):
                artifact = self.load(entry["key"])
                if artifact is not None:
                    if now:
                        kept = self.contents(entry["deps"], now)
                        self._remember(build_key, entry["key"], kept)
                    return artifact
        return None

    def _unchanged(self, entry: dict[str, Any]) -> bool:
        stats = entry["stats"]
        return all(
            (known := stats.get(str(path := self.roots.path_of(name)))) and known == _stat(path)
            for name in entry["deps"]
        )

    def _same_content(self, entry: dict[str, Any], now: Contents) -> bool:
        deps = entry["deps"]
        return all(self.contents([name], now)[name][0] == deps[name] for name in deps)

    def contents(self, names: Collection[str], known: Contents | None = None) -> Contents:
        """Hash and stat of each file; the stat is taken first: it is never newer than the hash."""
        known = {} if known is None else known
        for name in names:
            if name not in known:
                path = self.roots.path_of(name)
                stat = _settled(_stat(path))
                try:
                    known[name] = digest(path.read_bytes()), stat
                except OSError:
                    known[name] = "", None
        return {name: known[name] for name in sorted(names)}

    def load(self, key: str) -> Artifact | None:
        """The artifact of a content key if it is whole."""
        folder = self.folder / key
        try:
            meta = json.loads((folder / "meta.json").read_bytes())
            whole = (folder / meta["output"]).stat().st_size == meta["size"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Artifact(folder, meta) if whole else None

    def publish(
        self, stage: Path, build_key: str, read: Contents, meta: dict[str, Any]
    ) -> Artifact:
        """Rename the finished stage folder in and remember its files. `meta["output"]` is in it."""
        deps = {name: sha for name, (sha, _) in read.items()}
        key = digest([build_key, deps])[:40]
        output = stage / meta["output"]
        meta |= {"key": key, "build_key": build_key, "deps": deps}
        meta |= {"size": output.stat().st_size, "sha256": digest(output.read_bytes())}
        for file in stage.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        write_atomic(stage / "meta.json", json.dumps(meta, indent=1))
        fsync_folder(stage)
        self._rename_in(stage, self.folder / key)
        self._remember(build_key, key, read)
        return Artifact(self.folder / key, meta, fresh=True)

    def _rename_in(self, stage: Path, final: Path) -> None:
        try:
            stage.rename(final)
        except OSError:
            if self.load(final.name) is not None:
                shutil.rmtree(stage)  # another builder was first, with the same content
                return
            final.rename(final.with_name(f".damaged-{uuid.uuid4().hex}"))
            stage.rename(final)
        fsync_folder(self.folder)

    def _remember(self, build_key: str, key: str, read: Contents) -> None:
        """Put the entry first in the index. The index only saves work, so failing is no error."""
        deps = {name: sha for name, (sha, _) in read.items()}
        stats = {str(self.roots.path_of(name)): stat for name, (_, stat) in read.items() if stat}
        before = self._entries(build_key)
        others = [entry for entry in before if entry["key"] != key]
        entries = [{"key": key, "deps": deps, "stats": stats}, *others[: _MAX_REMEMBERED - 1]]
        if entries == before:
            return
        with suppress(OSError):
            write_atomic(self._index(build_key), json.dumps({"entries": entries}, indent=1))

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot write to the cache folder {self.folder}: {error.strerror or error}; "
            "point RFOPS_CACHE_DIR at a folder that can be written"
        )

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """A fresh folder beside the artifacts; what is left of it at the end is removed."""
        folder = self.folder / f".stage-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lock(self, build_key: str) -> Iterator[None]:
        """Only one process builds a key; the kernel frees the lock when its holder dies.

        The lock saves work and no more: publishing is safe without it.
        """
        import filelock  # only on a cold start

        timeout = settings.number("RFOPS_LOCK_TIMEOUT")
        lock_file = self.folder / f".{build_key}.lock"
        try:
            lock_file.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(lock_file)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                log.get().info("waiting for another process to build %s", self.module)
                lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise LockTimeout(
                f"{self.module}: another process has held {lock_file} for {timeout} s; "
                "RFOPS_LOCK_TIMEOUT sets the longest wait"
            ) from None
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            yield
        finally:
            lock.release()
