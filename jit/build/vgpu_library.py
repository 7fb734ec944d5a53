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
HSA_NAMES = ("libhsa-runtime64.so", "libhsa-runtime64.so.1")


def vgpu_library() -> Path:
    """The virtual GPU's libamdhip64.so, built on first use. Raises as build_host."""
    return _build("vgpu")


def vgpu_library_folder() -> Path:
    """A folder for LD_LIBRARY_PATH that has the library under all of `NAMES`. Raises as build_host,
    ConfigError."""
    return _folder(vgpu_library(), "lib", NAMES)


def vgpu_hsa_folder() -> Path:
    """A folder for LD_LIBRARY_PATH that has the virtual GPU's libhsa-runtime64.so under all of
    `HSA_NAMES`, for AMD's own HIP runtime; the library is built on first use. Raises as build_host,
    ConfigError."""
    return _folder(_build("vgpu_hsa"), "hsa", HSA_NAMES)


def _build(module: str) -> Path:
    with importing:
        from .host import build_host
        from .spec import module_spec

    return build_host(module_spec(module)).file


def _folder(library: Path, kind: str, names: tuple[str, ...]) -> Path:
    """Links to the library, beside what the engine reads of its cache, where a link is refused."""
    folder = cache_root().parent / kind / library.parent.name
    target = Path(os.path.relpath(library, folder))  # moves with the cache
    try:
        trust.make_folder(folder)
        for name in names:
            link = folder / name
            if link.is_symlink() and link.readlink() == target:
                continue
            new_link = folder / f".{name}.{uuid.uuid4().hex}"
            new_link.symlink_to(target)
            new_link.replace(link)
    except OSError as error:
        raise ConfigError(
            f"cannot make {folder}: {error.strerror or error}; make links to {library} in a folder "
            "of your own"
        ) from error
    return folder
