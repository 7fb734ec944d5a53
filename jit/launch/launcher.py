"""The native launch path: a small C++ extension, built once like any module (csrc/launcher).

What is in the cache is used from the first bind or plan on. What is not is built by `rfops build`,
or in the background by a process that launches enough to gain from it; until then, and where there
are no Python headers, launches go through ctypes, 5 us instead of 0.5, and plans, also those of
Triton's kernels, are looked up in Python, 8 us instead of 0.5.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import threading
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from .. import log, settings
from ..errors import RfopsError
from ..forks import importing
from ..policy import strict
from . import modes
from .hip import raw_stream

if TYPE_CHECKING:
    from .bind import BoundKernel
    from .plans import Plans

MODULE = "launcher"
_ENOUGH = 1000  # 5 ms of ctypes, after which two seconds of a compiler may pay off

_native: ModuleType | None = None
_launches = 0
_kernels: weakref.WeakSet[BoundKernel] = weakref.WeakSet()
_plans: weakref.WeakSet[Plans] = weakref.WeakSet()
_loaded: list[ModuleType] = []  # more than one where the cache was moved: launches keep theirs
_slow_blocks = 0
_reads_tensors = False  # torch has the exchange API; without it plans stay in Python


def attach(kernel: BoundKernel) -> None:
    """Give the kernel the native launch, now or when it is built."""
    _kernels.add(kernel)
    look()
    if settings.text("RFOPS_LAUNCHER") == "auto" and _native is not None:
        _attach(_native, kernel)


def attach_plans(plans: Plans) -> None:
    """The same for an op's plans; loads nothing, as ops make them when they are imported."""
    _plans.add(plans)
    if _native is not None and _reads_tensors:
        plans.use_native(_native.Plans(*plans.native_args))


def look() -> None:
    """Load the extension if a cache has it; looks once a process."""
    if _native is None and settings.text("RFOPS_LAUNCHER") == "auto":
        _find()


def native() -> ModuleType | None:
    """The extension, if it has been loaded."""
    return _native


def slow_down(change: int) -> None:
    """+1: every launch goes through `BoundKernel.launch` of the class until -1."""
    global _slow_blocks
    _slow_blocks += change
    for module in _loaded:
        module.set_slow(_slow_blocks)


def count() -> None:
    """A launch through ctypes, or a plan looked up in Python; enough of them have the extension
    built."""
    global _launches
    _launches += 1
    if _launches == _ENOUGH and settings.text("RFOPS_LAUNCHER") == "auto" and _native is None:
        if strict.may_build() and not strict.is_frozen():
            threading.Thread(target=build, name="rfops-launcher", daemon=True).start()


def build() -> bool:
    """Build and load the extension now; False, with a line in the log, where that cannot be."""
    with importing:
        from ..build import host
        from ..build.spec import module_spec

    try:
        _load(str(host.build_host(module_spec(MODULE)).file))
    except (RfopsError, ImportError, OSError) as error:
        log.get().debug("launching through ctypes: %s", error)
        return False
    return True


@functools.cache
def _find() -> None:
    """Load the extension if a cache has it; once a process."""
    with importing:
        from ..build import toolchain
        from ..build.host import host_unit
        from ..build.spec import module_spec

    try:
        spec = module_spec(MODULE)
        for compiler in toolchain.known_compilers("host", toolchain.HOST_TARGET):
            unit = host_unit(spec, compiler)
            artifact = unit.shelf.find(unit.build_key)
            if artifact is not None:
                return _load(str(artifact.file))
    except (RfopsError, ImportError, OSError) as error:
        log.get().debug("launching through ctypes: %s", error)


def _load(file: str) -> None:
    global _native, _reads_tensors
    loader = importlib.machinery.ExtensionFileLoader("rfops_launcher", file)
    spec = importlib.util.spec_from_loader("rfops_launcher", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _reads_tensors = _set_up(module)
    module.set_slow(_slow_blocks)
    _loaded.append(module)
    _native = module
    for kernel in list(_kernels):
        _attach(module, kernel)
    for plans in list(_plans):
        attach_plans(plans)


def _set_up(module: ModuleType) -> bool:
    """Tell it of this torch; whether it can read its tensors."""
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    return bool(
        module.setup(
            torch.Tensor,
            torch.nn.Parameter,
            table,
            modes.MODES,
            modes.gradients(),
            modes.negative_bit(),
        )
    )


def _attach(module: ModuleType, kernel: BoundKernel) -> None:
    def slow(*args: Any, **kwargs: Any) -> None:
        type(kernel).launch(kernel, *args, **kwargs)

    calls = ("hipModuleLaunchKernel", "hipGetDevice", "hipSetDevice")
    # torch's own function is quicker than torch.cuda's, which makes a Stream object.
    get_stream = getattr(torch._C, "_cuda_getCurrentRawStream", raw_stream)
    launch = module.Launcher(
        *map(kernel.hip.address, calls),
        kernel.function.value,
        kernel.index,
        kernel.kernarg_size,
        kernel.layout,
        get_stream,
        slow,
        kernel.fail,
    )
    kernel.launch = launch  # type: ignore[method-assign]
