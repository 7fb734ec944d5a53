"""The cost model of HIP kernels, what the kernels feed it, and the choices that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rfops.dispatch.heuristic import Columns, Ranked, Work, prebuilt
from rfops.dispatch.op import ops
from rfops.jit.arch import ARCH_SPECS
from support.calls import default_config, default_moe, dense_call, grouped_call

CHIP = ARCH_SPECS["gfx950"]
WORK = Work(
    groups=256, waves=4, bytes=6e7, w_bytes=2.3e5, x_bytes=1e3, cycles=2400, waits=1, registers=64
)


def us(chip: Any = CHIP, **changes: Any) -> float:
    return float(replace(WORK, **changes).us(chip))


def test_the_slowest_part_is_the_time() -> None:
    """60 MB at the row's 6 TB/s are 10 us; then L2, the loads of a CU, the vector ALU."""
    start = CHIP.latency_us + 1024 * CHIP.dispatch_cycles / CHIP.xcds / (1e3 * CHIP.ghz)
    assert us() == pytest.approx(10 + start)
    assert us(replace(CHIP, hbm_tb_s=3.0)) == pytest.approx(20 + start)
    assert us(x_bytes=1e6) == pytest.approx(256 * 1.23e6 / 17e6 + start)
    assert us(replace(CHIP, latency_us=8.0)) > 50, "the bytes that a CU has on their way"
    assert us(cycles=48_000) == pytest.approx(20 + start)
    assert us(cycles=48_000, waves=5) == pytest.approx(40 + start, abs=0.1), "two on one SIMD"
    assert us(groups=257, cycles=48_000) == pytest.approx(40 + start, abs=0.3), "two on one CU"


def test_what_comes_on_top() -> None:
    assert us(waits=5) - us() == pytest.approx(CHIP.latency_us), "three of four waits are hidden"
    assert us(more_us=3.0) - us() == pytest.approx(3.0)
    assert us(lds_bytes=128 * 2400) - us() == pytest.approx(2.0), "written and read"
    crowded = replace(WORK, registers=256)
    assert crowded.per_cu == 2 and replace(WORK, registers=512).per_cu == 1


def test_order_of_preference() -> None:
    """No idle wave, least time, fewest waves, fewest registers; else as they stand."""
    table = Columns(["idle", "slow", "many waves", "many registers", "best", "as good"])
    work = replace(
        WORK,
        groups=np.array([1, 1, 256, 128, 128, 128]),
        waves=np.array([1, 1, 1, 1, 1, 1]),
        registers=np.array([8, 8, 8, 64, 32, 32]),
        bytes=0,
        w_bytes=0,
        x_bytes=0,
        cycles=0,
        waits=np.array([1, 9, 1, 1, 1, 1]),
        more_us=0,
        idle=np.array([True, False, False, False, False, False]),
    )
    assert table.ranked(work.costs(replace(CHIP, dispatch_cycles=0))) == [
        "best",
        "as good",
        "many registers",
        "many waves",
        "slow",
        "idle",
    ]


def test_every_hip_kernel_of_a_gemm_goes_by_it() -> None:
    hip = [k for op in ops().values() for k in op.kernels.values() if k.is_hip and k.Config]
    assert {kernel.name for kernel in hip if isinstance(kernel, Ranked)} >= {"gemv", "mfma", "moe"}
    for c, op in (
        (dense_call(4, 2304, 6144), "gemm_mxfp8"),
        (grouped_call(4, 1536, 6144, 128, 4, 4), "grouped_gemm_mxfp8"),
    ):
        for kernel in ops()[op].kernels.values():
            if isinstance(kernel, Ranked):
                ranked = list(kernel.candidates(c))
                assert ranked[0] == kernel.default(c) and len(ranked) == len(set(ranked)) > 20


@pytest.mark.parametrize(
    ("n", "k", "configs"),
    [
        (2304, 6144, ["64 4 2 3", "64 4 2 3", "64 3 2 3", "1 1 4 12 1", "1 1 4 12 1"]),
        (6144, 2048, ["64 4 2 1", "64 4 2 1", "64 4 2 1", "1 2 4 4 1", "1 2 4 4 1"]),
        (1536, 6144, ["64 4 2 3", "64 4 2 3", "64 3 2 3", "1 1 4 12 1", "1 2 4 3 4"]),
        (6144, 1536, ["16 4 2 3", "16 4 2 3", "16 3 2 3", "1 2 4 3 1", "1 2 4 3 1"]),
    ],
)
def test_variants_of_the_published_layers(n: int, k: int, configs: list[str]) -> None:
    """Of M = 1, 2, 4 the GEMV's, of 8 and 16 the matrix cores': their counters were compared."""
    kernels = ("gemv", "gemv", "gemv", "mfma", "mfma")
    results = [
        default_config(name, m, n, k) for name, m in zip(kernels, (1, 2, 4, 8, 16), strict=True)
    ]
    assert [" ".join(map(str, vars(config).values())) for config in results] == configs


def test_variants_of_the_published_experts() -> None:
    def found(n: int, k: int) -> list[str]:
        result = (default_moe(n, k, 128, m, 16) for m in (1, 4, 16))
        return [" ".join(map(str, vars(config).values())) for config in result]

    assert found(1536, 6144) == ["16 1 3 8", "16 2 3 8", "16 4 2 4"]
    assert found(6144, 768) == ["16 2 3 1", "16 2 3 1", "16 4 2 1"]


def test_prebuilt_variants_are_those_of_the_first_shapes() -> None:
    result = prebuilt("gemm_mxfp8", "gemv", M=(1, 2, 17))("gfx950")
    layers = ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536))
    expected = [default_config("gemv", m, n, k).defines(m) for n, k in layers for m in (1, 2)]
    assert [dict(pairs) for pairs in dict.fromkeys(tuple(d.items()) for d in expected)] == result
