"""Terms of predicted times of gemm_a8wfp4 and gemm_a16wfp4, against counts by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rfops.cli import model_fit
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.op import ops
from rfops.dispatch.time_model import Variants
from rfops.gemm.kernels.mxfp4.stream import StreamConfig
from rfops.gemm.kernels.mxfp4.tiles import TilesConfig
from rfops.jit.arch import ARCH_SPECS

CHIP = ARCH_SPECS["gfx950"]
SIZES = {"M": 48, "N": 4096, "K": 6144}


def terms_of(
    name: str, kernel: str, config: Any, sizes: Mapping[str, int] = SIZES
) -> dict[str, float]:
    op = ops()[name]
    model = model_fit.model_of(op)
    c = op.call_of("gfx950", CHIP.cus, **sizes)
    timed_kernel: Any = op.kernels[kernel]
    work = model.work(Variants(model, [timed_kernel], [Columns([config])], c), c)
    values = [float(np.broadcast_to(term, 1)[0]) for term in work.terms]
    return dict(zip(model.terms, values, strict=True))


@pytest.mark.parametrize(("name", "x_bytes"), [("gemm_a8wfp4", 33 / 32), ("gemm_a16wfp4", 2)])
def test_first_k_step_of_a_workgroup(name: str, x_bytes: float) -> None:
    """Of 8 waves of 16 rows of w and 32 rows of x, by 256 of K; of 2 waves along K, 3 tiles of 128
    each."""
    share = 1e6 * CHIP.hbm_tb_s / CHIP.cus  # bytes per us
    tiles = terms_of(name, "tiles", TilesConfig(2, 1, 2, 8))
    assert tiles["fill"] == pytest.approx(256 * (128 * 17 / 32 + 32 * x_bytes) / share)
    stream = terms_of(name, "stream", StreamConfig(3, 2, 3, 2))
    assert stream["fill"] == pytest.approx(768 * (32 * 17 / 32 + 48 * x_bytes) / share)


@pytest.mark.parametrize("name", ["gemm_a8wfp4", "gemm_a16wfp4"])
def test_a_waves_own_instructions(name: str) -> None:
    """Two waves share what one would do alone, and all are one round of workgroups."""
    one, two = (terms_of(name, "stream", StreamConfig(3, 1, 1, waves)) for waves in (1, 2))
    assert one["wave"] == pytest.approx(2 * two["wave"]) and two["wave"] > 0
    wide, narrow = (terms_of(name, "tiles", TilesConfig(2, n, 2, 4)) for n in (2, 1))
    assert narrow["wave"] < wide["wave"] <= 2 * narrow["wave"]


@pytest.mark.parametrize(
    ("name", "waves", "readers"),
    [
        ("gemm_a16wfp4", 4, 8),
        ("gemm_a16wfp4", 8, 4),
        ("gemm_a8wfp4", 4, 0),
        ("gemm_afp4wfp4", 4, 0),
    ],
)
def test_x_of_16_bits_is_read_by_each_xcd(name: str, waves: int, readers: int) -> None:
    """512 rows of w are 8 tiles of 4 waves, one of each of 8 XCDs, or 4 of 8 waves."""
    sizes = {"M": 567, "N": 512, "K": 7168}
    fabric = terms_of(name, "tiles", TilesConfig(1, 1, 2, waves), sizes)["fabric"]
    assert fabric == pytest.approx(readers * 567 * 7168 * 2 / (1e6 * CHIP.hbm_tb_s))


@pytest.mark.parametrize("name", ["gemm_afp4wfp4", "gemm_a8wfp4", "gemm_a16wfp4"])
def test_the_last_workgroup_of_a_tile_adds_its_parts(name: str) -> None:
    """Four of 32 x 128 fp32, and seven of 16 x 64."""
    bytes_per_us = 64 * 1e3 * CHIP.ghz
    tiles = terms_of(name, "tiles", TilesConfig(2, 1, 2, 8, split=4))
    assert tiles["reduction"] == pytest.approx(4 * 32 * 128 * 4 / bytes_per_us)
    stream = terms_of(name, "stream", StreamConfig(1, 4, 1, 2, split=7), {**SIZES, "M": 9})
    assert stream["reduction"] == pytest.approx(7 * 16 * 64 * 4 / bytes_per_us)
    assert terms_of(name, "tiles", TilesConfig(2, 1, 2, 8))["reduction"] == 0


@pytest.mark.parametrize("term", ["wave", "fill", "fabric"])
def test_x_of_4_bits_has_none_of_these(term: str) -> None:
    assert terms_of("gemm_afp4wfp4", "tiles", TilesConfig(2, 1, 2, 8))[term] == 0
