"""fused_moe_fp8's kernel for few tokens, against fp32 over the same two quantisations."""

from __future__ import annotations

import math

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.problem import call_on
from rfops.moe.fused_moe_fp8 import OP
from rfops.moe.kernels.fp8 import stream
from rfops.quantization.shuffle import shuffle_weight
from support.moe_fp8_problems import assert_correct, random_problem, run

ARCHS = ("gfx942", "gfx950")
F16, BF16 = torch.float16, torch.bfloat16
CPU = torch.device("cpu")


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("m", "d", "i", "e", "shared"),
    [
        (1, 256, 128, 5, 0),  # a block of K for fewer waves than there are
        (3, 2304, 640, 4, 1),  # 18 blocks for 8 waves of 2; 5 for tasks of 3
        (16, 1024, 384, 70, 2),  # more experts than a wave's eighth; 3 blocks
        (17, 384, 256, 9, 0),  # a second tile with one token
        (32, 640, 128, 3, 1),  # each expert has half of all
    ],
)
def test_values(m: int, d: int, i: int, e: int, shared: int, arch: str) -> None:
    """Blocks and experts that waves share unevenly; the same bits again, and in any order."""
    p = random_problem(arch, m, d, i, e, 2, BF16, shared)
    got = run("stream", p)
    assert_correct(got, p)
    assert torch.equal(run("stream", p), got)


