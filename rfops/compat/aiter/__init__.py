"""An importable `aiter` where AMD's is not installed: its module layout, enums, dtypes, shuffles
and reference quantisers, with rfops' ops behind them.

    import rfops.compat.aiter
    rfops.compat.aiter.install()
    from aiter.fused_moe import fused_moe

`rfops run --aiter -- COMMAND` does the same for a program, and `rfops eval` for entries. names.py
lists what is served, and what is known and not served. A name that rfops lacks raises
NotImplementedError with what to use instead; it is an ImportError too, so that a caller's own
fallback works. Facts are those of aiter e404860.

RFOPS_AITER_SOURCE names a checkout of ROCm/aiter: modules that names.py does not have, and all of
`aiter.ops.triton`, are then read from there, so aiter's own Triton kernels run on the virtual GPU.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from rfops.jit import settings

from .modules import Finder

__all__ = ["FOLDER", "install", "is_installed", "real_aiter"]

FOLDER = Path(__file__).parents[1] / "path"  # holds the package `aiter` and nothing else


def is_installed() -> bool:
    """Return whether `import aiter` gives rfops' modules in this process."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def real_aiter() -> str | None:
    """Return where a real aiter is installed, None where there is none; RFOPS_AITER_SOURCE's is not
    counted."""
    served_folders = {FOLDER.resolve(), (settings.path("RFOPS_AITER_SOURCE") or FOLDER).resolve()}
    entries = [entry for entry in sys.path if Path(entry or ".").resolve() not in served_folders]
    spec = PathFinder.find_spec("aiter", entries)
    if spec is None or (spec.origin is None and not _has_code(spec.submodule_search_locations)):
        return None
    return spec.origin or str(next(iter(spec.submodule_search_locations or ("aiter",))))


def _has_code(folders: object) -> bool:
    """Return whether a package without __init__.py is more than an unrelated folder of its name."""
    return any((Path(folder) / "ops").is_dir() for folder in folders or ())  # type: ignore[attr-defined]


def install(*, force: bool = False) -> None:
    """Make `import aiter` give rfops' modules in this process; a second call changes nothing.

    force : also where a real aiter is installed, which is then hidden from this process.

    Raises RuntimeError where a real aiter is installed or imported and force is False, and
    ValueError where RFOPS_AITER_SOURCE is no checkout of aiter.
    """
    if is_installed():
        return
    imported = sys.modules.get("aiter")
    is_stub = str(getattr(imported, "__file__", "")).startswith(str(FOLDER))
    origin = real_aiter() or ("sys.modules" if imported is not None and not is_stub else None)
    if origin is not None and not force:
        raise RuntimeError(
            f"rfops.compat.aiter.install: aiter must not be installed, found it at {origin}. Use "
            "that one with rfops' plugins, or call install(force=True) to hide it"
        )
    finder = Finder(_source())
    for name in [n for n in sys.modules if n == "aiter" or n.startswith("aiter.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    importlib.import_module("aiter")


def _source() -> Path | None:
    """Return RFOPS_AITER_SOURCE, or None. Raises ValueError where it is no checkout of aiter."""
    source = settings.path("RFOPS_AITER_SOURCE")
    if source is not None and not (source / "aiter" / "ops").is_dir():
        raise ValueError(
            f"RFOPS_AITER_SOURCE must be a checkout of ROCm/aiter, got {source} without aiter/ops. "
            "Unset it, or pass the folder that git clone made"
        )
    return source
