"""The host CPU's x86-64 level, as a compiler flag: part of the key, so hosts can share a cache."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Iterator

_LEVELS = (
    ("v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("v3", {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
)


_level: str | None = None


@contextlib.contextmanager
def as_level(level: str) -> Iterator[None]:
    """Build the libraries of the block for this level instead of this CPU's."""
    global _level
    previous, _level = _level, level
    try:
        yield
    finally:
        _level = previous


def x86_level() -> str:
    """v4, v3, or nothing for an older or another CPU: the compiler's default."""
    return _own_level() if _level is None else _level


@functools.cache
def _own_level() -> str:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as stream:  # noqa: PTH123 (first CPU only)
            text = stream.read(8192).decode(errors="replace")
    except OSError:
        return ""
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    have = set(line.split())
    if not _LEVELS[1][1] <= have:
        return ""
    return "v4" if _LEVELS[0][1] <= have else "v3"


def level_flags(zig: bool) -> tuple[str, ...]:
    """The flags of this CPU's level; at v4 compilers use 512-bit vectors only when told to."""
    level = x86_level()
    if not level:
        return ()
    march = f"-mcpu=x86_64_{level}" if zig else f"-march=x86-64-{level}"
    return (march, "-mprefer-vector-width=512") if level == "v4" else (march,)
