"""The virtual GPU's library."""

from __future__ import annotations

import uuid
from pathlib import Path

from .errors import ConfigError

# What programs have been linked against: ROCm 7, 6, 5, and builds that carry HIP with them. The
# library's own SONAME is ROCm 7's, whose version it reports.
NAMES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")


def vgpu_library() -> Path:
    """The virtual GPU's libamdhip64.so, built on first use. Raises as build_host."""
    from .host import build_host
    from .spec import module_spec

    return build_host(module_spec("vgpu")).file


def vgpu_library_folder() -> Path:
    """A folder for LD_LIBRARY_PATH that has the library under all of `NAMES`: the cache's entry
    itself. Raises as build_host, and ConfigError where a read-only cache's entry lacks a name."""
    library = vgpu_library()
    for name in NAMES:
        link = library.with_name(name)
        if link == library or (link.is_symlink() and link.readlink() == Path(library.name)):
            continue
        aside = library.with_name(f".{name}.{uuid.uuid4().hex}")
        try:
            aside.symlink_to(library.name)
            aside.replace(link)
        except OSError as error:
            raise ConfigError(
                f"cannot make {link}: {error.strerror or error}; run `rfops vgpu --lib-dir` once "
                "as one who may write there, or without RFOPS_CACHE_READ"
            ) from error
    return library.parent
