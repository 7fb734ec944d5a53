"""Launches that another project's C++ makes: built from a checkout of the user's for the virtual
GPU, as a library whose functions take addresses and sizes.

A file of csrc/peers includes sources of the checkout by name and calls their host functions, so
that grids, blocks and variants are that project's own choice. Nothing of the checkout is kept but
the library, in rfops' cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rfops.cli import hipcc
from rfops.jit import paths, settings, vgpu_library_folder
from rfops.jit.build.hip_source import SHIM, CannotBuild, CompilerFailed
from rfops.jit.cache import kept

from .calls import Missing

FOLDER = paths.CSRC / "peers"
FLAGS = ("-shared", "-O3", "-std=c++20", "-w", "-ferror-limit=1")


class Source(NamedTuple):
    """A file of csrc/peers and what it is compiled with."""

    file: str
    needs: str  # the file of the checkout that it includes
    folders: tuple[str, ...]  # of the checkout, to which its includes are relative
    empty: tuple[str, ...] = ()  # headers of CUDA's and torch's that it does without
    needs_rocm: bool = False  # rocPRIM's headers
    needs_torch: bool = False  # torch's headers


class Library:
    """A built one; its functions return None, or what went wrong."""

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))

    def __call__(self, name: str, *arguments: int) -> None:
        """Launch. Addresses and sizes are ints alike. Raises Missing."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_char_p
        error = function(*map(ctypes.c_uint64, arguments))
        if error:
            raise Missing(error.decode("utf-8", "replace").strip())

    def size(self, name: str, *arguments: int) -> int:
        """What a function says that it needs."""
        return int(getattr(self._library, name)(*arguments))


def library(source: Source, checkout: Path, arch: str) -> Library:
    """From the cache, or built now. Raises Missing."""
    found = _library(source, checkout, arch)
    if isinstance(found, str):
        raise Missing(found)
    return found


@functools.cache
def _library(source: Source, checkout: Path, arch: str) -> Library | str:
    """Or why there is none."""
    if not (checkout / source.needs).is_file():
        return f"the checkout has no {source.needs}"
    try:
        includes = [f"-I{folder}" for folder in _includes(source, checkout)]
        name = Path(source.file).with_suffix(".so").name
        build = functools.partial(_build, source, includes, arch)
        return Library(kept.library(_key(source, checkout, arch, includes), name, build))
    except CompilerFailed as error:
        lines = (line for line in error.output.splitlines() if "error: " in line)
        return f"{source.needs} does not compile: {next(lines, error.output).strip()}"
    except (CannotBuild, OSError) as error:
        return str(error)


def _includes(source: Source, checkout: Path) -> Iterator[Path]:
    """Raises CannotBuild."""
    yield FOLDER
    yield from (checkout / folder for folder in source.folders)
    if source.needs_torch:
        spec = importlib.util.find_spec("torch")
        yield Path(spec.origin if spec and spec.origin else "").parent / "include"
    if source.needs_rocm:
        yield _rocm_include()


def _rocm_include() -> Path:
    asked = settings.path("ROCM_PATH")
    folders = [root / "include" for root in (asked, Path("/opt/rocm"), Path("/usr")) if root]
    for folder in folders:
        if (folder / "rocprim").is_dir():
            return folder
    raise CannotBuild("rocPRIM's headers are not here: set ROCM_PATH to ROCm's folder")


def _key(source: Source, checkout: Path, arch: str, includes: list[str]) -> str:
    """Of what a compiler reads: contents of rfops' files, the checkout's by size and time."""
    own = [file.read_bytes() for file in sorted((*FOLDER.iterdir(), *SHIM.rglob("*.h")))]
    stats = [
        f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        for folder in source.folders
        for file in sorted((checkout / folder).rglob("*"))
        if file.is_file()
    ]
    words = [arch, str(vgpu_library_folder()), *map(str, source), *FLAGS, *includes, *stats]
    return hashlib.sha256(b"\0".join([*own, *map(str.encode, words)])).hexdigest()[:40]


def _build(source: Source, includes: list[str], arch: str, folder: Path) -> Path:
    for header in source.empty:
        file = folder / "empty" / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    output = folder / "peer.so"
    words = [*FLAGS, f"--offload-arch={arch}", f"-I{folder / 'empty'}", *includes]
    hipcc.build(hipcc.parsed([*words, str(FOLDER / source.file), "-o", str(output)]))
    return output
