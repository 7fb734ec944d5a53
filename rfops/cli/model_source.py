"""What a time model's constants depend on: digests of kernels' sources and of the timing model."""

from __future__ import annotations

import functools
import hashlib
import importlib
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
TIMING, REPORT = "vgpu/timing", "report"  # the timing model's sources, and what writes its results


def digests(op: Op, model: TimeModel) -> dict[str, str]:
    """Of each kernel, by its name, with all of its launches; of the timing model by ""."""
    folder = paths.CSRC / TIMING
    timing = [f for f in (*folder.glob("*.cpp"), *folder.glob("*.h")) if f.stem != REPORT]
    digest_of = {"": _digest(tuple(sorted(timing)))}
    for kernel in model.kernels:
        modules = [kernel.module, *kernel.more_modules] if kernel.module else []
        files = [f for m in modules for f in module_spec(m, kernel.compiler_config).sources()]
        files += [Path(importlib.import_module(name).__file__ or "") for name in kernel.sources]
        digest_of[kernel.name] = _digest(tuple(sorted(_closure(files))))
    return digest_of


def _closure(files: Iterable[Path]) -> set[Path]:
    """With the headers that they include."""
    closure: set[Path] = set()
    pending = list(files)
    while pending:
        file = pending.pop()
        if file not in closure:
            closure.add(file)
            pending += [
                h
                for name in _INCLUDE.findall(file.read_text(encoding="utf-8"))
                if (h := _header(file, name))
            ]
    return closure


def _header(file: Path, name: str) -> Path | None:
    folders = file.parent, paths.CSRC / "include", paths.CSRC
    return next((f / name for f in folders if (f / name).is_file()), None)


@functools.cache
def _text(file: Path) -> str:
    """Of C++ without comments and spaces, which change nothing."""
    text = file.read_text(encoding="utf-8")
    return text if file.suffix == ".py" else " ".join(_COMMENT.sub(" ", text).split())


@functools.cache
def _digest(files: tuple[Path, ...]) -> str:
    text = "\n".join(_text(file) for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
