"""Every environment variable that rfops reads, declared once; the table in SETTINGS.md is
tested against it.

A setting says where things are and how loud to be. What a kernel computes is never a setting.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import texts
from .arch import ARCH_SPECS, PART_CUS
from .errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One environment variable. `kind` is its type as SETTINGS.md shows it."""

    name: str
    kind: str  # "path" | "paths" | "text" | "int" | "seconds" or choices: "a|b|c"
    default: str
    meaning: str


SETTINGS = (
    Setting("RFOPS_CACHE_DIR", "path", "~/.cache/rfops", "where built code objects are kept"),
    Setting("RFOPS_CACHE_READ", "paths", "", "caches to look into as well, `:` between; read only"),
    Setting("RFOPS_CACHE_TRUST", "paths", "", "caches used though others own them or may write"),
    Setting("RFOPS_JIT", "0|1", "1", "0: never compile; what is not built is a JitDisabled"),
    Setting("RFOPS_RECORD_MANIFEST", "path", "", "file that collects what was used, for `build`"),
    Setting("RFOPS_BUILD_VGPU", "text", "", "of `pip wheel`: carry the virtual GPU; 1, or v3,v4"),
    Setting("RFOPS_HIPCC", "path", "", "the hipcc to use; empty: look in ROCM_PATH, then in PATH"),
    Setting("ROCM_PATH", "path", "", "ROCm's folder; `bin/hipcc` in it is used when present"),
    Setting("CXX", "text", "", "host C++ compiler of the virtual GPU; empty: g++, clang++, zig"),
    Setting("CC", "text", "", "C compiler of Triton's launcher; empty: gcc, clang, zig"),
    Setting("RFOPS_AITER_SOURCE", "path", "", "checkout of ROCm/aiter beside rfops' own `aiter`"),
    Setting("RFOPS_VGPU_ARCH", "gfx942|gfx950", "gfx950", "architecture of the virtual GPU"),
    Setting("RFOPS_VGPU_PART", "text", "", "its part, MI300X to MI355X; empty: by architecture"),
    Setting("RFOPS_VGPU_THREADS", "int", "0", "host threads of the virtual GPU; 0: one a core"),
    Setting("RFOPS_VGPU_MAX_STEPS", "int", "0", "most wave-instructions of a launch; 0: any"),
    Setting("RFOPS_VGPU_CHECK", "0|1|error", "0", "report what kernels do wrong; error: and fail"),
    Setting("RFOPS_VGPU_TIMING", "0|1", "0", "print how long each launch would take, and why"),
    Setting("RFOPS_VGPU_TIMING_SET", "text", "", "for work on the model: NAME=VALUE ..."),
    Setting("RFOPS_VGPU_REPORT", "path", "", "folder for records of all launches; of `rfops run`"),
    Setting(
        "RFOPS_VGPU_DEBUG", "path", "", "socket of `rfops debug`, at whose prompt kernels stop"
    ),
    Setting("RFOPS_VGPU_SCHEDULE", "text", "hardware", "order of waves, loads; or random:SEED"),
    Setting("RFOPS_VGPU_LOG", "int", "1", "how much the virtual GPU prints; 0: nothing"),
    Setting("RFOPS_HIP_LIBRARY", "path", "", "HIP runtime to load instead of the one chosen"),
    Setting("RFOPS_CONFIGS", "path", "", "folder of your own tuned tables, read on top of rfops'"),
    Setting("RFOPS_RECORD_UNTUNED", "path", "", "CSV file that collects untuned shapes"),
    Setting("RFOPS_LOCK_TIMEOUT", "seconds", "600", "longest wait for another process's build"),
    Setting("RFOPS_COMPILE_TIMEOUT", "seconds", "600", "longest time of a compiler; 0: any"),
    Setting("RFOPS_JOBS", "int", "0", "compilers at once; 0: one a core and GiB of free memory"),
    Setting(
        "RFOPS_PLUGIN", "text", "", "what vLLM and SGLang get: off, or mla,moe,topk,fp8,mxfp4,rows"
    ),
    Setting("RFOPS_LAUNCHER", "auto|ctypes", "auto", "ctypes: launch without the native launcher"),
    Setting("RFOPS_LOG", "debug|dispatch|info|warning|error", "info", "what is printed on stderr"),
)
# Parts and their architecture, which RFOPS_VGPU_PART alone chooses too (csrc/vgpu/base/device.cpp).
PARTS: Mapping[str, str] = {
    **dict.fromkeys(("MI300X", "MI308X", "MI300A", "MI325X"), "gfx942"),
    **dict.fromkeys(("MI350X", "MI355X"), "gfx950"),
}
_BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


