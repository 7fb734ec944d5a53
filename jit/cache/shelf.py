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

from msgspec import field

from .. import log
from ..errors import ConfigError
from . import lock, records, trust
from .code_object import Kernel
from .files import DAMAGE, cache_roots, content_key, digest, fsync_folder, write_atomic

# Part of every key: raise it when a recipe means something else, or builders lock otherwise. 4:
# their locks are filelock's, which engines before do not see, and the other way round.
ENGINE_VERSION = 4
_RECENT_NS = 2_000_000_000  # a file this young may change again without its stat showing it
_MAX_REMEMBERED = 8  # versions of the sources that an index keeps


# Name of a file -> its sha256, and its stat if that is conclusive; "" of one that is not there.
Contents = dict[str, tuple[str, list[int] | None]]


@dataclass(frozen=True)
class Roots:
    """Names for folders, so that a key does not depend on where the checkout lies."""

    folders: tuple[tuple[str, Path], ...]

    def name_of(self, path: Path) -> str:
        """Return the path as it stands in a key: relative to one of the roots, else absolute."""
        for name, folder in self.folders:
            if path.is_relative_to(folder):
                return f"{name}/{path.relative_to(folder).as_posix()}"
        return str(path)

    def is_ours(self, path: Path) -> bool:
        """Whether it is a source: neither the compiler's nor Python's."""
        return self.name_of(path).startswith(("root/", "rfops/"))

    def path_of(self, name: str) -> Path:
        """Return the path on this machine of a name made by `name_of`."""
        return Path(self.path_text(name))

    def path_text(self, name: str) -> str:
        """The path as a text: a Path takes longer to make than its stat."""
        root, _, relative = name.partition("/")
        folder = self._by_name.get(root)
        return f"{folder}/{relative}" if folder else name

    @functools.cached_property
    def _by_name(self) -> dict[str, Path]:
        return dict(self.folders)

    def contents(self, names: Collection[str], contents: Contents | None = None) -> Contents:
        """Hash and stat of each file; the stat is taken first: it is never newer than the hash."""
        contents = {} if contents is None else contents
        for name in names:
            if name not in contents:
                path = self.path_of(name)
                stat = settled_stat(stat_of(path))
                try:
                    contents[name] = digest(path.read_bytes()), stat
                except (OSError, ValueError):
                    contents[name] = "", None
        return {name: contents[name] for name in sorted(names)}

    def stats(self, read: Contents) -> dict[str, list[int]]:
        """Of a record: the stats that are conclusive."""
        return {self.path_text(name): stat for name, (_, stat) in read.items() if stat}

    def are_current(
        self, deps: Mapping[str, str], stats: Mapping[str, list[int]], contents: Contents
    ) -> bool:
        """Whether files are what they were, by their stats, or else by their content, which goes
        into `contents`."""
        for name, sha in deps.items():
            path = self.path_text(name)
            old_stat = stats.get(path) if sha else None  # None: what must not be there
            if (sha and not old_stat) or old_stat != stat_of(path):
                break
        else:
            return True
        return all(self.contents([name], contents)[name][0] == deps[name] for name in deps)


class Meta(records.Record, frozen=True, kw_only=True):
    """`meta.json`: what was built, how, and of what."""

    module: str
    arch: str  # "host" for a library
    defines: dict[str, Any] = field(default_factory=dict)
    output: str
    engine: int
    toolchain: str
    compiler: str
    commands: list[list[str]]
    seconds: float
    created: str
    target: str = ""  # the code object's own, as are its kernels
    kernels: dict[str, Kernel] = field(default_factory=dict)
    key: str
    build_key: str
    deps: dict[str, str]  # name of a file that was read -> its sha256
    size: int
    sha256: str


class IndexEntry(records.Record, frozen=True):
    """Of an index: an entry, the files that it came from, and stats by which they are known."""

    key: str
    deps: dict[str, str]
    stats: dict[str, list[int]]


class _Index(records.Record, frozen=True):
    entries: list[Any]