def test_rows_beyond_those_loaded_first(arch: str) -> None:
    """From one to all 16 tokens of an expert, which a wave quantises four at a time; experts that
    no token chose; fewer experts than choices, and more."""
    for experts in (7, 50):
        p = random_problem(arch, 16, 640, 128, experts, 2)
        ids = torch.tensor([[0, 1 + token * 5 // 16] for token in range(16)], dtype=torch.int32)
        ids[5] = 6  # twice in one token, and in no other
        p = p.with_(topk_ids=ids)
        assert_correct(run("stream", p), p)


@pytest.mark.parametrize("columns", [8, 10, 14])
def test_h_quantised_in_the_last_launch(
    columns: int, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of the quantiser's launch and of 16 columns a workgroup: by one block and
    by two, of a lone row of an expert and of all 16, and across blocks of columns."""
    for m, d, i in ((16, 640, 128), (5, 384, 256)):
        p = random_problem(arch, m, d, i, 7, 2, num_shared=1)
        for width, quantises in ((columns, True), (16, False)):
            monkeypatch.setattr(OP, "plans", OP.plans.new_table())
            monkeypatch.setattr(stream, "_columns", lambda _c, width=width: width)
            monkeypatch.setattr(stream, "_quantises_h", lambda _c, own=quantises: own)
            got = run("stream", p)
            if quantises:
                first = got
                assert_correct(got, p)
        assert torch.equal(got, first)


def test_the_same_in_any_order(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_problem(arch, 17, 384, 256, 9, 2)
    first = run("stream", p)
    monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", "random:1")
    assert torch.equal(run("stream", p), first)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("k", "dtype"), [(1, F16), (8, F16), (16, BF16)])
def test_choices_and_types(k: int, dtype: torch.dtype, arch: str) -> None:
    p = random_problem(arch, 9, 256, 128, 40, k, dtype)
    assert_correct(run("stream", p), p)
    wide = p.with_(topk_ids=p.topk_ids.to(torch.int64))
    assert torch.equal(run("stream", wide), run("stream", p))


@pytest.mark.thin(2)
def test_shuffled_weights_give_the_same(arch: str) -> None:
    p = random_problem(arch, 5, 512, 256, 4, 2, num_shared=1)
    w1, w2 = (shuffle_weight(w).data for w in (p.w1, p.w2))
    assert torch.equal(run("stream", p.with_(w1=w1, w2=w2), layout="16x16"), run("stream", p))


def test_ids_and_values_that_are_none(arch: str) -> None:
    """Ids outside, the same expert twice, NaN in weights of what nobody chose, in x and in an
    expert of one token: each stays where it belongs, and no byte beside the call's is touched."""
    p = random_problem(arch, 20, 256, 128, 6, 2)
    ids = p.topk_ids.clone()
    ids[ids == 5] = 4
    ids[0], ids[1, 0], ids[2, 1] = torch.tensor([7, -1]), -(2**31), 2**31 - 1
    ids[3], ids[4, 0] = torch.tensor([2, 2]), 5
    weights = p.topk_weights.masked_fill((ids < 0) | (ids >= 6), math.nan)
    x, w2_scale = p.x.clone(), p.w2_scale.clone()
    x[19], w2_scale[5] = math.nan, math.nan  # of expert 5, which token 4 alone has
    memory = torch.full((20 * 256 + 256,), -7.0, dtype=BF16)
    out = memory[128:-128].view(20, 256).fill_(math.nan)
    broken = p.with_(x=x, w2_scale=w2_scale, topk_ids=ids, topk_weights=weights)
    with rfops.vgpu.check() as checked:
        run("stream", broken, None, out)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()
    own = torch.tensor([4, 19])
    assert out[own].isnan().all() and (out[0] == 0).all()
    clean = p.with_(topk_ids=ids.index_fill(0, own, -1))
    assert_correct(out.index_fill(0, own, 0), clean)


@pytest.mark.parametrize(("i", "names"), [(256, []), (384, ["quant_fp8_blockscale"])])
def test_what_it_launches(i: int, names: list[str], arch: str) -> None:
    """Two launches, or three where `down` does not quantise h, without scratch, spills or bank
    conflicts; each chosen weight is read once."""
    p = random_problem(arch, 4, 1024, i, 8, 2)
    with rfops.vgpu.profile() as profiled:
        run("stream", p)
    launches = profiled.launches
    expected = ["moe_fp8_stream_up_tile", *names, "moe_fp8_stream_down"]
    assert [launch.kernel for launch in launches] == expected
    for launch in launches:
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
        assert launch.lds_conflict_cycles == 0
        assert launch.waves_per_simd >= 2, f"{launch.kernel}: LDS for one workgroup of a CU"
    hit = len(p.topk_ids.unique())
    for launch, size in ((launches[0], 2 * i * 1024), (launches[-1], i * 1024)):
        lines = launch.figures["global_read"]["lines_64B"]
        assert 64 * lines == pytest.approx(hit * size, rel=0.35), launch.kernel


@pytest.mark.parametrize(
    ("m", "i", "span"), [(16, 256, 4), (7, 384, 4), (8, 384, 2), (8, 1024, 2), (8, 1152, 4)]
)
def test_span_of_up_tile(m: int, i: int, span: int) -> None:
    """Two blocks a load of experts of half a row on average, neither short nor long, shuffled."""
    sizes = {"M": m, "D": 4096, "I": i, "E": 128, "K": 8}
    for layout, expected in (("16x16", span), ("raw", 4)):
        c = call_on(OP, {**sizes, "w_layout": layout}, CPU)
        assert stream.up_tile(c).defines["SPAN"] == expected, layout


@pytest.mark.parametrize(("m", "d"), [(3, 1280), (16, 640)])
def test_values_of_two_blocks_a_load(m: int, d: int, arch: str) -> None:
    """Spans that waves share unevenly, the last of one block; without spills or bank conflicts."""
    p = random_problem(arch, m, d, 384, 4, 2, BF16, 1)
    w1, w2 = (shuffle_weight(w).data for w in (p.w1, p.w2))
    with rfops.vgpu.profile() as profiled:
        got = run("stream", p.with_(w1=w1, w2=w2), layout="16x16")
    assert_correct(got, p)
    for launch in profiled.launches:
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
        assert launch.lds_conflict_cycles == 0, launch.kernel
    with rfops.vgpu.check() as checked:
        again = run("stream", p.with_(w1=w1, w2=w2), layout="16x16")
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert torch.equal(again, got)


@pytest.mark.sweep
@pytest.mark.parametrize("top_k", [1, 2, 4, 6, 8, 9, 12, 16])
@pytest.mark.parametrize("m", [1, 17])
def test_no_spills(m: int, top_k: int, arch: str) -> None:
    """Few and many choices to keep, of each type and layout, with one block in flight and more."""
    for d, i, dtype, ids, layout in (
        (256, 512, BF16, torch.int32, "raw"),
        (3584, 512, BF16, torch.int32, "raw"),  # columns of `down` of two scales
        (256, 512, F16, torch.int64, "16x16"),
        (256, 128, BF16, torch.int64, "16x16"),
    ):
        p = random_problem(arch, m, d, i, 16, top_k, dtype)
        p = p.with_(topk_ids=p.topk_ids.to(ids))
        w1, w2 = (w if layout == "raw" else shuffle_weight(w).data for w in (p.w1, p.w2))
        with rfops.vgpu.profile() as profiled:
            assert_correct(run("stream", p.with_(w1=w1, w2=w2), layout=layout), p)
        for launch in profiled.launches:
            spills = launch.vgpr_spills, launch.sgpr_spills, launch.scratch_bytes_per_lane
            which = f"{launch.kernel}, {d=} {i=} {dtype} {ids} {layout}"
            assert spills == (0, 0, 0), f"{which}: {spills}"


def test_which_calls_take_it(arch: str) -> None:
    """Up to 16 tokens of short experts, and where `listed` does not quantise h in `down`; of the
    others `listed` and `hip` by their predicted times."""
    routes = {1: "stream", 16: "stream", 17: "listed", 96: "listed", 513: "hip"}
    for m, kernel in routes.items():
        c = call_on(OP, {"M": m, "D": 512, "I": 128, "E": 8, "K": 2}, CPU)
        assert OP.route(c).backend == kernel, c
    short_rows, long_rows = 4096, 6144
    for m, d, i, kernel in (
        (1, long_rows, 384, "listed"),
        (1, short_rows, 1792, "stream"),
        (1, long_rows, 2048, "listed"),
        (4, long_rows, 8192, "listed"),
    ):
        c = call_on(OP, {"M": m, "D": d, "I": i, "E": 8, "K": 2, "R": 8}, CPU)
        assert OP.route(c).backend == kernel, c
    # About as many rows of an expert; MI355X: 92.3 us by `hip`, 101.2 by `listed`; 61.5 and 55.7;
    # 84.5 and 59.7.
    long, wide, short = (121, 4096, 3584, 8, 2), (94, 4096, 1792, 8, 2), (194, 7168, 256, 32, 4)
    choices = (long, "hip"), (wide, "listed"), (short, "listed")
    for sizes, kernel in choices if arch == "gfx950" else ():
        c = call_on(OP, dict(zip("MDIEK", sizes, strict=True)), CPU)
        assert OP.route(c).backend == kernel, c
    c = call_on(OP, {"M": 33, "D": 512, "I": 128, "E": 8, "K": 2, "R": 8}, CPU)
    assert OP.kernels["stream"].unsupported_reason(c) == "33 tokens: it takes up to 32"


def test_a_layer_of_few_tokens(arch: str) -> None:
    """The router's choice, and its experts in two to four launches; then more tokens than `listed`
    takes, and fewer again."""
    p = random_problem(arch, 520, 256, 128, 6, 2, num_shared=1)
    generator = torch.Generator().manual_seed(7)
    router = (torch.randn(5, 256, generator=generator) / 16).to(BF16)
    for m, first, count in (
        (20, ["a16w16_stream", "moe_topk", "quant_fp8_blockscale"], 6),
        (520, ["moe_router", "moe_fp8_prepare"], 5),
        (3, ["a16w16_stream", "moe_topk", "moe_fp8_stream_up_tile"], 4),
    ):
        own = p.with_(x=p.x[:m])
        with rfops.vgpu.profile() as profiled:
            got = rfops.moe_layer(own.x, router, p.w1, p.w2, 2, num_shared=1, **p.scales)
        names = [launch.kernel for launch in profiled.launches]
        assert names[: len(first)] == first and len(names) == count, names
        weights, ids = rfops.moe_router(own.x, router, 2)
        assert_correct(got, own.with_(topk_weights=weights, topk_ids=ids))
