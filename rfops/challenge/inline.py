"""torch's `load_inline` for entries, against the virtual GPU: no ROCm is needed.

A HIP source is compiled as hipcc does (rfops.jit.build.hip_source). What was built is kept in the
cache by its content.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import hashlib
import importlib.util
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from rfops.jit import settings, vgpu_hsa_folder, vgpu_library_folder
from rfops.jit.build import hip_source, toolchain
from rfops.jit.build.hip_source import CannotBuild
from rfops.jit.cache import kept

_UNSUPPORTED_LIBRARIES = {
    "hipblas": "hipBLAS",
    "rocblas": "rocBLAS",
    "rocwmma": "rocWMMA",
    "ck/": "Composable Kernel",
    "ck_tile": "Composable Kernel",
    "hipcub": "hipCUB",
    "rocprim": "rocPRIM",
    "miopen": "MIOpen",
}


HSA = "libhsa-runtime64.so.1"


def uses_hsa(text: str) -> bool:
    """Whether a source names AMD's HSA runtime, below HIP: packets written to queues by hand."""
    return re.search(r"\bhsa_[a-z]|\bhsa/|libhsa-runtime64", text) is not None


def activate() -> None:
    """`torch.utils.cpp_extension.load_inline` is this one, for the rest of the process."""
    from torch.utils import cpp_extension

    _host_compiler()  # the user's: an entry may set CXX to what its competition's machine has
    cpp_extension.load_inline = load_inline  # type: ignore[assignment]


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str] = "",
    cuda_sources: str | Sequence[str] = "",
    functions: Any = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    verbose: bool = False,
    no_implicit_headers: bool = False,
    **_ignored: Any,
) -> Any:
    """As torch's: the module that pybind11 makes of the sources."""
    del verbose, extra_ldflags, extra_include_paths
    host = ["" if no_implicit_headers else "#include <torch/extension.h>", *_texts(cpp_sources)]
    names = functions if isinstance(functions, dict) else dict.fromkeys(_texts(functions or []))
    if names:
        rows = [f'  m.def("{n}", torch::wrap_pybind_function({n}), "{n}");' for n in names]
        host += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *rows, "}"]
    device = _texts(cuda_sources)
    if device and not no_implicit_headers:
        device = [*(f"#include <{header}>" for header in _IMPLICIT), *device]
    if device and "{" not in "".join(_texts(cpp_sources)):  # declarations: torch is read once less
        device += ["#if !defined(__HIP_DEVICE_COMPILE__)", *host, "#endif"]
        host = []
    texts = [_as_hip("\n".join(sources)) for sources in (host, device)]
    flags = [_flags(flag_texts or ()) for flag_texts in (extra_cflags, extra_cuda_cflags)]
    return _loaded(name, _library(name, (texts[0], texts[1]), (flags[0], flags[1])))


# What torch's headers for ROCm bring: entries use hip_bfloat16 without including it.
_IMPLICIT = ("torch/types.h", "hip/hip_runtime.h", "hip/hip_bfloat16.h")


def _texts(sources: str | Iterable[str]) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources)


def _as_hip(text: str) -> str:
    """CUDA's names as HIP's, which torch does to every extension on ROCm."""
    for library_name, library in _UNSUPPORTED_LIBRARIES.items():
        if re.search(rf"#include\s*<{re.escape(library_name)}", text):
            raise CannotBuild(f"{library} is not here: rfops eval builds what HIP alone can build")
    if "cuda" not in text.lower():
        return text
    from torch.utils.hipify.hipify_python import PYTORCH_MAP, RE_PYTORCH_PREPROCESSOR

    return RE_PYTORCH_PREPROCESSOR.sub(lambda match: str(PYTORCH_MAP[match[0]]), text)


def _flags(texts: Iterable[str]) -> list[str]:
    """Those of hipcc that clang knows, as a shell would split them; the architecture is the
    virtual GPU's."""
    arguments = [argument for text in texts for argument in shlex.split(text)]
    return [argument for argument in arguments if not argument.startswith(_DROPPED)]


_DROPPED = ("--offload-arch", "--rocm", "-save-temps", "--save-temps", "-Rpass", "-march=")


