"""fused_moe's kernels for biases and other activations: sizes that are no multiples of a tile, rows
that are not numbers, what runs, and what torch takes; against torch's formula, which
test_local_experts.py's reference holds at other sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops
from rfops.moe import gated_experts

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
    """fused_moe's arguments; some ids name no expert, and no token chooses the last expert."""
    x = random(M, 2 * d, seed=0)[:, ::2].to(dtype)
    weights = [random(E, 2 * i, d, seed=1) / d**0.5, random(E, d, i, seed=2) / i**0.5]
    words = {"bias1": random(E, 2 * i, seed=3).to(dtype), "bias2": random(E, d, seed=4)}
    if format == "mxfp4":
        pairs = [rfops.quant_mxfp4(w.flatten(0, 1)) for w in weights]
        given = [q.view(E, w.shape[1], -1) for (q, _), w in zip(pairs, weights, strict=True)]
        scales = {"w1_scale": pairs[0][1], "w2_scale": pairs[1][1]}
        words |= {"quant": format, **scales}
    else:
        given = [w.to(dtype) for w in weights]
    ids = random(M, E - 1, seed=5).argsort(1)[:, :K].contiguous()
    ids[0, 0], ids[1, 1], ids[2] = -1, E, -1
    return [x, *given, torch.rand(M, K, generator=torch.Generator().manual_seed(6)), ids], words


def by_torch(monkeypatch: pytest.MonkeyPatch, args: list[Any], **words: Any) -> torch.Tensor:
    with monkeypatch.context() as patched:
        patched.setattr(gated_experts.gated_triton, "unsupported_reason", lambda _: "a test")
        return rfops.fused_moe(*args, **words)


def assert_rows_close(got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    error = (got.double() - expected.double()).norm(dim=1)
    share = error / expected.double().norm(dim=1).clamp(min=1e-6)
    share = torch.where(share.isnan(), math.inf, share)
    worst = int(share.argmax())
    assert share[worst] <= bound, f"row {worst}: {share[worst]:.2e} of its norm"


# bound: of a row's norm; roundings of h and of experts' rows, in MXFP4 a code of h that falls the
# other way too: 2^-2 of some element at most.
@pytest.mark.parametrize(
    ("format", "d", "i", "dtype", "bound"),
    [
        ("mxfp4", 160, 96, BF16, 3e-2),
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
    assert_rows_close(got, by_torch(monkeypatch, args, **words, **GPT_OSS), bound)
    assert not got[2].any(), "a token without an expert"
    args[0] = args[0].clone()
    args[0][4] = math.nan
    again = rfops.fused_moe(*args, **words, **GPT_OSS)
    assert again[4].isnan().all()
    others = torch.arange(M) != 4
    assert torch.equal(again[others], got[others])


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
