"""The virtual GPU in a wheel: a cache inside the package, which `cache_roots` lists last.

`RFOPS_BUILD_VGPU=1 pip wheel .` runs this file on the package that setuptools has copied
(`setup.py`). Entries are found by the content key of their sources, as in every cache, so a library
that does not belong to the package's sources is never taken, and no compiler is needed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import paths, settings
from ..cache import transfer
from ..errors import ConfigError
from . import cpu
from .host import build_host
from .spec import ModuleSpec, module_spec

LEVELS = ("v3", "v4")


def levels_of(text: str) -> tuple[str, ...]:
    """The x86-64 levels that RFOPS_BUILD_VGPU names; 1 is this CPU's. Raises ConfigError."""
    if text == "1":
        return (cpu.x86_level(),)
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= set(LEVELS):
        raise ConfigError(
            f"RFOPS_BUILD_VGPU must be 1 or levels of x86-64 out of {','.join(LEVELS)}, got "
            f"{text!r}. Set it to 1 for the CPU of this machine."
        )
    return names


def pack(spec: ModuleSpec, levels: Sequence[str], folder: Path) -> list[Path]:
    """Build the library for each level, or take it from the cache, and copy it into the cache in
    `folder`; the libraries. Raises as build_host."""
    keys = []
    for level in levels:
        with cpu.as_level(level):
            keys.append(build_host(spec).meta.key)
    with tempfile.TemporaryDirectory(prefix="rfops-prebuilt-") as aside:
        file = Path(aside, "cache.tar.gz")
        transfer.export(file, ["host"], [spec.name], keys)
        with settings.put("RFOPS_CACHE_DIR", str(folder)):
            transfer.import_(file)
    return sorted(folder.glob(f"*/host/{spec.name}/*/{spec.output}"))


if __name__ == "__main__":
    shutil.rmtree(paths.PREBUILT, ignore_errors=True)  # of an earlier build in the same folder
    for library in pack(module_spec("vgpu"), levels_of(sys.argv[1]), paths.PREBUILT):
        print(f"prebuilt: {library}")
