"""How fast the virtual GPU executes on this host, against the bars it has to meet:

    python op_tests/bench_vgpu.py               everything but the build
    python op_tests/bench_vgpu.py --build       and one build of the virtual GPU from nothing
    python op_tests/bench_vgpu.py --only mfma   rows whose name contains that

Exit status 1 when a bar is missed. "One core" is one host thread, timed by the CPU time it takes,
which other processes disturb less; "all cores" is by the clock. Each row is the best of several
runs. A wave-instruction is one instruction of one 64-lane wave. These are times of the host's CPU
and say nothing about AMD hardware.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

WAVES = 64  # workgroups of one wave
UNROLL = 32
ROUNDS = 5


@dataclass(frozen=True)
class Row:
    """What is measured, in which unit, and the bar: at least (a rate, of a core) or at most."""

    name: str
    unit: str
    bar: float | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    def met(self, one: float | None, every: float, cores: int) -> bool:
        """A rate by what one core does, or its share of all; a time by what all take."""
        if self.bar is None:
            return True
        if not self.is_rate:
            return every <= self.bar
        return (every / cores if one is None else one) >= self.bar


# ---------------------------------------------------------------------------------- loops
# Bodies; each line is repeated UNROLL times on rotating registers.

INSTRUCTIONS, MACS = "M wave-instr/s", "GMAC/s"
VALU_BAR, MFMA_BAR = 50.0, 4.0
LOOPS = {
    Row("VALU f32: v_fma_f32", INSTRUCTIONS, VALU_BAR): "v_fma_f32 v{d}, v{a}, v{b}, v{d}",
    Row("VALU f32, SGPR: v_mul_f32", INSTRUCTIONS, VALU_BAR): "v_mul_f32 v{d}, s20, v{a}",
    Row("VALU int: v_add_u32", INSTRUCTIONS, VALU_BAR): "v_add_u32 v{d}, v{a}, v{b}",
    Row("VALU compare: v_cmp_lt_f32", INSTRUCTIONS): "v_cmp_lt_f32 vcc, v{a}, v{b}",
    Row("VALU packed f32: v_pk_fma_f32", INSTRUCTIONS): "v_pk_fma_f32 v[{e}:{e1}], v[{g}:{g1}], "
    "v[{g}:{g1}], v[{e}:{e1}]",
    Row("VALU packed f16: v_pk_fma_f16", INSTRUCTIONS): "v_pk_fma_f16 v{d}, v{a}, v{b}, v{d}",
    Row("VALU f64: v_fma_f64", INSTRUCTIONS): "v_fma_f64 v[{e}:{e1}], v[{g}:{g1}], v[{g}:{g1}], "
    "v[{e}:{e1}]",
    Row("VALU exp: v_exp_f32", INSTRUCTIONS): "v_exp_f32 v{d}, v{a}",
    Row("SALU: s_add_u32", INSTRUCTIONS): "s_add_u32 s{s}, s{s}, 3",
}


@dataclass(frozen=True)
class Matrix:
    """A matrix instruction: dwords of A (as of B) and of the result, products and sums, and what
    follows its operands."""

    mnemonic: str
    operand: int
    result: int
    macs: int
    tail: str = ""

    def body(self) -> str:
        a, b = f"v[8:{7 + self.operand}]", f"v[24:{23 + self.operand}]"
        return f"{self.mnemonic} {{acc{self.result}}}, {a}, {b}, {{acc{self.result}}}{self.tail}"


MATRICES = {
    Row("MFMA bf16 32x32x16", MACS, MFMA_BAR): Matrix(
        "v_mfma_f32_32x32x16_bf16", 4, 16, 32 * 32 * 16
    ),
    Row("MFMA bf16 16x16x32", MACS, MFMA_BAR): Matrix(
        "v_mfma_f32_16x16x32_bf16", 4, 4, 16 * 16 * 32
    ),
    Row("MFMA fp8 32x32x16", MACS, MFMA_BAR): Matrix(
        "v_mfma_f32_32x32x16_fp8_fp8", 2, 16, 32 * 32 * 16
    ),
    Row("MFMA fp8 16x16x128", MACS, MFMA_BAR): Matrix(
        "v_mfma_f32_16x16x128_f8f6f4", 8, 4, 16 * 16 * 128
    ),
    Row("MFMA fp8 16x16x128, scaled", MACS, MFMA_BAR): Matrix(
        "v_mfma_scale_f32_16x16x128_f8f6f4", 8, 4, 16 * 16 * 128, ", v40, v41"
    ),
    Row("MFMA i8 32x32x32", MACS): Matrix("v_mfma_i32_32x32x32_i8", 4, 16, 32 * 32 * 32),
    Row("MFMA f32 16x16x4", MACS): Matrix("v_mfma_f32_16x16x4_f32", 1, 4, 16 * 16 * 4),
    Row("MFMA f16 4x4x4, 16 blocks", MACS): Matrix(
        "v_mfma_f32_4x4x4_16b_f16", 2, 4, 4 * 4 * 4 * 16
    ),
    Row("MFMA f64 16x16x4", MACS): Matrix("v_mfma_f64_16x16x4_f64", 2, 8, 16 * 16 * 4),
    Row("MFMA f64 4x4x4, 4 blocks", MACS): Matrix("v_mfma_f64_4x4x4_4b_f64", 2, 2, 4 * 4 * 4 * 4),
}
_ZERO_ACC = "".join(f"  v_accvgpr_write_b32 a{i}, 0\n" for i in range(64))


def loop_source(body: str, label: int, steps: int) -> str:
    lines = []
    for i in range(UNROLL):
        d, a, b = 8 + i % 16, 24 + i % 8, 32 + i % 8
        e, g = 8 + 2 * (i % 8), 24 + 2 * (i % 4)
        acc = {
            f"acc{n}": f"a[{i % (64 // n) * n}:{i % (64 // n) * n + n - 1}]" for n in (2, 4, 8, 16)
        }
        lines.append(body.format(d=d, a=a, b=b, e=e, e1=e + 1, g=g, g1=g + 1, s=24 + i % 8, **acc))
    unrolled = "\n  ".join(lines)
    # Numbers as f32 and as halves: 0.0078 and 1.003.
    values = "\n".join(f"  v_mov_b32 v{v}, 0x3c033c03" for v in range(8, 40))
    return f"""
{values}
{_ZERO_ACC if "{acc" in body else ""}
  s_movk_i32 s16, {steps}
  s_mov_b32 s20, 0x3f800001
