"""`rfops hipcc`: HIP programs compiled without ROCm, and run on the virtual GPU."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from rfops.cli import hipcc
from rfops.jit.arch import ARCHS
from rfops.jit.build import hip_source, toolchain
from rfops.vgpu import program
from support.command import good, rfops

pytestmark = pytest.mark.skipif(
    not toolchain._zig("clang"), reason="ziglang is not installed: pip install -e '.[clang]'"
)

KERNELS = r"""
#include "scale.h"

__constant__ float offset = 0.25f;
__device__ int calls;

template <int kThreads>
__global__ void scale(float* out, const float* x, int count) {
  __shared__ float tile[kThreads];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  tile[threadIdx.x] = i < count ? x[i] : 0.0f;
  __syncthreads();
  if (i < count) out[i] = FACTOR * tile[threadIdx.x] + abs(-offset) + expf(0.0f) - 1.0f;
  if (threadIdx.x == 0) atomicAdd(&calls, 1);
}

void launch_scale(float* out, const float* x, int count) {
  scale<64><<<(count + 63) / 64, 64>>>(out, x, count);
}
int num_calls() {
  int found = -1;
  if (hipMemcpyFromSymbol(&found, HIP_SYMBOL(calls), sizeof found) != hipSuccess) return -2;
  return found;
}
"""
HEADER = """
#pragma once
#include <hip/device_functions.h>
#include <hip/hip_runtime.h>
void launch_scale(float* out, const float* x, int count);
int num_calls();
"""
MAIN = r"""
#include <cstdio>
#include <vector>
#include "scale.h"
extern "C" int plain_c(int);

int main() {
  const int count = 1000;
  std::vector<float> x(count), out(count, -1.0f);
  for (int i = 0; i < count; ++i) x[i] = i;
  float *x_gpu = nullptr, *out_gpu = nullptr;
  if (hipMalloc(&x_gpu, 4 * count) != hipSuccess || hipMalloc(&out_gpu, 4 * count) != hipSuccess)
    return 2;
  (void)hipMemcpy(x_gpu, x.data(), 4 * count, hipMemcpyHostToDevice);
  launch_scale(out_gpu, x_gpu, count);
  if (hipMemcpy(out.data(), out_gpu, 4 * count, hipMemcpyDeviceToHost) != hipSuccess) return 3;
  int wrong = 0;
  for (int i = 0; i < count; ++i) wrong += out[i] != 3.0f * i + 0.25f;
  std::printf("wrong %d, workgroups %d, c %d\n", wrong, num_calls(), plain_c(20));
  return wrong != 0;
}
"""
PLAIN_C = "int plain_c(int class) { return class + 1; }\n"  # no C++


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in (
        ("scale.hip", KERNELS),
        ("include/scale.h", HEADER),
        ("main.cpp", MAIN),
        ("plain.c", PLAIN_C),
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("arch", list(ARCHS))
def test_a_program_of_three_sources(arch: str, sources: Path) -> None:
    """In one command, for one architecture: a template, constants, globals, LDS, atomics, C."""
    words = ["scale.hip", "main.cpp", "plain.c", "-Iinclude", "-DFACTOR=3.0f", "-O2", "-o", "scale"]
    good("hipcc", *words, f"--offload-arch={arch}", cwd=sources)
    ran = good("run", "--arch", arch, "--", "./scale", cwd=sources)
    assert "wrong 0, workgroups 16, c 21" in ran
    other = next(name for name in ARCHS if name != arch)
    assert rfops("run", "--arch", other, "--", "./scale", cwd=sources).returncode != 0


def test_objects_libraries_and_both_architectures(sources: Path) -> None:
    """What build systems ask for: objects, dependencies, a shared library, a response file."""
    archs = ",".join(ARCHS)
    (sources / "flags").write_text("-I include '-DFACTOR=3.0f' -fPIC", encoding="utf-8")
    kernels = ["-MD", "-MT", "scale.o", "-MF", "scale.d", "-c", "scale.hip", "-o", "scale.o"]
    good("hipcc", "@flags", f"--offload-arch={archs}", *kernels, cwd=sources)
    depends = (sources / "scale.d").read_text(encoding="utf-8")
    assert depends.startswith("scale.o:") and "include/scale.h" in depends
    good("hipcc", "-shared", "scale.o", "-o", "libscale.so", cwd=sources)
    rest = ["main.cpp", "plain.c", "-L.", "-lscale", "-Wl,-rpath,$ORIGIN", "-o", "scale"]
    good("hipcc", "@flags", *rest, cwd=sources)
    for arch in ARCHS:
        assert "wrong 0" in good("run", "--arch", arch, "--", "./scale", cwd=sources)


def test_device_files(sources: Path) -> None:
    """A bundle that hipModuleLoad takes, an architecture's assembly, and what hipcc is."""
    flags = ["-Iinclude", "-DFACTOR=3.0f", "scale.hip"]
    good("hipcc", "--genco", *flags, "-o", "scale.co", cwd=sources)
    assert (sources / "scale.co").read_bytes().startswith(b"__CLANG_OFFLOAD_BUNDLE__")
    asm = ["--offload-arch=gfx942:sramecc+:xnack-", "--cuda-device-only", "-S", "-o", "scale.s"]
    good("hipcc", *asm, *flags, cwd=sources)
    assert "amdgcn-amd-amdhsa--gfx942" in (sources / "scale.s").read_text(encoding="utf-8")
    version = good("hipcc", "--version")
    assert version.startswith("HIP version: ") and "clang version" in version


