"""fused_moe with MXFP4 and MX-FP8 weights: the op, a layer, and what each refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.challenge import moe_mxfp4
from rfops.dispatch.layout import Shuffled
from rfops.moe.fused_moe import fused_moe
from rfops.moe.fused_moe_mx import MXFP4, MXFP8, Format
from rfops.moe.kernels.mx.config import MxMoeConfig
from rfops.quantization.shuffle import shuffle_scale, shuffle_weight
from support.moe_mx_problems import (
    CONFIGS,
    OPS,
    assert_near,
    call_of,
    random_problem,
    sums_config,
)

pytestmark = pytest.mark.requires_gfx950
BF16, F16 = torch.bfloat16, torch.float16


def test_the_call(fmt: Format) -> None:
    """Raw, shuffled, scales of all experts at once, into out, by a config, as an op of torch."""
    problem = random_problem(fmt, 9, 256, 256, 5, 2, num_shared=1)
    first = problem.call()
    assert_near(first, problem.exact)
    assert torch.equal(problem.shuffled().call(), first)
    flat = problem.with_(w1_scale=problem.w1_scale.flatten(0, 1))
    assert torch.equal(flat.call(), first)
    out = torch.full_like(first, math.nan)
    assert problem.call(out=out) is out and torch.equal(out, first)
    assert_near(problem.call(config=CONFIGS[1]), problem.exact)
    empty = problem.with_(
        x=problem.x[:0], topk_weights=problem.topk_weights[:0], topk_ids=problem.topk_ids[:0]
    )
    assert empty.call().shape == (0, 256)


def test_a_layer(fmt: Format) -> None:
    """The router's choice, and its experts; two launches more."""
    problem = random_problem(fmt, 17, 256, 256, 5, 2, num_shared=1).shuffled()
    generator = torch.Generator().manual_seed(7)
    router = (torch.randn(4, 256, generator=generator) / 16).to(BF16)
    scales = {"w1_scale": problem.w1_scale, "w2_scale": problem.w2_scale}
    with rfops.vgpu.profile() as p:
        actual = rfops.moe_layer(
            problem.x, router, problem.w1, problem.w2, 2, num_shared=1, quant=fmt.word, **scales
        )
    names = [launch.kernel for launch in p.launches]
    assert len(names) in (5, 6) and names[:2] == ["a16w16_stream", "moe_topk"]
    weights, ids = rfops.moe_router(problem.x, router, 2)
    assert torch.equal(actual, problem.with_(topk_weights=weights, topk_ids=ids).call())


@pytest.mark.sweep
@pytest.mark.parametrize("case", moe_mxfp4.PROBLEM.tests)
def test_the_challenge(case: Any) -> None:
    """Problem amd-moe-mxfp4 of 2026, shrunk: its weights as it shuffles them, its own reference."""
    problem = moe_mxfp4.PROBLEM
    data = problem.generate(problem.shrink(case))
    x, _, _, _, _, w1, w2, s1, s2, topk_weights, topk_ids, config = data
    width = config["d_expert"]
    assert width == config["d_expert_pad"] and x.shape[1] == config["d_hidden_pad"]
    given = [Shuffled(w, "16x16") for w in (w1, w2)]
    scales = [Shuffled(s, "32x8") for s in (s1, s2)]
    actual = fused_moe(
        x, *given, topk_weights, topk_ids, quant="mxfp4", w1_scale=scales[0], w2_scale=scales[1]
    )
    assert_near(actual, moe_mxfp4.layer(data))


