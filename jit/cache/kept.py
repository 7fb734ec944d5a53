"""Libraries that are not the engine's to build: of entries to competitions, hipBLASLt's shim.

Each lies in `<cache>/entries/<key>/` by a key of all that went in, with no record beside it; its
time is that of its last use, by which `rfops cache gc` goes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import trust
from .files import cache_root


def kept_root() -> Path:
    """Return the folder of these libraries, beside the cache's own."""
    return cache_root().parent / "entries"


def library(key: str, name: str, build: Callable[[Path], Path]) -> Path:
    """The library of this key, found or made now: `build` writes it into the folder that it is
    given, and returns it. Raises ConfigError where others could have written it, OSError."""
    root = kept_root()
    trust.check(root, key)
    file = root / key / name
    if file.is_file():
        trust.check_file(root, file)
        with contextlib.suppress(OSError):  # of a cache that is read only
            os.utime(file)
        return file
    trust.make_folder(file.parent)
    with tempfile.TemporaryDirectory(prefix="build-", dir=file.parent) as folder:
        build(Path(folder)).replace(file)
    return file
