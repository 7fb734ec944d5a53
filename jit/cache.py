"""The content-addressed cache: `<cache>/v1/<arch>/<module>/<key>/`.

Two keys. The *build key* is known before compiling: recipe, flags, compiler, source names. The
*content key* adds the content of every file that the compiler reported reading. An index file per
build key remembers which files those were; a hit costs one `stat` a file, and a hash only where
that is not conclusive. Folders are built aside and renamed in whole, `meta.json` written last.

Read-only caches can lie behind (RFOPS_CACHE_READ): they are looked into, never written.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import lock, log, trust
from .errors import ConfigError
from .files import (
    DAMAGE,
    cache_roots,
    content_key,
    digest,
    fsync_folder,
    seal,
    write_atomic,
)

_RECENT_NS = 2_000_000_000  # a file this young may change again without its stat showing it
_MAX_REMEMBERED = 8  # versions of the sources that an index keeps


# Name of a file -> its sha256, and its stat if that is conclusive; "" of one that is not there.
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

    def is_ours(self, path: Path) -> bool:
        """Whether it is a source: neither the compiler's nor Python's."""
        return self.name_of(path).startswith(("root/", "rfops/"))

    def path_of(self, name: str) -> Path:
        return Path(self.place_of(name))

    def place_of(self, name: str) -> str:
        """The path as a text: a Path takes longer to make than its stat."""
        root, _, rest = name.partition("/")
        folder = self._by_name.get(root)
        return f"{folder}/{rest}" if folder else name

    @functools.cached_property
    def _by_name(self) -> dict[str, Path]:
        return dict(self.folders)


@dataclass(frozen=True)
class Artifact:
    """A whole, published build."""

    folder: Path
    meta: Mapping[str, Any]
    fresh: bool = False  # built by this call, not found

    @property
    def file(self) -> Path:
        return self.folder / str(self.meta["output"])


def stat_of(path: Path | str) -> list[int] | None:
    """What tells a file from what it was before; None where there is none."""
    try:
        info = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # ValueError: no path at all, of a damaged index
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def settled(stat: list[int] | None) -> list[int] | None:
    """The stat if a later change must show in it, else None: then the content decides."""
    if stat is None or time.time_ns() - max(stat[1], stat[2]) < _RECENT_NS:
        return None
    return stat


def damage(folder: Path, meta: Mapping[str, Any], trusted: list[int] | None = None) -> str:
    """What is wrong with an entry, or nothing; the content counts unless the stat is `trusted`."""
    if meta["seal"] != seal(meta):
        return "meta.json has changed"
    if meta["key"] != folder.name:
        return f"it is the entry {meta['key']}"
    file = folder / meta["output"]
    now = stat_of(file)
    if now is None:
        return f"{file.name} is gone"
    if now[0] != meta["size"]:
        return f"{file.name} has {now[0]} bytes instead of {meta['size']}"
    if now != trusted and digest(file.read_bytes()) != meta["sha256"]:
        return f"the content of {file.name} has changed"
    return ""


def _can_trust(artifact: Artifact, entry: Mapping[str, Any]) -> bool:
    """Whether the artifact's stat has become conclusive: it was too young when it was built."""
    return str(artifact.file) not in entry["stats"] and settled(stat_of(artifact.file)) is not None


def _is_record(entry: Any) -> bool:
    """Whether an index's record has what is needed of it."""
    try:
        named = type(entry["key"]) is str and bool(entry["deps"])
        return named and type(entry["deps"]) is type(entry["stats"]) is dict
    except DAMAGE:
        return False


_reported: set[tuple[object, ...]] = set()


def _report_once(file: Path, wrong: str) -> None:
    """Of an index, which is read several times for one build."""
    what = (file, *(stat_of(file) or ()))
    if what not in _reported:
        _reported.add(what)
        log.get().warning("damaged %s: %s; not used", file, wrong)