P = random_problem(MXFP4, 4, 256, 256, 3, 2)
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "fp32 rows": ({"x": P.x.float()}, "x must be bfloat16 or float16, got .*; convert it"),
    "a dtype": ({"w1": P.w1.float()}, "w1 must be uint8"),
    "another D": ({"x": P.x[:, :128]}, r"w1 must be a \[E, N, D/2=64\] tensor"),
    "gate alone": (
        {"w1": P.w1[:, :256].contiguous(), "w1_scale": P.w1_scale[:, :256].contiguous()},
        "w1 must be of 2 . I = 512 rows an expert",
    ),
    "no scale": ({"w1_scale": None}, "w1_scale must be a .* tensor, got NoneType"),
    "scales of fewer": ({"w2_scale": P.w2_scale[:2].contiguous()}, "w2_scale must be a"),
    "one shuffled": ({"w1": shuffle_weight(P.w1)}, "w2 must be 16x16 as w1 is, got raw"),
    "one scale shuffled": (
        {"w1_scale": shuffle_scale(P.w1_scale.flatten(0, 1))},
        "w2_scale must be 32x8 as w1_scale is, got raw",
    ),
    "scales as weights": (
        {
            "w1": shuffle_scale(P.w1_scale.flatten(0, 1)),
            "w2": shuffle_scale(P.w2_scale.flatten(0, 1)),
        },
        "w_layout must be raw or 16x16, got '32x8'",
    ),
    "many shared": ({"num_shared": 4}, "num_shared must be an int from 0 to 3, got 4"),
    "a rounding": ({"rounding": "odd"}, "rounding must be even, up or down, got 'odd'"),
    "float ids": ({"topk_ids": P.topk_ids.float()}, "topk_ids must be int32 or int64"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(ValueError, match=f"^fused_moe_mxfp4: {message}"):
        P.with_(**changes).call()


def test_refusals_of_layouts() -> None:
    """Shuffled scales that lack their padding, of too few rows, of each expert by itself."""
    problem = random_problem(MXFP4, 4, 288, 160, 3, 2)
    good = problem.shuffled()
    unpadded = Shuffled(problem.w1_scale, "32x8")
    few = Shuffled(good.w2_scale.data[: 3 * 288 - 32], "32x8")
    each = torch.stack([shuffle_scale(s).data for s in problem.w2_scale])
    cases = (
        (
            {"w1_scale": unpadded},
            r"w1_scale must be a \[E=3, N=320, 16\] tensor, 32x8, got "
            r"\[3, 320, 9\]; pass .* or what shuffle_scale makes of the rows of all experts",
        ),
        (
            {"w2_scale": few},
            r"w2_scale must be a \[864 or more, columns\] tensor, "
            r"32x8, got \[832, 8\]; pass one e8m0 byte",
        ),
        ({"w2_scale": Shuffled(each, "32x8")}, r"w2_scale must be a \[E=3, D=288, SI\] tensor"),
    )
    for changes, message in cases:
        with pytest.raises(ValueError, match=f"^fused_moe_mxfp4: {message}"):
            good.with_(**changes).call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MxMoeConfig(3, 4, 1, 4, 1), "m_tiles must be 1, 2, 4, 8 or 9, got 3"),
        (lambda: MxMoeConfig(16, 4, 1, 4, 1), "m_tiles must be 1, 2, 4, 8 or 9, got 16"),
        (lambda: MxMoeConfig(1, 4, 4, 4, 1), r"n_waves \* k_waves must be at most 8 here, got 16"),
        (lambda: MxMoeConfig(8, 8, 1, 4, 1), r"n_waves \* k_waves must be at most 4 here, got 8"),
        (lambda: MxMoeConfig(4, 2, 2, 4, 1), "m_tiles must be 1 or 2 with k_waves > 1, got 4"),
        (lambda: MxMoeConfig(1, 1, 4, 8, 1, 2, 48), "columns must be 16 or 32, got 48"),
        (lambda: MxMoeConfig(1, 1, 4, 2, 1, 2, 16), "waves must be 4, 8 or 16, got 2"),
        (lambda: MxMoeConfig(1, 1, 4, 4, 1, slots=4), "slots must be 0 with columns=0, got 4"),
        (lambda: MxMoeConfig(1, 1, 4, 4, 1, 2, 16, slots=6), "stages must be 3 to 5, got 6"),
        (lambda: MxMoeConfig(1, 1, 4, 16, 1, 2, 16, slots=4), "waves must be 2 to 15, got 16"),
        (lambda: MxMoeConfig(1, 1, 4, 10, 1, 2), "n_waves must be 1, 2, 3, 4 or 8, got 10"),
        (lambda: MxMoeConfig(4, 4, 1, 4, 1, ahead=2), "prefetch must be 1 or 3, got 2"),
        (lambda: MxMoeConfig(4, 4, 1, 4, 1, ring=2), "ring must be 0 or 1, got 2"),
        (
            lambda: MxMoeConfig(4, 8, 1, 4, 1, ring=1),
            "up_n, up_k and ahead must be 3 or 4, 1 and 1 with ring=1",
        ),
        (lambda: MxMoeConfig(4, 8, 1, 4, 1, ahead=3), r"n_waves \* k_waves must be at most 4 here"),
        (lambda: MxMoeConfig(9, 4, 1, 4, 1, ahead=3), "prefetch must be 3 with m_tiles=9"),
        (lambda: MxMoeConfig(4, 3, 1, 4, 1, ahead=3), "columns must be 16 or 32 with up_n=3"),
        (
            lambda: MxMoeConfig(4, 3, 1, 4, 1, 2, 16),
            "prefetch must be 3 with m_tiles=9 or n_waves=3",
        ),
    ],
)
def test_configs_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_beyond_offsets_are_refused() -> None:
    """Of 128 experts, whose rows and x, of one step, are still within theirs."""
    c = call_of(random_problem(MXFP4, 4, 32, 32, 3, 2))
    unsupported_reason = OPS["mxfp4"].kernels["hip"].unsupported_reason
    assert unsupported_reason(c.with_sizes(M=2**23 - 1, E=128, R=128)) is None
    expected = "lists of 8388608 tokens for 128 experts"
    assert expected in unsupported_reason(c.with_sizes(M=2**23, E=128, R=128))