def read_index(data: bytes) -> tuple[list[IndexEntry], int]:
    """Its records that are whole, and how many are not. Raises ValueError."""
    entries = records.decode(data, _Index, sealed=False).entries
    records_ = []
    for entry in entries:
        with contextlib.suppress(ValueError):
            records_.append(records.convert(entry, IndexEntry))
    records_ = [entry for entry in records_ if entry.deps]
    return records_, len(entries) - len(records_)


@dataclass(frozen=True)
class Artifact:
    """A whole, published build."""

    folder: Path
    meta: Meta
    is_new: bool = False  # built by this call, not found

    @property
    def file(self) -> Path:
        """The path of the code object or shared library."""
        return self.folder / self.meta.output


def stat_of(path: Path | str) -> list[int] | None:
    """What tells a file from what it was before; None where there is none."""
    try:
        info = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # ValueError: no path at all, of a damaged index
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def settled_stat(stat: list[int] | None) -> list[int] | None:
    """The stat if a later change must show in it, else None: then the content decides."""
    if stat is None or time.time_ns() - max(stat[1], stat[2]) < _RECENT_NS:
        return None
    return stat


def read_entry(folder: Path, data: bytes, stats: Mapping[str, list[int]] | None = None) -> Meta:
    """The meta.json `data` of a whole entry; its artifact's content counts unless `stats` has its
    stat. Raises OSError, ValueError that says what is wrong."""
    try:
        meta = records.decode(data, Meta)
    except ValueError as error:
        raise ValueError(f"meta.json: {error}") from None
    if meta.key != folder.name:
        raise ValueError(f"it is the entry {meta.key}")
    file = folder / meta.output
    stat_now = stat_of(file)
    if stat_now is None:
        raise ValueError(f"{file.name} is gone")
    if stat_now[0] != meta.size:
        raise ValueError(f"{file.name} has {stat_now[0]} bytes instead of {meta.size}")
    if stat_now != (stats or {}).get(str(file)) and digest(file.read_bytes()) != meta.sha256:
        raise ValueError(f"the content of {file.name} has changed")
    return meta


def _can_trust(artifact: Artifact, entry: IndexEntry) -> bool:
    """Whether the artifact's stat has become conclusive: it was too young when it was built."""
    return (
        str(artifact.file) not in entry.stats and settled_stat(stat_of(artifact.file)) is not None
    )


_reported: set[tuple[object, ...]] = set()


def _report_once(file: Path, complaint: str) -> None:
    """Of an index, which is read several times for one build."""
    identity = (file, *(stat_of(file) or ()))
    if identity not in _reported:
        _reported.add(identity)
        log.get().warning("damaged %s: %s; not used", file, complaint)