loop{label}:
  {unrolled}
  s_sub_u32 s16, s16, 1
  s_cmp_lg_u32 s16, 0
  s_cbranch_scc1 loop{label}
"""


Clock = Callable[[], float]


def best_seconds(run: Callable[[], object], clock: Clock, rounds: int = ROUNDS) -> float:
    seconds = []
    for _ in range(rounds):
        start = clock()
        run()
        seconds.append(clock() - start)
    return min(seconds)


def measure_loops(rows: set[Row], clock: Clock, scale: float) -> Iterator[tuple[Row, float]]:
    import numpy as np

    from support.vgpu.asm import Snippets, library

    bodies = {**LOOPS, **{row: matrix.body() for row, matrix in MATRICES.items()}}
    selected = {row: body for row, body in bodies.items() if row in rows}
    if not selected:
        return
    steps = {row: max(1, int((100 if row in MATRICES else 2000) * scale)) for row in selected}
    batch = Snippets(
        [loop_source(body, i, steps[row]) for i, (row, body) in enumerate(selected.items())]
    )
    inputs = np.full((WAVES * 64, 4), 0x3F8000003F800000, np.uint64)
    count = library().rfops_vgpu_instructions
    count.restype = ctypes.c_uint64
    for i, row in enumerate(selected):
        run = functools.partial(batch.run, i, inputs)
        previous = count()
        run()
        instructions = count() - previous
        seconds = best_seconds(run, clock)
        if row in MATRICES:
            yield row, steps[row] * UNROLL * WAVES * MATRICES[row].macs / seconds / 1e9
        else:
            yield row, instructions / seconds / 1e6


# ---------------------------------------------------------------------------------- GEMM, launch

GEMM = (1024, 1536, 7168)  # 11 GMAC
GEMM_SECONDS, LAUNCH_MICROSECONDS, BUILD_SECONDS = 5.0, 10.0, 90.0
HIP_GEMM = Row("fp8 GEMM 1024x1536x7168, HIP", "s", GEMM_SECONDS)
TRITON_GEMM = Row("fp8 GEMM 1024x1536x7168, Triton", "s", GEMM_SECONDS)
LAUNCH = Row("launch of an empty kernel", "us", LAUNCH_MICROSECONDS)
BUILD = Row("build of the virtual GPU", "s", BUILD_SECONDS)
BUILD_CPU = Row("build of the virtual GPU, CPU time", "s")


def measure_hip_gemm(shape: tuple[int, int, int], clock: Clock) -> float:
    from support.vgpu.asm import Module
    from support.vgpu.kernel_harness import compile_kernels

    m, n, k = shape
    a, b = gemm_inputs(m, n, k)
    out = torch.full((m, n), float("nan"))
    module = Module(compile_kernels("gemm_fp8", "gfx950", "O3"), "gfx950")
    pointers = (tensor.data_ptr().to_bytes(8, "little") for tensor in (out, a, b))
    arguments = b"".join([*pointers, n.to_bytes(4, "little"), k.to_bytes(4, "little")])
    grid = (m // 128, n // 128)
    seconds = best_seconds(lambda: module.launch("gemm_fp8", grid, 256, arguments), clock, rounds=2)
    check_gemm(out, a, b)
    return seconds


def measure_triton_gemm(shape: tuple[int, int, int], clock: Clock) -> float:
    import rfops.vgpu
    from support import vgpu_triton_kernels as kernels

    rfops.vgpu.activate_triton("gfx950")
    m, n, k = shape
    a, b = gemm_inputs(m, n, k)
    out = torch.full((m, n), float("nan"))

    def run() -> None:
        kernels.matmul[(m // 128, n // 128)](
            a, b, out, m, n, k, k, 1, 1, k, BM=128, BN=128, BK=128, ACC=kernels.tl.float32,
            PRECISION="ieee", EVEN_K=True, num_warps=4,
        )  # fmt: skip

    run()  # compiles
    seconds = best_seconds(run, clock, rounds=2)
    check_gemm(out, a, b)
    return seconds


def gemm_inputs(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """a [m, k] and b [n, k] of small integers: sums are exact in fp32."""
    source = torch.Generator().manual_seed(1)
    return tuple(
        torch.randint(-4, 5, (rows, k), generator=source).to(torch.float8_e4m3fn) for rows in (m, n)
    )


def check_gemm(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    if not torch.equal(out, a.float() @ b.float().T):
        raise SystemExit("the GEMM's result is wrong: its time says nothing")


def measure_launch(launches: int) -> float:
    """Microseconds from call to return of hipModuleLaunchKernel, ctypes' share included."""
    from support.vgpu.asm import check, library
    from support.vgpu.hip import compile_hip

    source = 'extern "C" __attribute__((global)) void empty() {}'
    with tempfile.TemporaryDirectory() as folder:
        code = compile_hip(source, "gfx950", Path(folder))
    lib, module, function = library(), ctypes.c_void_p(), ctypes.c_void_p()
    check(lib.rfops_vgpu_set_arch(b"gfx950"))
    check(lib.hipModuleLoadData(ctypes.byref(module), code))
    check(lib.hipModuleGetFunction(ctypes.byref(function), module, b"empty"))
    launch, shape = lib.hipModuleLaunchKernel, (1, 1, 1, 64, 1, 1, 0, None, None, None)
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def run() -> None:
        for _ in range(launches):
            launch(function, *shape)

    check(launch(function, *shape))
    return best_seconds(run, time.perf_counter) / launches * 1e6


