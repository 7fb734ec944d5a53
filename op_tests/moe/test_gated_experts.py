"""fused_moe's kernels for biases and other activations: sizes that are no multiples of a tile, rows
that are not numbers, what runs, and what torch takes; against torch's formula, which
test_local_experts.py's reference holds at other sizes."""

from __future__ import annotations

import logging
import math
import os
from typing import Any

import pytest
import torch

import rfops
from rfops.cli import why
from rfops.dispatch.declare import fp8_of
from rfops.moe import gated_experts
from rfops.moe.kernels.bf16.triton import FusedMoeTritonConfig
from rfops.moe.kernels.gated.triton import GatedMoeTritonConfig
from rfops.quantization.mxfp4 import dequant_mxfp4

BF16, F16 = torch.bfloat16, torch.float16
M, E, K = 21, 5, 3
GPT_OSS: dict[str, Any] = {"activation": "swiglu", "interleaved": True}


@pytest.fixture(params=["gfx950", pytest.param("gfx942", marks=pytest.mark.sweep)], autouse=True)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def problem(format: str, d: int, i: int, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """fused_moe's arguments; some ids name no expert, and no token chooses the last expert. Those
    of FP8 are of the architecture's type."""
    x = random(M, 2 * d, seed=0)[:, ::2].to(dtype)
    weights = [random(E, 2 * i, d, seed=1) / d**0.5, random(E, d, i, seed=2) / i**0.5]
    words = {"bias1": random(E, 2 * i, seed=3).to(dtype), "bias2": random(E, d, seed=4)}
    if format == "fp8_blockscale":
        arch = os.environ["RFOPS_VGPU_ARCH"]
        given = [w.to(fp8_of(arch)) for w in weights]
        scales = [torch.rand(E, *[n // 128 for n in w.shape[1:]]) for w in weights]
        words |= {"quant": format, "w1_scale": scales[0], "w2_scale": scales[1]}
    elif format != "16-bit":
        quant = getattr(rfops, f"quant_{format.removesuffix('_weights')}")
        pairs = [quant(w.flatten(0, 1)) for w in weights]
        given = [q.view(E, w.shape[1], -1) for (q, _), w in zip(pairs, weights, strict=True)]
        words |= {"quant": format, "w1_scale": pairs[0][1], "w2_scale": pairs[1][1]}
    else:
        given = [w.to(dtype) for w in weights]
    ids = random(M, E - 1, seed=5).argsort(1)[:, :K].contiguous()
    ids[0, 0], ids[1, 1], ids[2] = -1, E, -1
    return [x, *given, torch.rand(M, K, generator=torch.Generator().manual_seed(6)), ids], words


def by_torch(monkeypatch: pytest.MonkeyPatch, args: list[Any], **words: Any) -> torch.Tensor:
    with monkeypatch.context() as patched:
        patched.setattr(gated_experts.gated_triton, "unsupported_reason", lambda *_: "a test")
        return rfops.fused_moe(*args, **words)


def assert_rows_close(got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    error = (got.double() - expected.double()).norm(dim=1)
    share = error / expected.double().norm(dim=1).clamp(min=1e-6)
    share = torch.where(share.isnan(), math.inf, share)
    worst = int(share.argmax())
    assert share[worst] <= bound, f"row {worst}: {share[worst]:.2e} of its norm"


def assert_no_spills(launches: Any) -> None:
    for launch in launches:
        spilled = launch.vgpr_spills, launch.sgpr_spills, launch.scratch_bytes_per_lane
        assert spilled == (0, 0, 0), f"{launch.kernel}: {spilled}"


# bound: of a row's norm; roundings of h and of experts' rows, in MXFP4 a code of h that falls the
# other way too: 2^-2 of some element at most.
@pytest.mark.parametrize(
    ("format", "d", "i", "dtype", "bound"),
    [
        ("mxfp4", 160, 96, BF16, 3e-2),
        ("mxfp4_weights", 160, 96, BF16, 1.2e-2),
        ("16-bit", 136, 72, F16, 2e-3),
        pytest.param("16-bit", 2880, 40, BF16, 1.2e-2, marks=pytest.mark.sweep),
        pytest.param("mxfp4", 2880, 32, BF16, 3e-2, marks=pytest.mark.sweep),
        pytest.param("mxfp4", 32, 32, F16, 3e-2, marks=pytest.mark.sweep),
    ],
)
def test_sizes_that_are_no_tiles(
    monkeypatch: pytest.MonkeyPatch, format: str, d: int, i: int, dtype: torch.dtype, bound: float
) -> None:
    """Two Triton kernels and a sum, the same in each run; a row that is not a number is its own
    token's alone."""
    args, words = problem(format, d, i, dtype)
    with rfops.vgpu.check() as checked, rfops.vgpu.profile() as p:
        got = rfops.fused_moe(*args, **words, **GPT_OSS)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    names = [launch.kernel for launch in p.launches]
    assert names[-1] == "add_rows" and {"gate_up", "down"} <= set(names)
    assert_no_spills(p.launches)
    assert_rows_close(got, by_torch(monkeypatch, args, **words, **GPT_OSS), bound)
    assert not got[2].any(), "a token without an expert"
    args[0] = args[0].clone()
    args[0][4] = math.nan
    again = rfops.fused_moe(*args, **words, **GPT_OSS)
    assert again[4].isnan().all()
    others = torch.arange(M) != 4
    assert torch.equal(again[others], got[others])


def test_rows_are_not_quantised() -> None:
    """Weights alone in MXFP4: the result is that of their values in bf16, which are exact."""
    (x, w1, w2, *choice), words = problem("mxfp4_weights", 160, 96, BF16)
    got = rfops.fused_moe(x, w1, w2, *choice, **words)
    scales = words.pop("w1_scale"), words.pop("w2_scale")
    words.pop("quant")
    values = [
        dequant_mxfp4(w.flatten(0, 1), scale).view(*w.shape[:2], -1).to(BF16)
        for w, scale in zip((w1, w2), scales, strict=True)
    ]
    assert_rows_close(got, rfops.fused_moe(x, *values, *choice, **words), 1.2e-2)


def test_rows_that_are_not_in_bf16() -> None:
    args, words = problem("mxfp4_weights", 160, 96, F16)
    with pytest.raises(ValueError, match="x must be bfloat16 where weights alone are quantised"):
        rfops.fused_moe(*args, **words)


def test_nothing_to_do() -> None:
    """No tokens; and no expert that any token has."""
    args, words = problem("16-bit", 136, 72, F16)
    none = rfops.fused_moe(args[0][:0], *args[1:3], args[3][:0], args[4][:0], **words, **GPT_OSS)
    assert none.shape == (0, 136)
    args[4] = torch.full_like(args[4], E)
    assert not rfops.fused_moe(*args, **words, **GPT_OSS).any()


def test_a_bias_elsewhere() -> None:
    args, words = problem("16-bit", 136, 72, F16)
    words["bias1"] = words["bias1"].to("meta")
    with pytest.raises(ValueError, match=r"bias1 must be .* on cpu"):
        rfops.fused_moe(*args, **words, **GPT_OSS)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("format", "shuffled", "block_m"),
    [
        ("mxfp4", True, 16),
        ("mxfp4", False, 64),
        ("mxfp4_weights", False, 32),
        ("mxfp8", False, 32),
        ("mxfp8", True, 64),
        ("fp8_blockscale", True, 64),
        ("16-bit", True, 64),
    ],
)
def test_no_spills(format: str, shuffled: bool, block_m: int) -> None:
    """Tiles of each height that a call chooses itself."""
    args, words = problem(format, 256, 128, BF16)
    if shuffled:
        args[1:3] = map(rfops.shuffle_weight, args[1:3])
    config = GatedMoeTritonConfig(block_m, 64, 64 if format == "16-bit" else 128)
    with rfops.vgpu.profile() as p:
        rfops.fused_moe(*args, **words, **GPT_OSS, config=config)
    assert_no_spills(p.launches)


def test_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's tiles are those of the launches; a token's choices apart have them too."""
    args, words = problem("16-bit", 136, 72, F16)
    config = GatedMoeTritonConfig(16, 32, 32)
    with rfops.vgpu.profile() as p:
        got = rfops.fused_moe(*args, **words, **GPT_OSS, config=config)
    grids = {launch.kernel: launch.grid[1] for launch in p.launches if launch.kernel != "add_rows"}
    assert (grids["gate_up"], grids["down"]) == (3, 5)
    assert_rows_close(got, by_torch(monkeypatch, args, **words, **GPT_OSS), 2e-3)
    with pytest.raises(ValueError, match="config must be"):
        rfops.fused_moe(*args, **words, **GPT_OSS, config=7, combine=False)


@pytest.mark.parametrize(
    ("format", "config", "got"),
    [
        ("16-bit", 7, r"got 7; pass one, or none"),
        ("16-bit", FusedMoeTritonConfig(16, 32, 32), r"got FusedMoeTritonConfig"),
        ("fp8_blockscale", GatedMoeTritonConfig(16, 64, 64), r"block_k must be 128"),
        ("16-bit", GatedMoeTritonConfig(256, 256, 256, 8, 3), r"bytes of LDS"),
    ],
)
def test_refused_configs(format: str, config: Any, got: str) -> None:
    args, words = problem(format, 256, 128, BF16)
    with pytest.raises(ValueError, match=f"(?s)fused_moe: config must be .*{got}"):
        rfops.fused_moe(*args, **words, config=config)


def test_a_config_where_triton_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    args, words = problem("16-bit", 136, 72, F16)
    with pytest.raises(ValueError, match=r"config must be .* and a test"):
        by_torch(monkeypatch, args, **words, config=GatedMoeTritonConfig(16, 64, 64))


def test_a_config_of_no_kernel() -> None:
    with pytest.raises(ValueError, match="block_k must be a power of two from 32 to 256, got 48"):
        GatedMoeTritonConfig(16, 64, 48)


SIZES = "--d 256 --i 128 --e 5 --k 3 --m 21".split()


@pytest.mark.parametrize(
    ("op", "words", "lines"),
    [
        (
            "fused_moe_mxfp4",
            "--activation swiglu --interleaved --bias1",
            [
                "decision   triton, no HIP kernel",
                "GatedMoeTritonConfig(block_m=16, block_n=64, block_k=128",
                "no HIP kernel is made for activation swiglu, interleaved, bias1",
                "not made for activation swiglu, interleaved, bias1",
                "not torch  comes last",
            ],
        ),
        ("fused_moe", "--bias2", ["no HIP kernel is made for bias2", "not hip"]),
        ("fused_moe_fp8", "--activation gelu", ["triton, no HIP kernel"]),
        ("fused_moe_mxfp4", "--weight-only", ["no HIP kernel is made for rows in 16 bits"]),
        ("fused_moe", "--activation silu", ["decision", "a HIP kernel"]),
        ("fused_moe", "--bias1 --arch gfx90a --cu-num 104", ["torch, no HIP kernel", "not triton"]),
    ],
)
def test_why(capsys: pytest.CaptureFixture[str], op: str, words: str, lines: list[str]) -> None:
    """rfops why has the route of biases and activations, and why it is not a HIP kernel."""
    assert why.main(op, [*SIZES, *words.split()]) == 0
    text = capsys.readouterr().out
    assert all(line in text for line in lines), text


def test_the_log_names_the_route(caplog: pytest.LogCaptureFixture) -> None:
    args, words = problem("16-bit", 136, 72, F16)
    gated_experts.routing._say.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="rfops.dispatch"):
        rfops.fused_moe(*args, **words, **GPT_OSS)
    assert "no HIP kernel is made for activation swiglu, interleaved" in caplog.text