class Shelf:
    """One module on one architecture."""

    def __init__(self, arch: str, module: str, roots: Roots) -> None:
        self.module = module
        roots_ = cache_roots()
        self.root, self.place = roots_[0], (arch, module)
        self.folders = tuple(root / arch / module for root in roots_)
        self.folder = self.folders[0]
        self.roots = roots

    def _entries(self, build_key: str, folder: Path, report: bool = False) -> list[dict[str, Any]]:
        """What the index remembers and is whole; `report` looks closer, and says what is not."""
        root, file = folder.parents[1], folder / "index" / f"{build_key}.json"
        trust.check(root, *self.place, "index")
        whole: list[dict[str, Any]] = []
        try:
            entries = json.loads(trust.read(root, file))["entries"]
            whole = [entry for entry in entries if _is_record(entry)]
            if report:  # 10 us a record
                whole = [e for e in whole if e["key"] == content_key(build_key, e["deps"])]
            count = len(entries) - len(whole)
            wrong = f"{count} of its {len(entries)} records are not as they were written"
        except (FileNotFoundError, NotADirectoryError):
            return []
        except DAMAGE as error:
            count, wrong = 1, repr(error)
        if report and count:
            _report_once(file, wrong)
        return whole

    def find(self, build_key: str, report: bool = False) -> Artifact | None:
        """The artifact whose files are as they are now, or None; `report` says what is damaged."""
        now: Contents = {}
        for index in self.folders:
            for entry in self._entries(build_key, index, report):
                same = self._unchanged(entry) or self._same_content(entry, now)
                # An entry that has lost a file, or names another, has not the key of its files.
                if same and entry["key"] == content_key(build_key, entry["deps"]):
                    for folder in self.folders:
                        artifact = self._load(folder / entry["key"], entry, report)
                        if artifact is not None:
                            if now or index != self.folder or _can_trust(artifact, entry):
                                kept = self.contents(entry["deps"], now)
                                self._remember(build_key, entry["key"], kept, artifact.file)
                            return artifact
        return None

    def _unchanged(self, entry: dict[str, Any]) -> bool:
        stats = entry["stats"]
        for name, sha in entry["deps"].items():
            place = self.roots.place_of(name)
            known = stats.get(place) if sha else None  # None: what must not be there
            if (sha and not known) or known != stat_of(place):
                return False
        return True

    def _same_content(self, entry: dict[str, Any], now: Contents) -> bool:
        deps = entry["deps"]
        return all(self.contents([name], now)[name][0] == deps[name] for name in deps)

    def contents(self, names: Collection[str], known: Contents | None = None) -> Contents:
        """Hash and stat of each file; the stat is taken first: it is never newer than the hash."""
        known = {} if known is None else known
        for name in names:
            if name not in known:
                path = self.roots.path_of(name)
                stat = settled(stat_of(path))
                try:
                    known[name] = digest(path.read_bytes()), stat
                except (OSError, ValueError):
                    known[name] = "", None
        return {name: known[name] for name in sorted(names)}

    def _load(self, folder: Path, entry: dict[str, Any], report: bool) -> Artifact | None:
        """The artifact in the folder if it is whole. Raises ConfigError where others may write."""
        root = folder.parents[2]
        trust.check(root, *self.place, folder.name)
        if folder.parent == self.folder:
            lock.use(root, folder.name)  # first: then nobody removes what is found next
        if not folder.is_dir():
            return None
        try:
            meta = json.loads(trust.read(root, folder / "meta.json"))
            wrong = damage(folder, meta, entry["stats"].get(str(folder / meta["output"])))
        except DAMAGE as error:
            wrong = f"meta.json: {error!r}"
        if not wrong:
            trust.check_file(root, folder / meta["output"])
        if wrong:
            if report:
                log.get().warning("damaged %s: %s; not used", folder, wrong)
            return None
        if folder.parent == self.folder:
            with contextlib.suppress(OSError):
                os.utime(folder / "meta.json")  # its last use, for `rfops cache gc`
        return Artifact(folder, meta)

    def publish(
        self, stage: Path, build_key: str, read: Contents, meta: dict[str, Any]
    ) -> Artifact:
        """Rename the finished stage folder in and remember its files. `meta["output"]` is in it."""
        deps = {name: sha for name, (sha, _) in read.items()}
        key = content_key(build_key, deps)
        output = stage / meta["output"]
        meta |= {"key": key, "build_key": build_key, "deps": deps}
        meta |= {"size": output.stat().st_size, "sha256": digest(output.read_bytes())}
        meta |= {"seal": seal(meta)}
        for file in stage.iterdir():
            with file.open("rb") as stream:
                trust.keep_others_out(file, stream.fileno())
                os.fsync(stream.fileno())
        write_atomic(stage / "meta.json", json.dumps(meta, indent=1))
        fsync_folder(stage)
        lock.use(self.root, key)
        final = self.folder / key
        self.rename_in(stage, final)
        self._remember(build_key, key, read, final / meta["output"])
        return Artifact(final, meta, fresh=True)

    @staticmethod
    def rename_in(stage: Path, final: Path) -> bool:
        """Make the stage the entry `final`, unless a whole one is there: whether it was made so."""
        try:
            stage.rename(final)
        except OSError:
            root = final.parents[2]
            with contextlib.suppress(*DAMAGE):
                trust.check_entry(root, final)
                if not damage(final, json.loads((final / "meta.json").read_bytes())):
                    shutil.rmtree(stage)  # another builder was first, with the same content
                    return False
            aside = final.with_name(f".damaged-{uuid.uuid4().hex}")
            final.rename(aside)
            stage.rename(final)
            shutil.rmtree(aside, ignore_errors=True)
        fsync_folder(final.parent)
        return True

    def _remember(self, build_key: str, key: str, read: Contents, artifact: Path) -> None:
        """Put the entry first in the index. The index only saves work, so failing is no error."""
        deps = {name: sha for name, (sha, _) in read.items()}
        stats = {self.roots.place_of(name): stat for name, (_, stat) in read.items() if stat}
        stat = settled(stat_of(artifact))
        if stat is not None:
            stats[str(artifact)] = stat
        self.index(build_key, [{"key": key, "deps": deps, "stats": stats}])

    def index(self, build_key: str, first: list[dict[str, Any]]) -> None:
        """Put entries before those that the index has."""
        before = self._entries(build_key, self.folder, report=True)
        keys = {entry["key"] for entry in first}
        others = [entry for entry in before if entry["key"] not in keys]
        entries = [*first, *others][:_MAX_REMEMBERED]
        if entries != before:
            with contextlib.suppress(OSError):
                file = self.folder / "index" / f"{build_key}.json"
                write_atomic(file, json.dumps({"entries": entries}, indent=1))

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot write to the cache folder {self.folder}: {error.strerror or error}; "
            "point RFOPS_CACHE_DIR at a folder that can be written, and RFOPS_CACHE_READ at this "
            "one if it has what you need"
        )

    def _stage_prefix(self, build_key: str) -> str:
        return f".stage-{digest(os.uname().nodename.encode())[:8]}-{build_key[:16]}-"

    @contextlib.contextmanager
    def stage(self, build_key: str) -> Iterator[Path]:
        """A fresh folder beside the artifacts; what is left of it at the end is removed."""
        folder = self.folder / f"{self._stage_prefix(build_key)}{uuid.uuid4().hex}"
        try:
            trust.make_folder(folder)
            trust.check(self.root, *self.place, folder.name)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, build_key: str) -> Iterator[None]:
        """Only one process builds a key. The lock saves work and no more: publishing is safe
        without it. Raises LockTimeout, ConfigError."""
        with contextlib.ExitStack() as stack:
            try:
                trust.make_folder(self.folder)
                trust.check(self.root, *self.place)
                held = lock.hold(self.folder / f".{build_key}.lock", self.module)
                alone = stack.enter_context(held)
            except OSError as error:
                raise self._not_writable(error) from error
            if alone:  # then a stage of this key was left by a builder that was killed
                for left in self.folder.glob(f"{self._stage_prefix(build_key)}*"):
                    shutil.rmtree(left, ignore_errors=True)
            yield