class ArtifactCache:
    """One module on one architecture."""

    def __init__(self, arch: str, module: str, roots: Roots) -> None:
        self.module = module
        roots_ = cache_roots()
        self.root, self.components = roots_[0], (arch, module)
        self.folders = tuple(root / arch / module for root in roots_)
        self.folder = self.folders[0]
        self.roots = roots

    def _entries(self, build_key: str, folder: Path, report: bool = False) -> list[IndexEntry]:
        """What the index remembers and is whole; `report` looks closer, and says what is not."""
        root, file = folder.parents[1], folder / "index" / f"{build_key}.json"
        trust.check(root, *self.components, "index")
        try:
            entries, num_lost = read_index(trust.read(root, file))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except DAMAGE as error:
            if report:
                _report_once(file, str(error))
            return []
        if report:  # 10 us a record
            valid = [entry for entry in entries if entry.key == content_key(build_key, entry.deps)]
            entries, total = valid, len(entries) + num_lost
            if len(valid) < total:
                num_lost = total - len(valid)
                _report_once(
                    file, f"{num_lost} of its {total} records are not as they were written"
                )
        return entries

    def find(self, build_key: str, report: bool = False) -> Artifact | None:
        """The artifact whose files are as they are now, or None; `report` says what is damaged."""
        contents: Contents = {}
        for index in self.folders:
            for entry in self._entries(build_key, index, report):
                is_same = self.roots.are_current(entry.deps, entry.stats, contents)
                # An entry that has lost a file, or names another, has not the key of its files.
                if is_same and entry.key == content_key(build_key, entry.deps):
                    for folder in self.folders:
                        artifact = self._load(folder / entry.key, entry, report)
                        if artifact is not None:
                            if contents or index != self.folder or _can_trust(artifact, entry):
                                entry_contents = self.roots.contents(entry.deps, contents)
                                self._remember(build_key, entry.key, entry_contents, artifact.file)
                            return artifact
        return None

    def _load(self, folder: Path, entry: IndexEntry, report: bool) -> Artifact | None:
        """The artifact in the folder if it is whole. Raises ConfigError where others may write."""
        root = folder.parents[2]
        trust.check(root, *self.components, folder.name)
        if folder.parent == self.folder:
            lock.use(root, folder.name)  # first: then nobody removes what is found next
        if not folder.is_dir():
            return None
        try:
            meta = read_entry(folder, trust.read(root, folder / "meta.json"), entry.stats)
            trust.check_file(root, folder / meta.output)
        except DAMAGE as error:
            if report:
                log.get().warning("damaged %s: %s; not used", folder, error)
            return None
        if folder.parent == self.folder:
            with contextlib.suppress(OSError):
                os.utime(folder / "meta.json")  # its last use, for `rfops cache gc`
        return Artifact(folder, meta)

    def publish(
        self, stage: Path, build_key: str, read: Contents, facts: Mapping[str, Any]
    ) -> Artifact:
        """Rename the finished stage folder in and remember its files. `facts` is what Meta wants
        to be told; its output is in the folder."""
        deps = {name: sha for name, (sha, _) in read.items()}
        key = content_key(build_key, deps)
        data = (stage / facts["output"]).read_bytes()
        meta = Meta(
            **facts, key=key, build_key=build_key, deps=deps, size=len(data), sha256=digest(data)
        )
        for file in stage.iterdir():
            with file.open("rb") as stream:
                trust.keep_others_out(file, stream.fileno())
                os.fsync(stream.fileno())
        records.write_sealed(stage / "meta.json", meta)
        fsync_folder(stage)
        lock.use(self.root, key)
        final = self.folder / key
        self.rename_in(stage, final)
        self._remember(build_key, key, read, final / meta.output)
        return Artifact(final, meta, is_new=True)

    @staticmethod
    def rename_in(stage: Path, final: Path) -> bool:
        """Make the stage the entry `final`, unless a whole one is there: whether it was made so."""
        try:
            stage.rename(final)
        except OSError:
            root = final.parents[2]
            with contextlib.suppress(*DAMAGE):
                trust.check_entry(root, final)
                read_entry(final, (final / "meta.json").read_bytes())
                shutil.rmtree(stage)  # another builder was first, with the same content
                return False
            damaged = final.with_name(f".damaged-{uuid.uuid4().hex}")
            final.rename(damaged)
            stage.rename(final)
            shutil.rmtree(damaged, ignore_errors=True)
        fsync_folder(final.parent)
        return True

    def _remember(self, build_key: str, key: str, read: Contents, artifact: Path) -> None:
        """Put the entry first in the index. The index only saves work, so failing is no error."""
        deps = {name: sha for name, (sha, _) in read.items()}
        stats = self.roots.stats(read)
        stat = settled_stat(stat_of(artifact))
        if stat is not None:
            stats[str(artifact)] = stat
        self.index(build_key, IndexEntry(key, deps, stats))

    def index(self, build_key: str, entry: IndexEntry) -> None:
        """Put an entry before those that the index has."""
        previous = self._entries(build_key, self.folder, report=True)
        entries = [entry, *(old for old in previous if old.key != entry.key)][:_MAX_REMEMBERED]
        if entries != previous:
            with contextlib.suppress(OSError):
                file = self.folder / "index" / f"{build_key}.json"
                body = {"entries": [old.as_dict() for old in entries]}
                write_atomic(file, json.dumps(body, indent=1))

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
            trust.check(self.root, *self.components, folder.name)
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
                trust.check(self.root, *self.components)
                key_lock = lock.hold(self.folder / f".{build_key}.lock", self.module)
                is_held = stack.enter_context(key_lock)
            except OSError as error:
                raise self._not_writable(error) from error
            if is_held:  # then a stage of this key was left by a builder that was killed
                for leftover in self.folder.glob(f"{self._stage_prefix(build_key)}*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            yield