def test_a_program_that_compiles_when_it_runs(sources: Path) -> None:
    """`hipcc` is on the path of a program, and the engine does not take it for a compiler."""
    script = sources / "build.py"
    script.write_text(
        "import ctypes, subprocess\n"
        "subprocess.check_call(['hipcc', '-shared', '-Iinclude', '-DFACTOR=3.0f', 'scale.hip',\n"
        "                       '-o', 'libscale.so'])\n"
        "from rfops.jit.build import toolchain\n"
        "assert toolchain.device_toolchain('gfx942').name == 'zig'\n"
        "print('calls', ctypes.CDLL('./libscale.so')._Z9num_callsv())\n",
        encoding="utf-8",
    )
    env = {"PATH": _path_without_hipcc(), "ROCM_PATH": "", "RFOPS_HIPCC": ""}
    ran = good("run", "--", sys.executable, "build.py", cwd=sources, **env)
    assert "calls 0" in ran


def _path_without_hipcc() -> str:
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(f for f in folders if not (Path(f) / "hipcc").exists())


def test_an_installed_hipcc_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, folder = tmp_path / "bin" / "hipcc", tmp_path / "run"
    real.parent.mkdir(), folder.mkdir()
    real.write_text("#!/bin/sh\n", encoding="utf-8")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{real.parent}{os.pathsep}{os.environ['PATH']}")
    path = program.environment("gfx942", folder)["PATH"]
    assert shutil.which("hipcc", path=path) == str(real)


def test_what_a_compiler_says(sources: Path) -> None:
    """Errors once, with their place; a warning; status 1."""
    (sources / "bad.hip").write_text("__global__ void f() { nonsense; }\n", encoding="utf-8")
    failed = rfops("hipcc", "-c", "bad.hip", cwd=sources)
    assert failed.returncode == 1 and failed.stderr.count("error:") == 1
    assert "bad.hip:1:" in failed.stderr and not (sources / "bad.o").exists()
    (sources / "odd.hip").write_text("int f() { int unused; return 1; }\n", encoding="utf-8")
    warned = rfops("hipcc", "-Wall", "-c", "odd.hip", cwd=sources)
    assert warned.returncode == 0 and "unused variable" in warned.stderr