# ---------------------------------------------------------------- building


def _library(name: str, texts: tuple[str, str], flags: tuple[list[str], list[str]]) -> Path:
    """The shared library of a host's and a HIP text, each with its flags, from the cache or built
    now."""
    arch = settings.text("RFOPS_VGPU_ARCH")
    shim = [file.read_text(encoding="utf-8") for file in sorted(hip_source.SHIM.rglob("*.h"))]
    versions = torch.__version__, sys.version, hip_source.zig("version").strip()
    key_parts = [name, *texts, arch, *flags[0], "-", *flags[1], *shim, *versions]
    key = hashlib.sha256("\0".join(key_parts).encode()).hexdigest()[:40]
    return kept.library(key, f"{name}.so", lambda folder: _build(name, texts, flags, arch, folder))


def _build(
    name: str, texts: tuple[str, str], flags: tuple[list[str], list[str]], arch: str, folder: Path
) -> Path:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        objects = []
        if texts[0]:
            objects.append(pool.submit(_host_object, name, texts[0], flags[0], folder))
        if texts[1]:
            objects.append(pool.submit(_hip_object, name, texts[1], flags[1], arch, folder))
        files = [str(future.result()) for future in objects]
    torch_lib = Path(torch.__file__).parent / "lib"
    output = folder / f"{name}.so"
    hip = [str(vgpu_library_folder() / "libamdhip64.so")]
    hsa = [str(vgpu_hsa_folder() / "libhsa-runtime64.so")] if any(map(uses_hsa, texts)) else []
    libraries = [*hip, *hsa, f"-L{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]
    hip_source.run(
        [
            *_host_compiler(),
            "-shared",
            "-o",
            str(output),
            *files,
            *libraries,
            f"-Wl,-rpath,{torch_lib}",
        ]
    )
    return output


@functools.cache
def _host_compiler() -> tuple[str, ...]:
    return toolchain.host_toolchain().argv


def _host_object(name: str, text: str, flags: list[str], folder: Path) -> Path:
    source, output = folder / "main.cpp", folder / "main.o"
    source.write_text(text, encoding="utf-8")
    command = [
        *_host_compiler(),
        "-c",
        str(source),
        "-o",
        str(output),
        "-fPIC",
        *hip_source.CXX,
        *_defines(name),
    ]
    hip_source.run([*command, *_include_flags(), *flags, "-O0", "-w"])
    return output


def _hip_object(name: str, text: str, flags: list[str], arch: str, folder: Path) -> Path:
    source, code = folder / "kernels.hip", folder / "kernels.hsaco"
    fat, output = folder / "kernels.hipfb", folder / "kernels.o"
    source.write_text(text, encoding="utf-8")
    all_flags = [*_QUIET, *_defines(name), *_include_flags(), *flags]
    hip_source.code_object(source, all_flags, arch, code)
    fat.write_bytes(hip_source.bundle_of([(arch, code)]))
    hip_source.host_object(source, [*all_flags, "-O1"], arch, fat, output)
    return output


def check_for_host(source: Path, flags: list[str], arch: str) -> None:
    """What the host's half of a HIP source has to say, in a second: without torch's headers, and
    nothing is made of it."""
    clang = hip_source.clang_for(arch)
    hip_source.zig(*clang, *_QUIET, *flags, *hip_source.FOR_HOST, "-fsyntax-only", source)


_QUIET = ("-w", "-ferror-limit=5")


def _defines(name: str) -> list[str]:
    return [
        f"-DTORCH_EXTENSION_NAME={name}",
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        *hip_source.HIP_DEFINES,
        "-DUSE_ROCM=1",
    ]


def _include_flags() -> list[str]:
    torch_include = Path(torch.__file__).parent / "include"
    system = [
        torch_include,
        torch_include / "torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    ]
    hip = hip_source.SHIM, hip_source.amd_folder() / "include"
    return [*(f"-I{folder}" for folder in hip), *(f"-isystem{folder}" for folder in system)]


def _loaded(name: str, library: Path) -> Any:
    ctypes.CDLL(str(vgpu_library_folder() / "libamdhip64.so"))  # found by its name from now on
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
