"""Kernels that torch's load_inline builds when the entry is imported."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.cpp_extension import load_inline

# ---------------------------------------------------------------- building

DECLARED = """
void launch(int64_t kernel, std::vector<int64_t> grid, std::vector<int64_t> block, int64_t memory);
"""
BEGIN = """
#include <hip/hip_runtime.h>
#include <vector>
#if !defined(__HIP_DEVICE_COMPILE__)
#define __{arch}__ 1  // the host's pass reads the same constants
#endif
"""
END = """
struct Kernel {{
  const void* function;
  unsigned lds;
  std::vector<unsigned> offsets;  // of its arguments
}};
static const Kernel kernels[] = {{
{rows}
}};

// Grid and block of a kernel, and where its arguments lie packed.
void launch(int64_t kernel, std::vector<int64_t> grid, std::vector<int64_t> block,
            int64_t memory) {{
  const Kernel& own = kernels[kernel];
  void* args[64];
  for (size_t i = 0; i < own.offsets.size(); ++i) {{
    args[i] = reinterpret_cast<char*>(memory) + own.offsets[i];
  }}
  const dim3 groups(grid[0], grid[1], grid[2]), threads(block[0], block[1], block[2]);
  const hipError_t error = hipLaunchKernel(own.function, groups, threads, args, own.lds, nullptr);
  TORCH_CHECK(error == hipSuccess, "launch of kernel ", kernel, ": ", hipGetErrorString(error));
}}
"""


def variant_text(
    name: str, kernel: Mapping[str, Any], headers: Mapping[str, str], source: Mapping[str, Any]
) -> str:
    """A kernel's source with its constants, in a namespace and under names of its own."""
    number = name.rpartition("_")[2]
    macros = dict(f"RFOPS_{define}".split("=", 1) for define in kernel["defines"])
    macros |= {symbol: f"{symbol}_{number}" for symbol in source["symbols"]}
    lines = [f"#define {key} {value}" for key, value in macros.items()]
    lines += [f"namespace variant_{number} {{", *(headers[name] for name in source["headers"])]
    lines += [source["text"], "}"]
    names = dict.fromkeys([*macros, *re.findall(r"^#define (\w+)", source["text"], re.M)])
    return "\n".join([*lines, *(f"#undef {key}" for key in names)])


def _row(name: str, kernel: Mapping[str, Any]) -> str:
    """Of the table of kernels: an argument is a code of its struct, padding apart."""
    offsets, offset = [], 0
    for code in kernel["arguments"].split():
        offsets += [] if code.endswith("x") else [str(offset)]
        offset += struct.calcsize("<" + code)
    function = f"(const void*)variant_{name.rpartition('_')[2]}::{name}"
    return f"    {{{function}, {kernel.get('lds', 0)}, {{{', '.join(offsets)}}}}},"


def builder(
    problem: str,
    arch: str,
    kernels: Mapping[str, Any],
    headers: Mapping[str, str],
    sources: Mapping[str, Mapping[str, Any]],
) -> Callable[[str], Any]:
    """Builds all kernels, those of the same flags at once; function_of(name) is a kernel."""
    os.environ["PYTORCH_ROCM_ARCH"] = arch
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, kernel in kernels.items():
        groups.setdefault(tuple(sources[kernel["source"]]["flags"]), []).append(name)
    functions: dict[str, Any] = {}
    for number, (flags, names) in enumerate(groups.items()):
        variants = []
        for name in names:
            source = sources[kernels[name]["source"]]
            variants.append(variant_text(name, kernels[name], headers, source))
        rows = "\n".join(_row(name, kernels[name]) for name in names)
        text = "\n".join([BEGIN.format(arch=arch), *variants, END.format(rows=rows)])
        built = load_inline(
            name=f"{problem.replace('-', '_')}_{number}",
            cpp_sources=DECLARED,
            cuda_sources=text,
            functions=["launch"],
            extra_cuda_cflags=["-O3", "-std=c++20", *flags],
        )
        functions |= {name: (built.launch, index) for index, name in enumerate(names)}

    def function_of(name: str) -> Any:
        launch, index = functions[name]
        return lambda grid, block, memory: launch(index, grid, block, ctypes.addressof(memory))

    return function_of
