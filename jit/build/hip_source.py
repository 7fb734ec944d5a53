"""HIP sources to objects, as hipcc builds them, where there is no ROCm.

A source is compiled for each architecture, whose code objects go into the host's object; and for
the host, where `kernel<<<...>>>` is a call of libamdhip64's. The compiler is ziglang's clang, HIP's
headers are those that Triton brings, what both lack is in csrc/hip_shim/.
"""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .. import paths
from . import toolchain

SHIM = paths.CSRC / "hip_shim"
CXX = ("-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=1")
HIP_DEFINES = ("-D__HIP_PLATFORM_AMD__=1",)
FOR_HOST = ("--target=x86_64-linux-gnu", "--cuda-host-only")
FOR_DEVICE = ("--cuda-device-only",)
_HOST_ENTRY = "host-x86_64-unknown-linux-gnu-"
_PAGE = 4096


class CannotBuild(RuntimeError):
    """Sources of HIP: why they cannot be built here."""


def code_object(source: Path, flags: Sequence[str], arch: str, output: Path) -> None:
    """The code object of a source's device half. Beside it stays its assembly, `.s`."""
    assembly, elf = output.with_suffix(".s"), output.with_suffix(".elf.o")
    device_assembly(source, flags, arch, assembly)
    zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", assembly, "-o", elf)
    zig("ld.lld", "-shared", elf, "-o", output)


def device_assembly(source: Path, flags: Sequence[str], arch: str, output: Path) -> str:
    """The assembly of a source's device half; returns what the compiler said."""
    common = [*clang_for(arch), "-O3", *flags, *FOR_DEVICE, *_bitcode()]
    return zig(*common, "-S", source, "-o", output)


def host_object(source: Path, flags: Sequence[str], arch: str, fat: Path, output: Path) -> str:
    """The object of a source's host half, which holds the bundle `fat`; returns what the compiler
    said."""
    holds = ("-Xclang", "-fcuda-include-gpubinary", "-Xclang", fat)
    common = [*clang_for(arch), "-O1", *flags, *FOR_HOST, "-fPIC"]
    return zig(*common, *holds, "-c", source, "-o", output)


def clang_for(arch: str) -> list[str]:
    """clang, and the flags of each half."""
    shim = [f"-isystem{SHIM}", f"-isystem{amd_folder() / 'include'}"]
    return [
        "clang",
        *("-x", "hip", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib"),
        *CXX,
        *HIP_DEFINES,
        *("-resource-dir", str(_zig_folder() / "lib"), "-include", str(SHIM / "wrapper.h")),
        *shim,
    ]


def bundle_of(codes: Sequence[tuple[str, Path]]) -> bytes:
    """The bundle that a host object or a file of hipModuleLoad holds, of code objects by
    architecture."""
    images = [(f"hipv4-amdgcn-amd-amdhsa--{arch}", file.read_bytes()) for arch, file in codes]
    return bundle([(_HOST_ENTRY, b""), *images])


def bundle(images: Sequence[tuple[str, bytes]]) -> bytes:
    """clang's offload bundle: a head, then each entry's bytes on a page of their own."""
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(images))
    size = len(head) + sum(24 + len(name) for name, _ in images)
    offset, body = -(-size // _PAGE) * _PAGE, b""
    for name, data in images:
        head += struct.pack("<QQQ", offset + len(body), len(data), len(name)) + name.encode()
        body += data + b"\0" * (-len(data) % _PAGE)
    return head.ljust(offset, b"\0") + body


def amd_folder() -> Path:
    """Triton's folder of AMD's headers and device library."""
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent / "backends" / "amd" if spec and spec.origin else Path()
    if not (folder / "include" / "hip" / "hip_runtime.h").is_file():
        raise CannotBuild("HIP's headers are not here: pip install triton, which brings them")
    return folder


def _bitcode() -> list[str]:
    files = [str(amd_folder() / "lib" / name) for name in ("ocml.bc", "ockl.bc")]
    return [w for f in files for w in ("-Xclang", "-mlink-builtin-bitcode", "-Xclang", f)]


def _zig_folder() -> Path:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise CannotBuild("a clang that knows HIP is not here: pip install ziglang")
    return Path(spec.origin).parent


def zig(*arguments: str | Path) -> str:
    """What a tool of ziglang's prints. Raises CannotBuild where it fails."""
    return run([str(_zig_folder() / "zig"), *map(str, arguments)])


def run(command: Sequence[str]) -> str:
    """What a compiler or linker prints. Raises CannotBuild, its errors in short, where it fails."""
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        env=toolchain.environment(),
    )
    output = completed.stdout + completed.stderr
    if completed.returncode != 0:
        raise CompilerFailed(command, completed.returncode, output)
    return output


class CompilerFailed(CannotBuild):
    """A compiler's or linker's run that failed; `output` is all that it printed."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        self.output = output
        errors = [line for line in output.splitlines() if "error" in line or "undefined" in line]
        super().__init__("; ".join(errors[:5]) or f"{command[0]}: status {status}: {output[-500:]}")
