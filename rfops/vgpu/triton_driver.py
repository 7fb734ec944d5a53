"""Triton's AMD driver with the virtual GPU as its device. Imports triton: see vgpu.py, which is the
public side. All that depends on Triton's version is in this file.

Triton calls HIP through a C file of its own and keeps what it compiled by device number. The
virtual GPU is one device whose architecture can be chosen, so each architecture gets a number of
its own here, one that no real GPU has. Where torch.cuda is the virtual GPU (`rfops run`), its
architecture has torch's number, 0.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton.testing
from triton import knobs
from triton.backends import backends
from triton.backends.amd import driver as amd_driver
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver
from triton.runtime import driver as triton_driver
from triton.runtime.autotuner import Autotuner

from rfops import vgpu
from rfops.jit import BuildError, ToolchainNotFound, settings
from rfops.jit.build import toolchain
from rfops.jit.launch import hip, tensor_memory
from rfops.vgpu import timed

_DEVICES = {"gfx942": 942, "gfx950": 950}
_WAVE_SIZE = 64
_LAUNCHER = "Triton's launcher for AMD GPUs (C)"


# ---------------------------------------------------------------------------------------- driver


class VirtualDriver(amd_driver.HIPDriver):  # type: ignore[misc]
    """HIPDriver without torch.cuda: the device is the virtual GPU, the tensors are torch's CPU."""

    def __init__(self, arch: str, library: Path) -> None:
        GPUDriver.__init__(self)  # not HIPDriver's: that loads the HIP runtime of real GPUs
        self.arch = arch
        self.runtime = hip.runtime(torch.device("cpu"))
        self.takes_addresses = self.runtime.is_on_hsa  # AMD's runtime knows no CPU tensors
        self.utils = _utils(library)
        self.utils.load_binary = self._on_device(self.utils.load_binary, position=3)
        self.utils.get_device_properties = self._on_device(self.utils.get_device_properties, 0)
        self.launcher_cls = _Launcher
        self.get_current_device = lambda: _number_of(self.arch)
        self.set_current_device = self._set_device
        self.get_current_stream = lambda _device=None: 0
        self.get_device_capability = lambda _device=None: (9, 5 if self.arch == "gfx950" else 4)

    def _set_device(self, device: int) -> None:
        self.arch = _arch_of(device)

    def _on_device(self, call: Callable[..., Any], position: int) -> Callable[..., Any]:
        """The call with the device number at `position` turned into device 0 of that arch."""

        def on_device(*args: Any) -> Any:
            with _selection:
                self.runtime.select_arch(_arch_of(args[position]))
                return call(*args[:position], 0, *args[position + 1 :])

        return on_device

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("hip", self.arch, _WAVE_SIZE)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> type[_Device]:
        return _Device

    def get_benchmarker(self) -> Callable[..., Any]:
        bench: Callable[..., Any] = triton.testing.do_bench
        return bench  # which an Autotuner keeps, also after deactivate()

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.int)  # no cache to flush: the virtual GPU has none

    def allocate_default_profile_scratch(self, size: int, _alignment: int, _stream: Any) -> Any:
        return torch.zeros(size, dtype=torch.int8)


_selection = threading.Lock()  # from choosing an architecture until the call that depends on it


def _torch_arch() -> str | None:
    """Return the architecture of the virtual GPU that is torch.cuda's device 0; None without it."""
    module = sys.modules.get(f"{vgpu.__name__}.torch_cuda")
    return None if module is None else module.active_arch


def _number_of(arch: str) -> int:
    return 0 if arch == _torch_arch() else _DEVICES[arch]


def _arch_of(device: int | None) -> str:
    """Return a device number's architecture. None is the one in use; so is torch's 0 where it is
    the number of none here."""
    if not device:
        arch = None if device is None else _torch_arch()
        return arch or str(triton_driver.active.arch)
    for arch, number in _DEVICES.items():
        if number == device:
            return arch
    raise ValueError(f"device {device}: Triton's driver is that of the virtual GPU, {_DEVICES}")


class _Launcher(amd_driver.HIPLauncher):  # type: ignore[misc]
    """Adds to a launch's error what the virtual GPU knows of it; HIP's text is only its name."""

    def __init__(self, src: Any, metadata: Any) -> None:
        super().__init__(src, metadata)
        if settings.raw("RFOPS_VGPU_DEBUG"):  # the code object names no argument
            args = (f"{name}:{kind}" for name, kind in src.signature.items() if kind != "constexpr")
            library = ctypes.CDLL(str(triton_driver.active.runtime.path))
            library.rfops_vgpu_debug_args(metadata.name.encode(), " ".join(args).encode())

    def __call__(self, *args: Any) -> Any:
        try:
            if tensor_memory.is_registering():
                with tensor_memory.registered(triton_driver.active.runtime, args):
                    return super().__call__(*_passed(args))
            return super().__call__(*_passed(args))
        except RuntimeError as error:
            failure = error
        except SystemError as error:  # Triton's C code runs the exit hooks with its error pending
            if not isinstance(error.__cause__, RuntimeError):
                raise
            failure = error.__cause__
        detail = triton_driver.active.runtime.last_error()
        if detail:
            failure.add_note(f"virtual GPU: {detail}")
        raise failure


