"""fused_moe with scales whose rows or columns shuffle_scale pads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rfops.vgpu
from rfops import compat
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.layout import Shuffled
from rfops.moe.fused_moe_mx import MXFP4, MXFP8, Format
from rfops.moe.kernels.mx.config import MxMoeConfig
from rfops.moe.kernels.mx.hip import MAX_DEEP_STEPS
from rfops.quantization.shuffle import shuffle_scale
from support.moe_mx_problems import (
    OPS,
    assert_near,
    call_of,
    random_problem,
    sums_config,
)

pytestmark = pytest.mark.requires_gfx950


# D and I whose scales shuffle_scale pads; of MXFP4 steps are of 256, of MX-FP8 of 128.
PADDED_WIDTHS = [(256, 384), (288, 128), (512, 704), (320, 192), (512, 160), (2880, 416)]
PADDED_BY = {  # launches after moe_mx_prepare
    "moe_mx_experts moe_mx_experts moe_add_pairs": MxMoeConfig(1, 2, 2, 4, 1),
    "moe_mx_experts moe_mx_down": MxMoeConfig(2, 4, 1, 4, 1, 2, 16, 2),
    "moe_mx_experts moe_mx_down_sums": sums_config(32, 3, 4),
    "moe_mx_experts moe_mx_down_deep": sums_config(16, 2, 3, 2),
    "moe_mx_gate_up moe_mx_down_sums": replace(sums_config(16, 2, 3), m_tiles=4, ring=1),
}


def _check_padded_scales(fmt: Format, sizes: tuple[int, int], launches: str) -> None:
    config = PADDED_BY[launches]
    problem = random_problem(fmt, 21, *sizes, 3, 2, num_shared=1)
    exact, problem = problem.exact, problem.shuffled()
    assert OPS[fmt.word].kernels["hip"].unsupported_config_reason(call_of(problem), config) is None
    with rfops.vgpu.check() as checked, rfops.vgpu.profile() as p:
        actual = problem.run("hip", config)
    assert [launch.kernel for launch in p.launches] == ["moe_mx_prepare", *launches.split()]
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert_near(actual, exact)


@pytest.mark.thin(5)
@pytest.mark.parametrize("launches", PADDED_BY)
@pytest.mark.parametrize("word", ["mxfp4", "mxfp8"])
def test_padded_scales(word: str, launches: str) -> None:
    """By each kernel; padding, of rows and of columns, is NaN."""
    if word == "mxfp8" and "gate_up" in launches:
        c = call_of(random_problem(MXFP8, 4, 256, 192, 3, 2).shuffled())
        reason = OPS[word].kernels["hip"].unsupported_config_reason(c, PADDED_BY[launches])
        assert reason is not None and "a ring wants all of MXFP4" in reason
        return
    sizes = (256, 704) if "gate_up" in launches else (320, 192) if word == "mxfp4" else (512, 160)
    _check_padded_scales(OPS[word].fmt, sizes, launches)


@pytest.mark.sweep
@pytest.mark.parametrize("launches", PADDED_BY)
@pytest.mark.parametrize("sizes", PADDED_WIDTHS, ids=str)
def test_padded_scales_of_widths(fmt: Format, sizes: tuple[int, int], launches: str) -> None:
    """By each kernel that takes them; the others say that they do not."""
    config, steps = PADDED_BY[launches], [-(-size // fmt.step) for size in sizes]
    is_refused = (
        ("gate_up" in launches and (fmt is MXFP8 or sizes[0] % fmt.step != 0))
        or (config.up_k > 1 and steps[0] % 2 != 0)  # waves share K-steps evenly
        or ("deep" in launches and steps[1] > MAX_DEEP_STEPS)
    )
    if is_refused:
        c = call_of(random_problem(fmt, 4, *sizes, 3, 2).shuffled())
        assert OPS[fmt.word].kernels["hip"].unsupported_config_reason(c, config) is not None
    else:
        _check_padded_scales(fmt, sizes, launches)


@pytest.mark.parametrize("kernel", ["triton", "torch"])
@pytest.mark.parametrize("word", ["mxfp4", "mxfp8"])
def test_padded_scales_by_other_kernels(word: str, kernel: str) -> None:
    problem = random_problem(OPS[word].fmt, 5, 320, 96, 3, 2, num_shared=1)
    assert_near(problem.shuffled().run(kernel), problem.exact)


def test_padded_scales_in_a_call() -> None:
    """As shuffle_scale leaves them: rows to 256, by the public call and by aiter's names, 2-D and
    by expert; and rows to 32, as others pad."""
    problem = random_problem(MXFP4, 5, 320, 96, 3, 2)
    plain, up = problem.call(), problem.with_(rounding="up").call()  # up: as aiter's rounds
    assert_near(plain, problem.exact)
    raw = problem.w1_scale, problem.w2_scale
    whole = [shuffle_scale(s.flatten(0, 1)) for s in raw]
    least = [
        Shuffled(s.data[: 32 * ceil(r.shape[0] * r.shape[1], 32)], "32x8")
        for s, r in zip(whole, raw, strict=True)
    ]
    by_expert = [
        Shuffled(s.data[: r.shape[0] * r.shape[1]].view(*r.shape[:2], -1), "32x8")
        for s, r in zip(whole, raw, strict=True)
    ]
    assert whole[0].data.shape[0] > 3 * 192 and whole[0].data.shape[1] == 16
    for scales in (whole, least, by_expert):
        result = problem.with_(w1_scale=scales[0], w2_scale=scales[1])
        assert torch.equal(result.call(), plain)
        actual = compat.fused_moe(
            problem.x,
            problem.w1,
            problem.w2,
            problem.topk_weights,
            problem.topk_ids,
            quant_type=compat.QuantType.per_1x32,
            w1_scale=scales[0].data,
            w2_scale=scales[1].data,
        )
        assert torch.equal(actual, up)
