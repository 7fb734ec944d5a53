"""FlyDSL's compiler and runtime with the virtual GPU as their device. Imports flydsl: see vgpu.py,
which is the public side. All that depends on FlyDSL's version is in this file.

FlyDSL needs three things of ROCm. Its runtime library asks the loader for `libamdhip64.so.7`, which
is the virtual GPU's SONAME: once that is loaded, nothing else is looked for. Its compiler calls
`llvm/bin/ld.lld` in ROCm's folder. And it asks ROCm's tools which architecture the GPU has.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from flydsl.compiler import jit_executor, jit_function

from rfops.jit import ConfigError, ToolchainNotFound, settings
from rfops.jit.launch import hip, tensor_memory

_TITLE = "FlyDSL's code objects (linker)"
_lock = threading.Lock()  # of the environment and of the architecture that is selected


# ------------------------------------------------------------------------------------- linker


def _linker() -> list[str]:
    """The lld that links code objects. Raises ToolchainNotFound."""
    rejected = []
    rocm = settings.path("ROCM_PATH")
    if rocm is not None:
        linker = shutil.which(str(rocm / "llvm" / "bin" / "ld.lld"))
        if linker:
            return [linker]
        rejected.append(f"ROCM_PATH={rocm}: no llvm/bin/ld.lld")
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    rejected.append("the ziglang package of this Python: not found")
    linker = shutil.which("ld.lld")
    if linker:
        return [linker]
    rejected.append("ld.lld on PATH: not found")
    advice = "Install LLVM's lld, point ROCM_PATH at ROCm, or: pip install 'rfops[clang]'."
    raise ToolchainNotFound(_TITLE, rejected, advice)


def _write_rocm(folder: Path) -> None:
    """As much of ROCm's folder as FlyDSL's compiler needs."""
    linker = folder / "llvm" / "bin" / "ld.lld"
    linker.parent.mkdir(parents=True)
    linker.write_text(f'#!/bin/sh\nexec {shlex.join(_linker())} "$@"\n')
    linker.chmod(0o755)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ------------------------------------------------------------------------------------- runtime


def _refuse_other_runtimes(library: Path) -> None:
    """FlyDSL's runtime takes whichever libamdhip64.so.7 is loaded first."""
    if torch.version.hip is not None:
        raise ConfigError(
            f"activate_flydsl: this torch is built for ROCm {torch.version.hip}, whose HIP runtime "
            "FlyDSL takes; the virtual GPU needs a build of torch without it"
        )
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[5] for line in lines if "/libamdhip64.so" in line}
    other_runtimes = {name for name in names if Path(name).resolve() != library.resolve()}
    if other_runtimes:
        raise ConfigError(
            "activate_flydsl: no other HIP runtime may be loaded in this process, because FlyDSL "
            f"uses the first one, got {', '.join(sorted(other_runtimes))}. Activate before it is "
            "loaded."
        )


def _tensors(args: Sequence[Any]) -> list[Any]:
    """The tensors in FlyDSL's own wrappers of them."""
    wrapped = ("torch_tensor", "dltensor")
    inner_tensors = [[getattr(arg, name) for name in wrapped if hasattr(arg, name)] for arg in args]
    return [inner[0] if inner else arg for inner, arg in zip(inner_tensors, args, strict=True)]


class _Hooks:
    """What is put around FlyDSL's functions while the virtual GPU is its device."""

    def __init__(self, arch: str, rocm: Path, library: Path) -> None:
        self.arch, self.rocm = arch, rocm
        self.runtime = hip.runtime(torch.device("cpu"))
        self.library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.run_before = jit_function.JitFunction._compile_or_execute
        self.compile_before = jit_function._run_pass_manager
        self.load_before = jit_executor.CompiledArtifact._get_func_exe
        self.launch_before = jit_executor.CallState.__call__

    def run(self, function: Any, *args: Any, **options: Any) -> Any:
        """A function keeps the target of its first call: ours is not that."""
        if function not in self.functions:
            self.functions.add(function)
            function._sig = None
        return self.run_before(function, *args, **options)

    def forget(self) -> None:
        for function in self.functions:
            function._sig = None

    def compile(self, *args: Any) -> None:
        with _lock, _environment(ROCM_PATH=str(self.rocm)):
            self.compile_before(*args)

    def load(self, artifact: Any) -> Any:
        """Code objects are loaded by the device that they are for."""
        with _lock:
            self.runtime.select_arch(self.arch)
            return self.load_before(artifact)

    def launch(self, state: Any, args: tuple[Any, ...]) -> Any:
        """FlyDSL's runtime only prints what HIP refuses; here it is a HipError."""
        self.library.hipGetLastError()
        registration = (
            tensor_memory.registered(self.runtime, _tensors(args))
            if tensor_memory.is_registering()
            else None
        )
        with registration or contextlib.nullcontext():
            result = self.launch_before(state, args)
        code = self.library.hipGetLastError()
        if code:
            self.runtime.fail("FlyDSL's launch", code)
        return result

    def install(self, undo: contextlib.ExitStack) -> None:
        undo.callback(self.forget)
        for owner, name, replacement in (
            (jit_function.JitFunction, "_compile_or_execute", self.run),
            (jit_function, "_run_pass_manager", self.compile),
            (jit_executor.CompiledArtifact, "_get_func_exe", self.load),
            (jit_executor.CallState, "__call__", self.launch),
        ):
            undo.callback(setattr, owner, name, getattr(owner, name))
            is_method = isinstance(owner, type)
            setattr(owner, name, _method(replacement) if is_method else replacement)


def _method(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a class binds: it passes its instance on."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return call(self, *args, **options)

    return method


# ------------------------------------------------------------------------------------- on and off

_activated = contextlib.ExitStack()  # undoes what `activate` did, in reverse order


def activate(arch: str, library: Path) -> None:
    """Make the virtual GPU FlyDSL's device; where it is already, choose the architecture."""
    deactivate()
    _refuse_other_runtimes(library)
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="rfops-flydsl-")))
        _write_rocm(folder)
        undo.enter_context(_environment(FLYDSL_GPU_ARCH=arch))
        _Hooks(arch, folder, library).install(undo)
        _activated.push(undo.pop_all())


def deactivate() -> None:
    """Undo what `activate` did."""
    _activated.close()
