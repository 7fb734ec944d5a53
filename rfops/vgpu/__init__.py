"""The virtual GPU, for those who use it without an op of rfops: Triton kernels on CPU tensors.

    rfops.vgpu.activate_triton(arch="gfx950")
    kernel[grid](cpu_tensor, ...)

Triton's own AMD backend compiles for that architecture and Triton's own runtime launches, through
the HIP interface of the virtual GPU. Importing this module imports neither triton nor a library.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from rfops.jit import ConfigError, settings
from rfops.jit.arch import ARCHS

if TYPE_CHECKING:
    from rfops.vgpu.checking import Check
    from rfops.vgpu.counting import Profile
    from rfops.vgpu.timed import Timing

OLDEST_TRITON = (3, 6)
FLYDSL = (0, 4)  # the series whose internals flydsl.py knows
_INSTALL_FLYDSL = "pip install 'rfops[flydsl]'"
_INSTALL_TRITON = f"pip install 'triton>={'.'.join(map(str, OLDEST_TRITON))}'"


def library_path() -> Path:
    """The virtual GPU's libamdhip64.so, built on first use. Raises as rfops.jit.vgpu_library."""
    import torch  # the commands `run` and `debug` need no torch of their own

    from rfops.jit.launch import hip

    runtime = hip.runtime(torch.device("cpu"))
    if not runtime.is_virtual:
        raise ConfigError(
            f"RFOPS_HIP_LIBRARY={runtime.path} is not the virtual GPU's library, and Triton and "
            "FlyDSL on CPU tensors need that one; unset RFOPS_HIP_LIBRARY"
        )
    return runtime.path


def activate_triton(arch: str | None = None) -> None:
    """From now on `kernel[grid](...)` takes CPU tensors and runs on a virtual GPU of this `arch`.

    `arch` is "gfx950" or "gfx942"; None takes RFOPS_VGPU_ARCH. A later call with another one
    switches: each architecture keeps its own compiled kernels and its own autotuned choices.
    Triton's events, `triton.testing.do_bench` and autotune measure modelled time, an estimate: see
    `modelled_ms`. Raises ValueError for another architecture, ImportError without a Triton that is
    new enough, ToolchainNotFound or BuildError where Triton's launcher or the virtual GPU cannot be
    built.
    """
    arch = _chosen_arch("activate_triton", arch)
    _check_triton()
    library = library_path()
    from rfops.vgpu import triton_driver

    triton_driver.activate(arch, library)


def deactivate_triton() -> None:
    """Give Triton back the driver it had before `activate_triton`; nothing if it is not active."""
    loaded = sys.modules.get(f"{__name__}.triton_driver")
    if loaded is not None:
        loaded.deactivate()


def activate_flydsl(arch: str | None = None) -> None:
    """From now on FlyDSL's `@flyc.jit` functions take CPU tensors and run on a virtual GPU of this
    `arch`, compiled by FlyDSL's own compiler, launched by its own runtime.

    `arch` as for `activate_triton`; a later call with another one switches. A launch that fails is
    a HipError. Raises ValueError for another architecture, ImportError without a FlyDSL that rfops
    knows, ToolchainNotFound without lld, ConfigError where another HIP runtime is loaded.
    """
    arch = _chosen_arch("activate_flydsl", arch)
    _check_flydsl()
    library = library_path()
    _refuse_amd_runtime(library)
    from rfops.vgpu import flydsl

    flydsl.activate(arch, library)


def _refuse_amd_runtime(library: Path) -> None:
    import torch

    from rfops.jit.launch import hip

    if hip.runtime(torch.device("cpu")).is_on_hsa:
        raise ConfigError(
            f"RFOPS_HIP_LIBRARY={library} is AMD's HIP runtime, which knows no CPU tensors, so "
            "that FlyDSL refuses them; unset RFOPS_HIP_LIBRARY"
        )


def deactivate_flydsl() -> None:
    """Give FlyDSL back what it was before `activate_flydsl`; nothing if it is not active. Its
    runtime library stays bound to the virtual GPU in this process."""
    loaded = sys.modules.get(f"{__name__}.flydsl")
    if loaded is not None:
        loaded.deactivate()


