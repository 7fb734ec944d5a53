"""The virtual GPU's library."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ..cache import trust
from ..cache.files import cache_root
from ..errors import ConfigError
from ..forks import importing

# What programs have been linked against: ROCm 7, 6, 5, and builds that carry HIP with them. The
# library's own SONAME is ROCm 7's, whose version it reports.
NAMES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")


def vgpu_library() -> Path:
    """The virtual GPU's libamdhip64.so, built on first use. Raises as build_host."""
    with importing:
        from .host import build_host
        from .spec import module_spec

    return build_host(module_spec("vgpu")).file


def vgpu_library_folder() -> Path:
    """A folder for LD_LIBRARY_PATH that has the library under all of `NAMES`, as links: beside what
    the engine reads of its cache, where a link is refused. Raises as build_host, ConfigError."""
    library = vgpu_library()
    folder = cache_root().parent / "lib" / library.parent.name
    target = Path(os.path.relpath(library, folder))  # moves with the cache
    try:
        trust.make_folder(folder)
        for name in NAMES:
            link = folder / name
            if link.is_symlink() and link.readlink() == target:
                continue
            new_link = folder / f".{name}.{uuid.uuid4().hex}"
            new_link.symlink_to(target)
            new_link.replace(link)
    except OSError as error:
        raise ConfigError(
            f"cannot make {folder}: {error.strerror or error}; `rfops vgpu --path` is the library, "
            "which any folder may have a link to"
        ) from error
    return folder
