"""What `rfops cache export` writes, read as a stranger's: nothing is believed unchecked.

A tar, with gzip or without, of `<arch>/<module>/<key>/meta.json`, each followed by the one file
that it names. Names, kinds and declared sizes are looked at before the data, and the data is held
against its metadata in memory, one entry at a time; nothing is written here.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..arch import ARCHS
from . import code_object, records
from .files import DAMAGE, content_key, digest
from .shelf import Meta, read_entry

MAX_BYTES = 10**9  # that a file may unpack to
_MAX_FILE = 1 << 28  # bytes of an artifact, which is held in memory
_MAX_META = 1 << 24  # of a meta.json; the virtual GPU's, of 108 sources, has 100 KB
_MAX_MEMBERS = 200_000
_CHUNK = 1 << 16
_MAX_HEADER_BYTES = 1 << 20  # tarfile reads a header's texts at once, of any size that it declares

_NAME = r"\w[\w.-]{0,99}"
MEMBER = re.compile(rf"(gfx\w+|host)/({_NAME})/([0-9a-f]{{40}})/({_NAME})")
_KEY = re.compile(r"[0-9a-f]{40}")
_WAY_OUT = "; if it is meant to, --max-size raises that limit"
_BROKEN = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    RecursionError,
)

Name = tuple[str, str, str]  # arch, module, key


class ArchiveError(Exception):
    """The file is not one that `export` has written; the text says why."""


@dataclass(frozen=True)
class Entry:
    """A whole entry of the file."""

    name: Name
    meta: Meta
    meta_data: bytes
    data: bytes


def entries(stream: IO[bytes], limit: int) -> Iterator[Entry]:
    """All entries of the file, which may unpack to `limit` bytes. Raises Refused."""
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    limited = _Limited(gzip.GzipFile(fileobj=stream) if packed else stream, limit)
    source: Any = limited  # tarfile reads and seeks, and asks for no more
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            yield from _entries(tar, limit)
        trailing = limited.read(_CHUNK)
        if not trailing or trailing.strip(b"\0") or limited.read(1):
            raise ArchiveError("it is damaged: it does not end as it should")
    except _BROKEN as error:
        raise ArchiveError(f"it is damaged: {error}") from error


def _entries(tar: tarfile.TarFile, limit: int) -> Iterator[Entry]:
    folded_names: set[str] = set()
    members = _members(tar, limit)
    for member, name in members:
        folder, _, file = member.name.rpartition("/")
        if file != "meta.json":
            raise ArchiveError(
                f"{member.name!r} does not belong into a cache: no meta.json names it"
            )
        folded = unicodedata.normalize("NFKC", folder).casefold()
        if folded in folded_names:
            raise ArchiveError(f"{folder} is in it twice")
        folded_names.add(folded)
        meta_data = _read(tar, member, _MAX_META)
        meta = _meta(meta_data, name)
        if meta is None:
            raise ArchiveError(f"{folder} is damaged: its meta.json is not what was written")
        artifact, _ = next(members, (None, name))
        if artifact is None or artifact.name != f"{folder}/{meta.output}":
            raise ArchiveError(f"{folder} is damaged: its {meta.output} does not follow")
        if artifact.size != meta.size:
            raise ArchiveError(f"{artifact.name} is damaged: it declares {artifact.size} bytes")
        data = _read(tar, artifact, _MAX_FILE)
        is_valid = name[0] == "host" or _is_code_object(data, meta, name[0])
        if digest(data) != meta.sha256 or not is_valid:
            raise ArchiveError(f"{folder} is damaged: its {meta.output} is another one")
        yield Entry(name, meta, meta_data, data)


def _members(tar: tarfile.TarFile, limit: int) -> Iterator[tuple[tarfile.TarInfo, Name]]:
    """Each plain file that has a place in a cache, while all together stay within the limits."""
    count = total = 0
    while (member := tar.next()) is not None:
        vars(tar)["members"].clear()  # it keeps them all
        match = MEMBER.fullmatch(member.name)
        is_regular = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
        if not match or match[1] not in (*ARCHS, "host") or not is_regular or member.size < 0:
            raise ArchiveError(f"{member.name!r:.200} does not belong into a cache")
        count, total = count + 1, total + member.size
        if total > limit:
            raise ArchiveError(f"it declares {total} bytes and more, of at most {limit}{_WAY_OUT}")
        if count > _MAX_MEMBERS:
            raise ArchiveError(f"it has more than {_MAX_MEMBERS} files")
        yield member, (match[1], match[2], match[3])


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, max_bytes: int) -> bytes:
    if member.size > max_bytes:
        raise ArchiveError(f"{member.name} declares {member.size} bytes, of at most {max_bytes}")
    source = tar.extractfile(member)
    assert source is not None  # a regular file
    return b"".join(iter(lambda: source.read(_CHUNK), b""))


class _Limited:
    """The unpacked stream for tarfile: forwards, and not far beyond the limit."""

    def __init__(self, stream: Any, limit: int) -> None:
        self.stream, self.limit = stream, limit
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise ArchiveError("it is damaged: a header of no sensible size")
        self._check(self.tell() + size)
        return bytes(self.stream.read(size))

    def seek(self, position: int) -> None:
        if position < self.tell():
            raise ArchiveError("it is damaged: a header that leads back")
        self._check(position)
        self.stream.seek(position)

    def _check(self, end: int) -> None:
        if end > self.limit + _MAX_HEADER_BYTES:  # some room for what is read ahead
            raise ArchiveError(f"it unpacks to more than {self.limit} bytes{_WAY_OUT}")


# ---------------------------------------------------------------- one entry


def is_entry(meta: Meta) -> bool:
    """Whether it is what the engine writes, and not only whole: it may come from elsewhere."""
    is_named = _KEY.fullmatch(meta.build_key) and "/" not in meta.output
    return bool(is_named and meta.key == content_key(meta.build_key, meta.deps))


def verified_meta(folder: Path) -> Meta | None:
    """The metadata of a whole entry, else None."""
    try:
        meta = read_entry(folder, (folder / "meta.json").read_bytes())
        return meta if is_entry(meta) else None
    except DAMAGE:
        return None


def folders(root: Path) -> Iterator[Path]:
    """`<root>/<arch>/<module>/<key>` for all of them. What others are importing is passed by: it
    may go while it is looked at."""
    keys = "*/" + "[0-9a-f]" * 40
    for folder in sorted((*root.glob(f"gfx*/{keys}"), *root.glob(f"host/{keys}"))):
        if MEMBER.fullmatch("/".join((*folder.relative_to(root).parts, "x"))):
            yield folder


def _meta(data: bytes, name: Name) -> Meta | None:
    """The metadata if it is whole, and of that place."""
    try:
        meta = records.decode(data, Meta)
    except ValueError:
        return None
    is_here = (meta.arch, meta.module, meta.key) == name
    return meta if is_here and meta.output.casefold() != "meta.json" and is_entry(meta) else None


def _is_code_object(data: bytes, meta: Meta, arch: str) -> bool:
    """Whether the metadata says of a code object what that says itself."""
    try:
        itself = code_object.read_metadata(code_object.unbundle(data, arch))
    except code_object.CodeObjectError:
        return False
    return itself.arch == arch and itself.kernels == meta.kernels