def compute_units(arch: str) -> int:
    """Of the virtual GPU: RFOPS_VGPU_PART's, where that is of this architecture."""
    gpu_model = raw("RFOPS_VGPU_PART")
    return PART_CUS[gpu_model] if PARTS.get(gpu_model) == arch else ARCH_SPECS[arch].cus


_TESTS = "RFOPS_TEST_"  # variables of the tests alone
_are_checked = False


def unknown() -> list[str]:
    """The variables of the environment that look like settings and are none, each with the nearest
    setting's name."""
    names = [name for name in sorted(os.environ) if name.startswith("RFOPS_")]
    return [_nearest(n) for n in names if n not in _BY_NAME and not n.startswith(_TESTS)]


def _nearest(name: str) -> str:
    import difflib  # only for a mistake

    names = {setting.removeprefix("RFOPS_"): setting for setting in _BY_NAME}
    matches = difflib.get_close_matches(name.removeprefix("RFOPS_"), names, 1)
    return f"{name} is no setting{f': is {names[matches[0]]} meant?' if matches else ''}"


def _warn_of_unknown() -> None:
    global _are_checked
    _are_checked = True  # first: the log has a setting
    from . import log

    for text in unknown():
        log.get().warning("%s", text)


def raw(name: str) -> str:
    """The variable's text; an empty variable counts as unset."""
    value = os.environ.get(name)
    if not value and name == "RFOPS_VGPU_ARCH":
        value = PARTS.get(raw("RFOPS_VGPU_PART"))
    return value or _BY_NAME[name].default


def _first_raw(name: str) -> str:
    """The same; a process's first call warns of variables that are misspelt. (Not `raw`, which an
    import calls: an application may not have set up its logging yet.)"""
    if not _are_checked:
        _warn_of_unknown()
    return raw(name)


def text(name: str) -> str:
    """A text or a choice; a value outside the choices is a ConfigError."""
    value, kind = texts.check_line(name, _first_raw(name)), _BY_NAME[name].kind
    if "|" in kind and value not in kind.split("|"):
        raise ConfigError(f"{name}={value!r}: expected one of {', '.join(kind.split('|'))}")
    return value


def word_list(name: str) -> list[str]:
    """A command with its arguments, quoted as in a shell."""
    try:
        return shlex.split(text(name))
    except ValueError as error:
        raise ConfigError(f"{name}={text(name)}: {error}") from error


def number(name: str) -> int:
    """A whole number, not negative."""
    value = _first_raw(name)
    if not value.isascii() or not value.isdigit():
        raise ConfigError(f"{name}={value!r}: expected a whole number, 0 or more")
    return int(value)


def path(name: str) -> Path | None:
    """An absolute path with `~` expanded, or None when unset without a default."""
    value = _first_raw(name)
    return _expanded(name, value) if value else None


def path_list(name: str) -> list[Path]:
    """The same for folders with `:` between."""
    return [_expanded(name, folder) for folder in _first_raw(name).split(os.pathsep) if folder]


def _expanded(name: str, value: str) -> Path:
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError as error:  # a user without a home, as containers have them
        raise ConfigError(f"{name}={value}: {error} Set {name} to a folder.") from error
    texts.check_line(name, str(path))
    return path


@contextlib.contextmanager
def put(name: str, value: str) -> Iterator[None]:
    """The setting has that value inside the block, for child processes too."""
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous
