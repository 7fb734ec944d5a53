"""A cache moved as one file.

It is a tar of `<arch>/<module>/<key>/{meta.json, artifact}`: all names in it are relative and all
keys are of content, so it serves any checkout, user and machine. It holds code that will be run:
import only what you would install.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import uuid
from collections.abc import Collection
from pathlib import Path

from ..errors import ConfigError
from . import archive, builders, records, trust
from .builders import Builder
from .files import cache_root, cache_roots
from .shelf import ArtifactCache, IndexEntry, Meta, Roots


def export(
    file: Path,
    archs: Collection[str] = (),
    modules: Collection[str] = (),
    keys: Collection[str] = (),
) -> int:
    """Write all whole entries (of these architectures, modules and keys) to one file; how many."""
    exported: set[str] = set()
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=6) as tar:
            for root in cache_roots():
                trust.check(root)
                for folder in archive.folders(root):
                    name = folder.relative_to(root).as_posix()
                    arch, module, key = name.split("/")
                    is_selected = (not archs or arch in archs) and (
                        not modules or module in modules
                    )
                    is_selected = is_selected and (not keys or key in keys)
                    meta = (
                        archive.verified_meta(folder)
                        if is_selected and name not in exported
                        else None
                    )
                    if meta is not None and archive.MEMBER.fullmatch(f"{name}/{meta.output}"):
                        if _add(tar, root, name, meta.output):
                            exported.add(name)
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return len(exported)


def _add(tar: tarfile.TarFile, root: Path, name: str, output: str) -> bool:
    """False where another process has removed the entry meanwhile."""
    files = [f"{name}/{name_}" for name_ in ("meta.json", output)]
    try:
        trust.check_entry(root, root / name)
        contents = [((root / file).stat().st_mtime, (root / file).read_bytes()) for file in files]
    except FileNotFoundError:
        return False
    for file, (mtime, data) in zip(files, contents, strict=True):
        member = tarfile.TarInfo(file)
        member.size, member.mtime = len(data), int(mtime)
        tar.addfile(member, io.BytesIO(data))
    return True


def import_(file: Path, max_bytes: int = archive.MAX_BYTES) -> tuple[int, int]:
    """Add a file's entries to the cache: how many are new, how many were there. All of it is
    checked before anything is written; nothing stays of what is refused. Raises ConfigError."""
    root = cache_root()
    trust.check(root)
    staging = root / f".import-{uuid.uuid4().hex}"
    try:
        if not file.is_file():
            raise archive.ArchiveError("there is no such file")
        with file.open("rb") as stream:
            for _ in archive.entries(stream, max_bytes):
                pass
            stream.seek(0)
            names = [_write(staging, entry) for entry in archive.entries(stream, max_bytes)]
        is_new = [_publish(staging, name) for name in names]
    except (OSError, archive.ArchiveError) as error:
        raise ConfigError(f"cannot import {file}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return sum(is_new), len(is_new) - sum(is_new)


def _write(staging: Path, entry: archive.Entry) -> archive.Name:
    folder = staging.joinpath(*entry.name)
    trust.make_folder(folder)
    trust.check(staging.parent, *folder.relative_to(staging.parent).parts)
    for name, data in ((entry.meta.output, entry.data), ("meta.json", entry.meta_data)):
        handle = trust.create(folder / name, os.O_WRONLY | os.O_EXCL)
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
    return entry.name


def _publish(staging: Path, name: archive.Name) -> bool:
    """Make it an entry of the cache; whether it was none before."""
    arch, module, key = name
    meta = records.decode((staging.joinpath(*name) / "meta.json").read_bytes(), Meta)
    shelf = ArtifactCache(arch, module, Roots(()))
    trust.make_folder(shelf.folder)
    trust.check(shelf.root, *shelf.components)
    new = shelf.rename_in(staging.joinpath(*name), shelf.folder / key)
    shelf.index(meta.build_key, IndexEntry(key, meta.deps, {}))
    kind = "host" if arch == "host" else "device"
    builders.note(kind, Builder(meta.toolchain, meta.compiler))
    return new
