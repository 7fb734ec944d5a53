"""mla_decode's Triton kernel: its variants, on the virtual GPU of both architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rfops.attention.mla_decode import OP
from rfops.attention.mla_decode_triton import MlaTritonConfig
from support.mla_problems import assert_correct, problem, run

SHAPES: list[dict[str, Any]] = [
    {"lens": [0, 100, 33], "heads": 4, "qo_len": 4},
    {"lens": [100, 0, 33], "fp8": True, "q_fp8": True, "page": 16, "table": True},
    {"lens": [70], "heads": 40},
]
CONFIGS = [
    MlaTritonConfig(32, 1),
    MlaTritonConfig(32, 3, 32),
    MlaTritonConfig(16, 5),
    MlaTritonConfig(64, 2, 16, 8, 1),
]


@pytest.mark.thin(5)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: str(s["lens"]))
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_variants(
    arch: str, shape: dict[str, Any], config: MlaTritonConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a sequence that have no token, columns that are not there."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
    p = problem(**shape, arch=arch)
    actual = run("triton", p, config)
    assert_correct(actual, p)
    repeated = run("triton", p, config)
    assert all(torch.equal(a, b) for a, b in zip(actual, repeated, strict=True))


def test_pages_of_any_size_are_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    c = OP.call_of("gfx950", B=2, H=16, S=32, page=3)
    assert OP.route(c).backend == "triton"
    assert OP.route(c.with_sizes(page=4)).backend == "flow"
    p = problem([50, 7], 4, page=3)
    assert_correct(run("triton", p), p)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ((24, 1), "block_n must be a power of two"),
        ((8, 1), "block_n must be a power of two from 16 to 128, got 8"),
        ((32, 1, 8), "block_m must be 16, 32 or 64, got 8"),
        ((32, 0), "splits must be 1 to 64, got 0"),
        ((32, 1, 16, 4, 5), "stages must be 1 to 4, got 5"),
    ],
)
def test_configs_that_cannot_be(config: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MlaTritonConfig(*config)


def test_configs_as_text() -> None:
    config = MlaTritonConfig(64, 4)
    assert OP.config_of(OP.config_text(config)) == config


def test_what_is_not_taken() -> None:
    other = torch.float8_e4m3fnuz
    reason = OP.kernels["triton"].unsupported_reason(
        OP.call_of("gfx950", B=2, H=16, S=32, kv_dtype=other)
    )
    assert reason == f"gfx950 has torch.float8_e4m3fn, kv is {other}"
    assert "no tiles for sm_70" in str(
        OP.kernels["triton"].unsupported_reason(OP.call_of("sm_70", B=2, H=16, S=32))
    )
    default = OP.kernels["triton"].default
    for batch, tokens, splits in ((1, 8192, 64), (64, 8192, 8), (4, 1024, 16), (2048, 64, 1)):
        assert default(OP.call_of("gfx950", B=batch, H=16, S=batch * tokens)).splits == splits