# A block of 100 threads: its second wave lacks lanes, its last tile of 8 four of them.
GROUPS = r"""
#include <hip/hip_cooperative_groups.h>
#include <cstdio>
namespace cg = cooperative_groups;
constexpr int kThreads = 100, kBlocks = 3, kAll = kThreads * kBlocks;

__device__ unsigned rank_of(const cg::thread_group& group) { return group.thread_rank(); }

__global__ void groups(int* wrong, int* values) {
  const cg::thread_block block = cg::this_thread_block();
  const cg::grid_group grid = cg::this_grid();
  const int rank = block.thread_rank(), id = grid.thread_rank();
  int bad = rank != threadIdx.x || block.size() != kThreads || grid.size() != kAll;
  bad += id != blockIdx.x * kThreads + rank || rank_of(block) != rank;

  const auto tile = cg::tiled_partition<8>(block);
  const cg::thread_block_tile<8> any_parent = tile;
  bad += tile.meta_group_size() != 13 || any_parent.meta_group_rank() != rank / 8;
  bad += tile.thread_rank() != rank % 8 || tile.shfl(rank, 2) != rank / 8 * 8 + 2;
  bad += tile.shfl_xor(rank, 1) != (rank ^ 1);
  bad += tile.ballot(rank % 2 == 1) != (rank < 96 ? 0xaa : 0x0a) || !tile.all(rank >= 0);
  bad += tile.any(rank == 50) != (rank / 8 == 6);
  const auto thirds = cg::binary_partition(tile, rank % 8 < 3);
  bad += thirds.size() != (rank % 8 < 3 ? 3 : rank < 96 ? 5 : 1);
  const cg::thread_group eighth = cg::tiled_partition(block, 8);
  bad += eighth.size() != 8 || eighth.thread_rank() != rank % 8;

  if (rank % 3 == 0) {  // in the first wave lanes 0, 3, ..., 63; in the second 2, 5, ..., 35
    const auto lanes = cg::coalesced_threads();
    const unsigned own = rank < 64 ? rank / 3 : (rank - 66) / 3;
    bad += lanes.size() != (rank < 64 ? 22 : 12) || lanes.thread_rank() != own;
    bad += lanes.shfl(rank, 1) != (rank < 64 ? 3 : 69);
    bad += lanes.shfl_down(rank, 1) != (rank == 63 || rank == 99 ? rank : rank + 3);
    bad += lanes.ballot(own < 4) != 15;
  }
  values[id] = id;
  grid.sync();
  bad += values[kAll - 1 - id] != kAll - 1 - id;
  if (bad) atomicAdd(wrong, bad);
}

int main() {
  int *wrong, *values;
  if (hipMallocManaged(&wrong, 4) != hipSuccess || hipMalloc(&values, 4 * kAll) != hipSuccess)
    return 2;
  *wrong = 0;
  void* args[] = {&wrong, &values};
  const auto launched = hipLaunchCooperativeKernel((const void*)groups, dim3(kBlocks),
                                                   dim3(kThreads), args, 0, nullptr);
  if (launched != hipSuccess || hipDeviceSynchronize() != hipSuccess) return 3;
  std::printf("wrong %d\n", *wrong);
}
"""


def test_cooperative_groups(tmp_path: Path) -> None:
    """Blocks, tiles, the lanes of a branch, a grid that waits for all its blocks."""
    (tmp_path / "groups.hip").write_text(GROUPS, encoding="utf-8")
    good("hipcc", "groups.hip", "-o", "groups", cwd=tmp_path)
    assert "wrong 0" in good("run", "--check", "--", "./groups", cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a.hip", "-fgpu-rdc"], "-fgpu-rdc: device code of several sources"),
        (["a.hip", "--offload-arch=gfx1100"], "gfx1100: the virtual GPU is gfx942 or gfx950"),
        (["-c"], "no input files"),
        (["a.hip", "-o"], "-o: a word must follow"),
        (["-E", "a.hip"], "-E: sources are not only preprocessed"),
        (["-x", "fortran", "a.f"], "-x fortran: sources are HIP or C"),
        (["-c", "a.hip", "b.hip", "-o", "x.o"], "of 2 sources each has a file"),
        (["a.hip", "--cuda-host-only"], "host code is compiled with its kernels"),
    ],
)
def test_refusals(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("+", r"\+")):
        hipcc.parsed(words)


def test_no_such_file(tmp_path: Path) -> None:
    failed = rfops("hipcc", "none.hip", cwd=tmp_path)
    assert failed.returncode == 1 and "none.hip: no such file" in failed.stderr


def test_how_words_are_read() -> None:
    words = "-I inc -O3 a.cpp b.o -L lib -lm -Xarch_host -DHOST -Xarch_device -DDEVICE -pthread"
    found = hipcc.parsed(f"{words} -save-temps --offload-arch=gfx90a,gfx950".split())
    assert found.sources == [Path("a.cpp")] and found.archs == ["gfx950"]
    assert found.inputs == ["b.o", "-L", "lib", "-lm", "-pthread"]
    assert found.flags == ["-I", "inc", "-O3", "-pthread"]
    assert (found.host, found.device) == (["-DHOST"], ["-DDEVICE"])


def test_compilers_failures_are_short() -> None:
    output = "a.hip:1: error: x\nnote\n" * 9
    assert str(hip_source.CompilerFailed(["clang"], 1, output)).count("error") == 5