def test_configs_that_a_call_refuses() -> None:
    """Rows that do not fit in LDS, weights that do not fit in registers."""
    kernel = OPS["mxfp4"].kernels["hip"]
    c = call_of(random_problem(MXFP4, 300, 64, 256, 3, 20))
    fused = MxMoeConfig(1, 4, 1, 8, 1, 2, 16, 1)
    assert "rows of 300 tokens by 16 columns do not fit" in kernel.unsupported_config_reason(
        c, fused
    )
    c = call_of(random_problem(MXFP4, 3, 64, 1536, 3, 2))
    assert "12 tiles are more than the 11" in kernel.unsupported_config_reason(c, fused)
    assert kernel.unsupported_config_reason(c, replace(fused, slots=3)) is None
    c = call_of(random_problem(MXFP4, 1100, 64, 256, 3, 2))
    assert "of 1100 tokens by 32 columns" in kernel.unsupported_config_reason(
        c, sums_config(32, 4, 3)
    )
    problem = random_problem(MXFP4, 3, 1024, 256, 3, 2)
    ring = MxMoeConfig(4, 4, 1, 4, 1, ring=1)
    assert "a ring wants all of MXFP4 weights shuffled" in kernel.unsupported_config_reason(
        call_of(problem), ring
    )
    assert kernel.unsupported_config_reason(call_of(problem.shuffled()), ring) is None
    tail = random_problem(MXFP4, 3, 288, 256, 3, 2).shuffled()
    assert "D in 256s" in kernel.unsupported_config_reason(call_of(tail), ring)
    many = random_problem(MXFP4, 3, 256, 256, 65, 2).shuffled()
    assert "up to 64 experts" in kernel.unsupported_config_reason(call_of(many), ring)
    ahead = MxMoeConfig(4, 4, 1, 4, 1, ahead=3)
    expected = "want m_tiles=4, 8 or 9, D in 1024s, and all of MXFP4 weights shuffled"
    assert expected in kernel.unsupported_config_reason(call_of(problem), ahead)
    c = call_of(problem.shuffled())
    assert kernel.unsupported_config_reason(c, ahead) is None
    assert expected in kernel.unsupported_config_reason(c, replace(ahead, m_tiles=2))
    c = call_of(random_problem(MXFP4, 3, 512, 256, 3, 2).shuffled())
    assert expected in kernel.unsupported_config_reason(c, ahead)
    c = call_of(random_problem(MXFP8, 3, 1024, 256, 3, 2).shuffled())
    assert expected in OPS["mxfp8"].kernels["hip"].unsupported_config_reason(c, ahead)


@pytest.mark.sweep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_wide_rows(fmt: Format, config: MxMoeConfig) -> None:
    """Few tokens by one format, many by the other: the kernels are the same source."""
    m = (16, 200)[(CONFIGS.index(config) + (fmt is MXFP8)) % 2]
    problem = random_problem(fmt, m, 7168 if fmt is MXFP4 else 6144, 512, 5, 4).shuffled()
    exact = random_problem(fmt, m, problem.x.shape[1], 512, 5, 4).exact
    assert_near(problem.run("hip", config), exact)


def test_defines_of_all_variants() -> None:
    """Of those too that launch no ExpertTiles, as `rfops why` prints them."""
    c, kernel = (
        call_of(random_problem(MXFP4, 3, 1024, 256, 3, 2).shuffled()),
        OPS["mxfp4"].kernels["hip"],
    )
    for config in kernel.space(c):
        assert kernel.defines(c, config)["STAGE"] == 1, config