def measure_build() -> Iterator[tuple[Row, float]]:
    """From an empty cache to the library, in a process of its own, with the compilers it starts."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import rfops.jit; rfops.jit.vgpu_library()"
        environment = {**os.environ, "RFOPS_CACHE_DIR": folder}
        start, previous = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        yield BUILD, time.perf_counter() - start
        now = os.times()
        cpu = now.children_user + now.children_system
        yield BUILD_CPU, cpu - previous.children_user - previous.children_system


# ---------------------------------------------------------------------------------- the table


def all_rows(build: bool) -> list[Row]:
    rows = [*LOOPS, *MATRICES, HIP_GEMM, TRITON_GEMM, LAUNCH]
    return [*rows, BUILD, BUILD_CPU] if build else rows


def measure(rows: set[Row], one_core: bool, scale: float) -> Iterator[tuple[Row, float]]:
    """On the threads that the environment allows. `scale` shortens, for tests."""
    clock = time.thread_time if one_core else time.perf_counter
    yield from measure_loops(rows, clock, scale)
    shape = GEMM if scale >= 1 else (128, 128, 128)
    for row, gemm in ((HIP_GEMM, measure_hip_gemm), (TRITON_GEMM, measure_triton_gemm)):
        if row in rows:
            yield row, gemm(shape, clock)
    if LAUNCH in rows:
        yield LAUNCH, measure_launch(max(1, int(3000 * scale)))
    if BUILD in rows and not one_core:
        yield from measure_build()


def measured(rows: list[Row], threads: int, scale: float) -> dict[str, float]:
    """In a process of its own, as the number of threads is fixed at the first launch."""
    names = json.dumps([row.name for row in rows])
    command = [sys.executable, __file__, "--measure", names, "--scale", str(scale)]
    command += ["--one-core"] if threads == 1 else []
    environment = {**os.environ, "RFOPS_VGPU_THREADS": str(threads)}
    completed = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(line) for line in completed.stdout.splitlines() if line.startswith("["))


def report(rows: list[Row], one: dict[str, float], every: dict[str, float], cores: int) -> bool:
    """Prints the table; whether all bars were met."""
    print(f"virtual GPU on this host's CPU, {cores} cores")
    print(f"{'':34} {'one core':>9} {'all cores':>10}  {'unit':15} {'bar':24}")
    kept = True
    for row in rows:
        alone, together = one.get(row.name), every[row.name]
        met = row.met(alone, together, cores)
        bar = "" if row.bar is None else f"at {'least' if row.is_rate else 'most'} {row.bar:g}"
        bar += " a core" if bar and row.is_rate else ""
        verdict = "" if row.bar is None else "met" if met else "MISSED"
        kept &= met
        shown = "" if alone is None else f"{alone:.2f}"
        print(f"{row.name:34} {shown:>9} {together:10.2f}  {row.unit:15} {bar:20} {verdict}")
    return kept


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="store_true", help="build the virtual GPU, too")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--one-core", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rows = [row for row in all_rows(build=True) if options.only.lower() in row.name.lower()]
    if options.measure:
        expected = set(json.loads(options.measure))
        selected = {row for row in rows if row.name in expected}
        for row, value in measure(selected, options.one_core, options.scale):
            print(json.dumps([row.name, value]), flush=True)
        return 0
    rows = [row for row in rows if options.build or row not in (BUILD, BUILD_CPU)]
    cores = os.cpu_count() or 1
    one, every = (measured(rows, threads, options.scale) for threads in (1, cores))
    return 0 if report(rows, one, every, cores) else 1


if __name__ == "__main__":
    sys.exit(main())
