"""How fast the virtual GPU executes, in wave-instructions a second: python op_tests/bench_vgpu.py

One row a loop: one core (RFOPS_VGPU_THREADS=1) and all cores, the median of several runs. A
wave-instruction is one instruction of one 64-lane wave. These are times of the host's CPU and say
nothing about AMD hardware.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 5
WAVES = 64  # workgroups of one wave
UNROLL = 32

# Loop bodies; each line is repeated UNROLL times on rotating registers.
LOOPS = {
    "VALU f32 (v_fma_f32)": "v_fma_f32 v{d}, v{a}, v{b}, v{d}",
    "VALU f32 with SGPR (v_mul_f32)": "v_mul_f32 v{d}, s20, v{a}",
    "VALU int (v_add_u32)": "v_add_u32 v{d}, v{a}, v{b}",
    "VALU packed f32 (v_pk_fma_f32)": "v_pk_fma_f32 v[{e}:{e1}], v[{g}:{g1}], v[{g}:{g1}], "
    "v[{e}:{e1}]",
    "VALU f16 (v_pk_fma_f16)": "v_pk_fma_f16 v{d}, v{a}, v{b}, v{d}",
    "VALU compare (v_cmp_lt_f32)": "v_cmp_lt_f32 vcc, v{a}, v{b}",
    "VALU transcendental (v_exp_f32)": "v_exp_f32 v{d}, v{a}",
    "SALU (s_add_u32)": "s_add_u32 s{s}, s{s}, 3",
}


def loop_source(body: str) -> str:
    lines = []
    for i in range(UNROLL):
        d, a, b = 8 + i % 16, 24 + i % 8, 32 + i % 8
        e, g = 8 + 2 * (i % 8), 24 + 2 * (i % 4)
        lines.append(body.format(d=d, a=a, b=b, e=e, e1=e + 1, g=g, g1=g + 1, s=24 + i % 8))
    unrolled = "\n  ".join(lines)
    # Numbers as f32 and as halves: 0.0078 and 1.003.
    values = "\n".join(f"  v_mov_b32 v{v}, 0x3c033c03" for v in range(8, 40))
    return f"""
{values}
  s_movk_i32 s16, 2000
  s_mov_b32 s20, 0x3f800001
loop%=:
  {unrolled}
  s_sub_u32 s16, s16, 1
  s_cmp_lg_u32 s16, 0
  s_cbranch_scc1 loop%=
"""


def measure() -> None:
    """Prints `name<TAB>instructions per second` for each loop, on the environment's threads."""
    import ctypes

    import numpy as np
    from vgpu_asm import Snippets, library

    count = library().rfops_vgpu_instructions
    count.restype = ctypes.c_uint64
    sources = [loop_source(body).replace("%=", str(i)) for i, body in enumerate(LOOPS.values())]
    batch = Snippets(sources)
    inputs = np.full((WAVES * 64, 4), 0x3F8000003F800000, np.uint64)
    for i, name in enumerate(LOOPS):
        rates = []
        for _ in range(ROUNDS):
            before, start = count(), time.perf_counter()
            batch.run(i, inputs)
            rates.append((count() - before) / (time.perf_counter() - start))
        print(f"{name}\t{statistics.median(rates)}", flush=True)


def rates(threads: int) -> dict[str, float]:
    environment = {**os.environ, "RFOPS_VGPU_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, __file__, "--measure"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {name: float(rate) for name, rate in rows}


def main() -> None:
    cores = os.cpu_count() or 1
    one, every = rates(1), rates(cores)
    print(f"virtual GPU, million wave-instructions a second on this host's CPU ({cores} cores)")
    print(f"{'loop':40} {'one core':>10} {'all cores':>10} {'a core':>10}")
    for name in LOOPS:
        print(
            f"{name:40} {one[name] / 1e6:10.1f} {every[name] / 1e6:10.1f} "
            f"{every[name] / 1e6 / cores:10.1f}"
        )


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["--measure"] else main()