def profile() -> AbstractContextManager[Profile]:
    """Counts what the launches of a `with` block do: `with rfops.vgpu.profile() as p`, and
    afterwards `p.launches`, one record each, Triton's included, with `launch.estimate()`, its time
    by `timing()`. Blocks may nest: a launch is in each. Costs nothing outside of them."""
    from rfops.vgpu import counting

    return counting.collect(library_path())


def check() -> AbstractContextManager[Check]:
    """Finds what the kernels of a `with` block do wrong: `with rfops.vgpu.check() as c`, and
    afterwards `c.findings`. Checked launches are slower, and run to their end all the same."""
    from rfops.vgpu import checking

    return checking.collect(library_path())


def timing(
    part: str | None = None,
    cold: bool = True,
    kind: str = "profiler",
    *,
    results: bool = True,
    detail: bool = True,
    events: int = 0,
    cold_code: bool = False,
) -> AbstractContextManager[Timing]:
    """How long the launches of a `with` block would take on hardware, and why: `with
    rfops.vgpu.timing() as t`, and afterwards `t.launches`. Blocks may nest; the innermost says how.

    part : "MI300X", "MI308X", "MI300A", "MI325X", "MI350X", "MI355X"; None is RFOPS_VGPU_PART's,
        else MI300X or MI355X by architecture, as for a part of another one.
    cold : operands come from memory; False: from the Infinity Cache, as far as they fit.
    kind : whose time: "profiler" (of the kernel), "event" (a pair around it), "graph" (in a row).
    results : False runs only the workgroups that the time is taken from; results are then wrong.
    detail : stalls by instruction. events : that many issues of the unit that is done last.
    cold_code : the instruction cache is empty, as in a first launch.

    Raises ValueError for another part or kind.
    """
    from rfops.vgpu import timed

    if kind not in timed.KINDS:
        raise ValueError(f"timing: kind must be one of {', '.join(timed.KINDS)}, got {kind!r}")
    flags = {"cold": cold, "results": results, "detail": detail, "cold_code": cold_code}
    options = [f"{name}={int(is_enabled)}" for name, is_enabled in flags.items()]
    options += [f"kind={kind}", f"events={events:d}", *([f"part={part}"] if part else [])]
    block = timed.collect(library_path(), " ".join(options))
    return block if results else _left_clean(block)


@contextmanager
def _left_clean(block: AbstractContextManager[Timing]) -> Iterator[Timing]:
    """What ops keep from call to call is as they want it, though only some workgroups ran."""
    try:
        with block as timing:
            yield timing
    finally:
        if workspaces := sys.modules.get("rfops.dispatch.workspace"):
            workspaces.clear()


def modelled_ms() -> float:
    """Estimated milliseconds on hardware of all launches that were timed so far, added up: those
    inside `timing()` and `profile()` blocks, Triton's do_bench and autotune, and from a timing
    event's `record()` on. The clock by which Triton on the virtual GPU measures; what the host does
    takes no time."""
    from rfops.vgpu import timed

    return timed.mode(library_path()).modelled_ps() / 1e9


def _chosen_arch(name: str, arch: str | None) -> str:
    if arch is None:
        arch = settings.text("RFOPS_VGPU_ARCH")
    if arch not in ARCHS:
        raise ValueError(f"{name}: arch must be one of {', '.join(ARCHS)}, got {arch!r}")
    return arch


def _check_flydsl() -> None:
    if importlib.util.find_spec("flydsl") is None:
        raise ImportError(f"activate_flydsl: FlyDSL is not installed; {_INSTALL_FLYDSL}")
    version = metadata.version("flydsl")
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) != FLYDSL:
        series = ".".join(map(str, FLYDSL))
        raise ImportError(
            f"activate_flydsl: FlyDSL {version} is not of the {series} series, whose insides rfops "
            f"knows; {_INSTALL_FLYDSL}"
        )


def _check_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise ImportError(f"activate_triton: Triton is not installed; {_INSTALL_TRITON}")
    version = _triton_version()
    version_numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if version_numbers < OLDEST_TRITON:
        raise ImportError(f"activate_triton: Triton {version} is too old; {_INSTALL_TRITON}")


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import triton  # built from source: no metadata, or that of another name

    return str(triton.__version__)
