"""When nothing may be built: RFOPS_JIT=0 for a process, `freeze` for what comes after warm-up.

RFOPS_JIT=0 is about the kernels of rfops, of HIP and of Triton; frozen is every Triton kernel, also
those that torch.compile makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .. import log, settings
from ..errors import JitDisabled

_MODES = ("warn", "error", "off")
_mode = "off"
when_frozen: list[Callable[[], None]] = []  # called by freeze()
_num_requests = 0  # blocks in which a build is what the user asked for


def freeze(mode: str = "error") -> None:
    """From now on a build is a mistake: "warn" logs each, "error" raises JitDisabled instead, "off"
    allows them again. Kernels of HIP and of Triton alike; what a cache has is no build.
    """
    global _mode
    if mode not in _MODES:
        raise ValueError(f"freeze: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    _mode = mode
    if mode != "off":
        for hook in when_frozen:
            hook()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """`rfops build` builds whatever the settings say."""
    global _num_requests
    _num_requests += 1
    try:
        yield
    finally:
        _num_requests -= 1


def may_build() -> bool:
    """Whether a compiler may be started at all."""
    return bool(_num_requests) or settings.text("RFOPS_JIT") != "0"


def is_frozen() -> bool:
    """Return whether `freeze` is in force, as a warning or as an error."""
    return _mode != "off"


def check_build(missing: str, command: str, is_own: bool = True) -> None:
    """Called before every build; RFOPS_JIT is about `is_own`. Raises JitDisabled."""
    if is_own and not may_build():
        raise JitDisabled("RFOPS_JIT=0 forbids building", missing, command)
    if _num_requests or _mode == "off":
        return
    if _mode == "error":
        raise JitDisabled('rfops.freeze("error") forbids building', missing, command)
    log.get().warning("built after rfops.freeze(): %s; prebuild: %s", missing, command)
