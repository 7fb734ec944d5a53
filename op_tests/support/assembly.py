"""What the compiler made of a module: the assembly of a variant, and its loops."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache

from rfops.jit import paths
from rfops.jit.build.spec import module_spec


def assembly(module: str, arch: str, defines: Mapping[str, object]) -> list[str]:
    """Instructions and labels, without comments, by ziglang's clang."""
    text = _text(module, arch, _words(defines)).split(".Lfunc_end")[0]
    lines = (line.split(";")[0].strip() for line in text.splitlines())
    return [
        line for line in lines if re.match(r"[a-z]\w*( |$|\t)|\.LBB\w+:", line) and "=" not in line
    ]


def code_bytes(module: str, arch: str, defines: Mapping[str, object]) -> int:
    """Of its first kernel, as the same compiler says."""
    return int(re.findall(r"codeLenInByte = (\d+)", _text(module, arch, _words(defines)))[0])


def lds_bytes(module: str, arch: str, defines: Mapping[str, object]) -> int:
    """That its first kernel has of its own."""
    return int(re.findall(r"LDSByteSize: (\d+)", _text(module, arch, _words(defines)))[0])


def _words(defines: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"-DRFOPS_{k}={v}" for k, v in defines.items())


@cache
def _text(module: str, arch: str, defines: tuple[str, ...]) -> str:
    spec = module_spec(module)
    return subprocess.run(
        [sys.executable, "-m", "ziglang", "clang", "-x", "hip", "--cuda-device-only",
         f"--offload-arch={arch}", "-nogpuinc", "-nogpulib", "-std=c++20", "-O3", "-S",
         f"-I{paths.INCLUDE}", f"-I{paths.CSRC}",
         *spec.device_flags, *defines, str(spec.sources()[0]), "-o", "-"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def loops(lines: list[str]) -> list[list[str]]:
    """The loops with matrix instructions: from a label to the last branch back to it."""
    offset = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    ends = {}
    for i, line in enumerate(lines):
        match = re.match(r"s_c?branch\w*\s+(\.LBB\w+)", line)
        if match and offset[match[1]] < i:
            ends[offset[match[1]]] = i
    spans = [lines[begin : end + 1] for begin, end in sorted(ends.items())]
    return [span for span in spans if any("mfma" in line for line in span)]


def loop(lines: list[str]) -> list[str]:
    """The longest of them."""
    return max(loops(lines), key=len)


def counted(lines: list[str]) -> Counter[str]:
    return Counter(line.split()[0] for line in lines if not line.endswith(":"))


def number(counts: Counter[str], pattern: str) -> int:
    return sum(count for name, count in counts.items() if re.match(pattern, name))
