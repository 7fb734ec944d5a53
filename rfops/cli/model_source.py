"""What a time model's constants depend on: digests of kernels' sources and of the timing model."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from rfops.dispatch.op import Op
from rfops.dispatch.time_model import TimeModel
from rfops.jit import paths
from rfops.jit.build.spec import module_spec

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_DIGITS = 12
TIMING = "vgpu/timing"  # the timing model's sources


def digests(op: Op, model: TimeModel) -> dict[str, str]:
    """Of each kernel, by its name, with all of its launches; of the timing model by ""."""
    found = {"": _digest(tuple(sorted((paths.CSRC / TIMING).glob("*.[ch]*"))))}
    for kernel in model.kernels:
        modules = [kernel.module, *kernel.more_modules] if kernel.module else []
        files = [f for m in modules for f in module_spec(m, kernel.compiler_config).sources()]
        found[kernel.name] = _digest(tuple(sorted(_closure(files))))
    return found


def _closure(files: Iterable[Path]) -> set[Path]:
    """With the headers that they include."""
    found: set[Path] = set()
    left = list(files)
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += [
                h
                for name in _INCLUDE.findall(file.read_text(encoding="utf-8"))
                if (h := _header(file, name))
            ]
    return found


def _header(file: Path, name: str) -> Path | None:
    folders = file.parent, paths.CSRC / "include", paths.CSRC
    return next((f / name for f in folders if (f / name).is_file()), None)


@functools.cache
def _text(file: Path) -> str:
    """Without comments and spaces, which change nothing."""
    return " ".join(_COMMENT.sub(" ", file.read_text(encoding="utf-8")).split())


@functools.cache
def _digest(files: tuple[Path, ...]) -> str:
    text = "\n".join(_text(file) for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
