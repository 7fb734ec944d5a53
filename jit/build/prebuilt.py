"""Build the virtual GPU into a wheel: a cache inside the package, which `cache_roots` lists last.

`RFOPS_BUILD_VGPU=1 pip wheel .` runs this file in the copy of the package that setuptools has made
(`jit/wheel/backend.py`). An entry is found by the content key of its sources, as in every cache: a
library of other sources is never loaded, and finding it needs no compiler.
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


def parse_levels(text: str) -> tuple[str, ...]:
    """Return the x86-64 levels that RFOPS_BUILD_VGPU names; 1 is this CPU's. Raises ConfigError."""
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
    """Build the library for each level, or find it in the cache, copy it into the cache in `folder`
    and return the copies. Raises as build_host."""
    keys = []
    for level in levels:
        with cpu.as_level(level):
            keys.append(build_host(spec).meta.key)
    with tempfile.TemporaryDirectory(prefix="rfops-prebuilt-") as staging:
        file = Path(staging, "cache.tar.gz")
        transfer.export(file, ["host"], [spec.name], keys)
        with settings.put("RFOPS_CACHE_DIR", str(folder)):
            transfer.import_(file)
    return sorted(folder.glob(f"*/host/{spec.name}/*/{spec.output}"))


if __name__ == "__main__":
    shutil.rmtree(paths.PREBUILT, ignore_errors=True)  # of an earlier build in the same folder
    for library in pack(module_spec("vgpu"), parse_levels(sys.argv[1]), paths.PREBUILT):
        print(f"prebuilt: {library}")