def _passed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Triton's C code takes: it asks the runtime for a tensor's pointer, but no integer's."""
    return _addresses(args) if triton_driver.active.takes_addresses else args


def _addresses(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_address, values))


def _address(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if type(value) is tuple:
        return _addresses(value)
    if isinstance(getattr(value, "base", None), torch.Tensor):  # a tensor descriptor
        described = copy.copy(value)
        described.base = value.base.data_ptr()
        return described
    return value


@contextlib.contextmanager
def loading(library: Path) -> Iterator[None]:
    """Let Triton's C functions load this HIP library, whatever its file's name: Triton's setting
    takes libamdhip64.so alone, and ROCm's runtime without headers has libamdhip64.so.7."""
    find = amd_driver._get_path_to_hip_runtime_dylib
    amd_driver._get_path_to_hip_runtime_dylib = lambda: str(library)
    try:
        yield
    finally:
        amd_driver._get_path_to_hip_runtime_dylib = find


def _utils(library: Path) -> Any:
    """Triton's C functions bound to `library`; HIPUtils() itself is one for the process."""
    with loading(library):
        utils = object.__new__(amd_driver.HIPUtils)
        utils.__init__()
    return utils


# ---------------------------------------------------------------------------------------- time


class _Event:
    """torch.cuda.Event by the model's clock. Launches are timed, from cold caches, from the first
    `record` of a timing event for as long as it lives: while it does, an interval may begin there.
    """

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._timing = enable_timing
        self._time_ps: int | None = None  # picoseconds

    def record(self, _stream: Any = None) -> None:
        if not self._timing:
            return
        mode = timed.mode(vgpu.library_path())
        if self._time_ps is None:
            block = timed.Block(_COLD, follows=True)
            mode.start(block)
            weakref.finalize(self, mode.stop, block).atexit = False
        self._time_ps = mode.modelled_ps()

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds of the launches between the two records, as the model estimates them."""
        if self._time_ps is None or end._time_ps is None:
            raise RuntimeError(
                "elapsed_time: both events must be created with enable_timing=True and recorded"
            )
        return (end._time_ps - self._time_ps) / 1e9

    def synchronize(self) -> None: ...

    def wait(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class _Device:
    """What Triton takes of torch.cuda."""

    Event = _Event

    @staticmethod
    def synchronize(_device: Any = None) -> None: ...

    @staticmethod
    def current_device() -> int:
        return int(triton_driver.active.get_current_device())


_RETURN_MODES = ("mean", "median", "min", "max", "all")
_COLD = "cold=1 kind=profiler"
_REPLAYED = "cold=0 kind=graph"


def do_bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    conditions: str = _COLD,
) -> Any:
    """triton.testing.do_bench on the virtual GPU: a call that compiles, and one that is timed.

    Returns the estimate of all launches of that call, which does not vary: `warmup` and `rep` have
    nothing to average over. As do_bench clears the caches before each call, operands come from
    memory; in a replayed graph from the Infinity Cache, as far as they fit. Each launch counts as a
    profiler sees it, what a pair of events adds is left out. Raises ValueError for an unknown
    `return_mode`.
    """
    if return_mode not in _RETURN_MODES:
        raise ValueError(
            f"do_bench: return_mode must be one of {', '.join(_RETURN_MODES)}, got {return_mode!r}"
        )
    fn()
    for tensor in grad_to_none or ():
        tensor.grad = None
    mode = timed.mode(vgpu.library_path())
    with mode.on(timed.Block(conditions, follows=True)):
        start = mode.modelled_ps()
        fn()
        ms = (mode.modelled_ps() - start) / 1e9
    return triton.testing._summarize_statistics([ms], quantiles, return_mode)


# Triton's benchmark functions keep their identity and get other code: who imported one before
# activation has the same object, and the original would repeat for 125 ms of modelled time, thus
# some ten thousand simulated launches. These run with the globals of triton.testing.


def _bench_code(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    from rfops.vgpu import triton_driver

    return triton_driver.do_bench(fn, warmup, rep, grad_to_none, quantiles, return_mode)


def _graph_bench_code(
    fn: Callable[[], Any],
    rep: int = 20,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    from rfops.vgpu import triton_driver

    conditions = triton_driver._REPLAYED
    return triton_driver.do_bench(fn, 0, rep, grad_to_none, quantiles, return_mode, conditions)


_BENCHES = {
    "do_bench": _bench_code,
    "do_bench_proton": _bench_code,  # from Triton 3.9 on
    "do_bench_cudagraph": _graph_bench_code,
    "do_bench_cudagraph_proton": _graph_bench_code,
}


# A choice tuned for one architecture may not even fit another (LDS: 160 and 64 KB), and Triton's
# autotuner does not look at the device.
_tuned: weakref.WeakKeyDictionary[Autotuner, dict[str, Any]] = weakref.WeakKeyDictionary()


def _tuned_here(tuner: Autotuner) -> Any:
    return _tuned.setdefault(tuner, {}).setdefault(triton_driver.active.arch, {})


def _keep_cache(tuner: Autotuner, cache: Any) -> None:
    tuner.__dict__["cache"] = cache  # what it has without the virtual GPU


# -------------------------------------------------------------------------------- launcher's build


def _compiler() -> list[str]:
    """The C compiler that Triton would take, or ziglang's. Raises ToolchainNotFound."""
    rejected = []
    cc = settings.text("CC")
    for name in [cc] if cc else ["gcc", "clang", "cc"]:
        compiler = shutil.which(name)
        if compiler:
            return [compiler]
        rejected.append(f"CC={name}: not found" if cc else f"{name} on PATH: not found")
    if not cc:
        if importlib.util.find_spec("ziglang") is not None:
            return [sys.executable, "-m", "ziglang", "cc"]
        rejected.append("the ziglang package of this Python: not found")
    advice = f"Install gcc or clang (CC may name it), or: {toolchain.install_clang()}."
    raise ToolchainNotFound(_LAUNCHER, rejected, advice)


def _python_headers() -> str:
    scheme = sysconfig.get_default_scheme()
    # Debian's scheme names a folder that has no headers.
    folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    if not (Path(folder) / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ToolchainNotFound(
            _LAUNCHER,
            [f"{folder}/Python.h: not found"],
            f"Install the headers of this Python (on Debian: apt install python{version}-dev).",
        )
    return folder


def _build_launcher(
    name: str,
    src: str,
    srcdir: str,
    library_dirs: list[str],
    include_dirs: list[str],
    libraries: list[str],
    *_: Any,
) -> str:
    """Triton's hook for building a C extension: as its own, plus ziglang and errors that tell."""
    output = Path(srcdir) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [*include_dirs, srcdir, _python_headers(), *knobs.build.backend_dirs]
    command = [*_compiler(), src, "-O3", "-shared", "-fPIC", "-w", "-o", str(output)]
    command += [
        f"-l:{lib}" if ".so" in lib or lib.endswith(".a") else f"-l{lib}" for lib in libraries
    ]
    command += [f"-L{folder}" for folder in library_dirs]
    command += [f"-I{folder}" for folder in folders if folder is not None]
    completed = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False
    )
    if completed.returncode != 0:
        raise BuildError(_LAUNCHER, command, completed.stdout + completed.stderr, None)
    return str(output)


# -------------------------------------------------------------------------------- on and off

_active: contextlib.ExitStack | None = None


def activate(arch: str, library: Path) -> None:
    """Make the virtual GPU Triton's device; where it is already, only choose the architecture."""
    global _active
    current = triton_driver._active
    if _active is not None and isinstance(current, VirtualDriver):
        if current.runtime.path == library:
            current.arch = arch
            return
    deactivate()
    with contextlib.ExitStack() as undo:
        undo.enter_context(_launcher_module())
        if knobs.build.impl is None:
            _replace(undo, knobs.build, "impl", _build_launcher)
        virtual = VirtualDriver(arch, library)
        for name, replacement in _BENCHES.items():
            bench = getattr(triton.testing, name, None)
            if bench is not None:
                _replace(undo, bench, "__code__", replacement.__code__)
                _replace(undo, bench, "__defaults__", replacement.__defaults__)
        Autotuner.cache = property(_tuned_here, _keep_cache)
        undo.callback(delattr, Autotuner, "cache")
        _only_active(undo)
        _replace(undo, triton_driver, "_active", virtual)
        _active = undo.pop_all()


def deactivate() -> None:
    """Undo what `activate` did, in reverse order."""
    global _active
    undo, _active = _active, None
    if undo is not None:
        undo.close()


@contextlib.contextmanager
def _launcher_module() -> Iterator[None]:
    """Keep what Triton's driver module knows of the HIP library in use before, and put it back."""
    names = ("PyTDMDescriptor", "PyKernelArg", "ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE")
    previous = {name: getattr(amd_driver, name) for name in names if hasattr(amd_driver, name)}
    try:
        yield
    finally:
        vars(amd_driver).update(previous)
        amd_driver._get_path_to_hip_runtime_dylib.cache_clear()


def _only_active(undo: contextlib.ExitStack) -> None:
    """Let AMD's driver alone say that it is active: libraries, vLLM among them, count those that do
    and take Triton away where it is not one."""
    for name, backend in backends.items():
        driver, is_amd = backend.driver, name == "amd"
        if driver is not None and "is_active" in vars(driver):
            undo.callback(setattr, driver, "is_active", vars(driver)["is_active"])
            driver.is_active = staticmethod(lambda is_amd=is_amd: is_amd)


def _replace(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
