"""Terms of predicted times of batched_gemm_a16w8_blockscale, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rfops.cli import model_fit
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.time_model import Variants
from rfops.gemm.a16w8_blockscale import OP
from rfops.gemm.kernels.a16w8.config import RowsConfig, TilesConfig
from rfops.jit.arch import ARCH_SPECS


def terms_of(kernel: str, config: Any, arch: str, **sizes: int) -> dict[str, float]:
    model = model_fit.model_of(OP)
    c = OP.call_of(arch, ARCH_SPECS[arch].cus, **sizes)
    timed_kernel: Any = OP.kernels[kernel]
    work = model.work(Variants(model, [timed_kernel], [Columns([config])], c), c)
    values = [float(np.broadcast_to(term, 1)[0]) for term in work.terms]
    return dict(zip(model.terms, values, strict=True))


@pytest.mark.parametrize(
    ("sizes", "tile", "reads"),
    [
        # Two tiles of n: those of one are on four XCDs; one tile of m, and the batches' only.
        ((128, 61, 128, 512), (16, 64), 4),
        ((128, 61, 128, 512), (32, 64), 2),
        ((128, 61, 128, 512), (64, 64), 1),
        # One tile of n: its tiles of m are on as many XCDs, up to all eight.
        ((16, 659, 128, 512), (64, 128), 8),
        # Eight of n: all of one are on one XCD. Four: on two.
        ((128, 49, 512, 128), (16, 64), 1),
        ((128, 49, 512, 128), (16, 128), 2),
    ],
)
def test_xcds_load_the_same_rows_of_w(
    sizes: tuple[int, ...], tile: tuple[int, int], reads: int
) -> None:
    b, m, n, k = sizes
    terms = terms_of("tiles", TilesConfig(*tile, 128), "gfx950", B=b, M=m, N=n, K=k)
    num_bytes = reads * b * n * k + -(-n // tile[1]) * b * m * k * 2
    assert terms["fabric"] == pytest.approx(num_bytes / (1e6 * ARCH_SPECS["gfx950"].hbm_tb_s))


@pytest.mark.parametrize(
    ("config", "waves"),
    [
        (RowsConfig(8, 128, 1, 1), 2),  # 7 workgroups of one wave on the fullest CU's 4 SIMDs
        (RowsConfig(16, 128, 1, 1), 1),  # 4
        (RowsConfig(16, 128, 1, 2), 2),  # 4 of two
        (RowsConfig(32, 128, 1, 4), 2),  # 2 of four
    ],
)
def test_waves_of_the_simd_with_the_most(config: RowsConfig, waves: int) -> None:
    """All workgroups run at once: a wave's own time is that of one round."""
    terms = terms_of("rows", config, "gfx942", B=32, M=1, N=512, K=128)
    assert terms["stacked"] == pytest.approx(waves * terms["wave"])
    assert terms["stacked_convert"] == pytest.approx(waves * terms["wave_convert"])


def test_rows_of_x_are_multiplied_up_to_a_power_of_two() -> None:
    three, four, five = (
        terms_of("rows", RowsConfig(4, 512, 1, 2), "gfx950", B=32, M=m, N=128, K=512)["wave"]
        for m in (3, 4, 5)
    )
    assert three == four < five
