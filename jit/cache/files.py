"""Files of the cache: where, hashed how, and written so that a reader never sees half of one."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import paths, settings
from . import trust

LAYOUT = "v1"

# What reading a record of ours raises where it is not as we wrote it.
DAMAGE = (OSError, ValueError)


def cache_root() -> Path:
    """The versioned cache folder; not created here."""
    folder = settings.path("RFOPS_CACHE_DIR")
    assert folder is not None  # it has a default
    return folder / LAYOUT


def cache_roots() -> tuple[Path, ...]:
    """Return the cache that is written, then the read-only ones; the wheel's own is the last."""
    read_only = settings.path_list("RFOPS_CACHE_READ")
    if paths.PREBUILT.is_dir():
        read_only.append(paths.PREBUILT)
    return (cache_root(), *(folder / LAYOUT for folder in read_only))


def digest(data: Any) -> str:
    """sha256 over bytes, or over the canonical JSON of anything else."""
    if not isinstance(data, bytes):
        data = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest()


def content_key(build_key: str, deps: Mapping[str, str]) -> str:
    """The key of an entry: of a build, and of the content of the files that it read."""
    return digest([build_key, deps])[:40]


def fsync_folder(folder: Path) -> None:
    """Make names in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(file: Path, text: str) -> None:
    """Write aside, fsync, rename over. Raises OSError."""
    trust.make_folder(file.parent)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        handle = trust.create(temporary, os.O_WRONLY | os.O_EXCL)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
