"""fused_moe with FP8 weights by every kernel, against fp32 over the same two quantisations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import rfops.vgpu
from rfops.dispatch.declare import fp8_of
from rfops.moe.fused_moe import fused_moe
from rfops.moe.fused_moe_fp8 import OP
from rfops.moe.kernels.bf16.triton import FusedMoeTritonConfig
from rfops.moe.kernels.fp8.hip import FusedMoeFp8HipConfig
from rfops.moe.kernels.fp8.signatures import experts_defines, moe_experts_fp8_kernel
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.fp8_blockscale import reference as quantise
from support.moe_fp8_problems import Problem, assert_correct, exact_of, random_problem, run

ARCHS = ("gfx942", "gfx950")
F16, BF16 = torch.float16, torch.bfloat16
HIGH, LOW = FusedMoeFp8HipConfig(128), FusedMoeFp8HipConfig(64)
SMALL = FusedMoeTritonConfig(16, 64, 128, 8, 4, 2)  # what the virtual GPU runs quickly
KERNELS = [("hip", LOW), ("hip", HIGH), ("triton", SMALL)]


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return str(request.param)


@pytest.mark.thin(6)
@pytest.mark.parametrize("kernel", KERNELS, ids=("low", "high", "triton"))
@pytest.mark.parametrize(
    ("m", "d", "i", "e", "k", "shared", "dtype"),
    [(20, 256, 128, 5, 2, 0, BF16), (5, 640, 384, 3, 2, 1, F16)],
)
def test_values(
    m: int,
    d: int,
    i: int,
    e: int,
    k: int,
    shared: int,
    dtype: torch.dtype,
    arch: str,
    kernel: tuple[str, Any],
) -> None:
    """Of a scale block of K and more than four, of one of N and an odd number."""
    p = random_problem(arch, m, d, i, e, k, dtype, shared)
    assert_correct(run(kernel[0], p, kernel[1]), p)


@pytest.mark.thin(2)
def test_shuffled_weights_give_the_same(arch: str) -> None:
    p = random_problem(arch, 37, 256, 128, 4, 2, num_shared=1)
    first = fused_moe(p.x, p.w1, p.w2, *p.choice, num_shared=1, **p.scales)
    assert_correct(first, p)
    w1, w2 = rfops.shuffle_weight(p.w1), rfops.shuffle_weight(p.w2)
    with rfops.vgpu.check() as checked:
        again = fused_moe(p.x, w1, w2, *p.choice, num_shared=1, **p.scales)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert torch.equal(first, again)
    by_torch = run("torch", p.with_(w1=w1.data, w2=w2.data), layout="16x16")
    assert torch.equal(by_torch, exact_of(p).to(BF16))


def test_pairs_of_k_steps(arch: str) -> None:
    """One K-step, a pair, a pair and one: as tiles of 128 rows, which load one at a time. A pair
    shares its barriers where LDS holds it."""
    for blocks in (1, 2, 3):
        p = random_problem(arch, 40, 128 * blocks, 128, 3, 2)
        with rfops.vgpu.check() as checked:
            first = run("hip", p, LOW)
        assert not checked.findings, "\n".join(map(str, checked.findings))
        with rfops.vgpu.profile() as profiled:
            assert torch.equal(run("hip", p, HIGH), first)
            run("hip", p, LOW)
    high, low = (profiled.launches[i].instructions["s_barrier"] for i in (1, 5))
    assert (low < high) == (arch == "gfx950") and low <= high


@pytest.mark.thin(4)
@pytest.mark.parametrize("config", [LOW, HIGH])
def test_h_is_quantised_to_the_bit(config: FusedMoeFp8HipConfig, arch: str) -> None:
    """Of integers and scales of 1 all sums are exact; of gate at 240 and more silu is its argument,
    so h is too: rounded to bf16 it must give torch's payloads and scales."""
    m, d, i = 70, 128, 256
    generator = torch.Generator().manual_seed(0)
    fp8 = fp8_of(arch)
    x = torch.randint(-3, 4, (m, d), generator=generator).float()
    x[:, 0] = torch.finfo(fp8).max
    x[7, 1:] = 0
    w1 = torch.randint(-2, 3, (1, 2 * i, d), generator=generator).float()
    w1[:, :i] = 0
    w1[:, :i, 0] = 1 + torch.arange(i) % 3
    w2 = torch.ones(1, d, i)
    ones = torch.full((1, 2 * i // BLOCK, 1), 1.0), torch.ones(1, 1, i // BLOCK)
    p = Problem(
        x.to(BF16),
        w1.to(fp8),
        w2.to(fp8),
        *ones,
        torch.ones(m, 1),
        torch.zeros(m, 1, dtype=torch.int32),
    )
    inputs = p.x, p.w1, p.w2, *ones, *p.choice, None
    c = OP.check((*inputs, 1, 1, False, False, BF16, "raw", None, None))[0]
    launches = OP.kernels["hip"].launches(c, config)
    tensors = launches.tensors(torch.empty_like(p.x), *inputs)
    launches.launch(tensors)
    memory_of = dict(zip(launches.names, tensors, strict=True))
    lists, payload, scale = (memory_of[name] for name in ("lists", "h_q", "h_scale"))
    made = (x.double() @ w1[0].double().T)[lists[:m].long()]
    h = (made[:, :i] * made[:, i:]).float().to(BF16)
    assert (made[:, :i] >= 240).all()
    q, s = quantise(p.x, 1, False, fp8)
    assert torch.equal(memory_of["x_scale"], s)
    assert torch.equal(memory_of["x_q"].view(torch.uint8), q.view(torch.uint8))
    wanted, wanted_scale = quantise(h, 1, False, fp8)
    assert torch.equal(scale, wanted_scale)
    assert torch.equal(payload.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.thin(4)
@pytest.mark.parametrize("config", [LOW, HIGH])
def test_counts_and_ids(config: FusedMoeFp8HipConfig, arch: str) -> None:
    """No row of an expert, one, all; around a tile's 16, 64 and 128; ids outside, NaN beside them;
    a row that is no number makes its own result so; what is not the call's is not touched."""
    p = random_problem(arch, 133, 128, 128, 6, 2)
    ids = p.topk_ids.clone()
    ids[:, 0] = 4  # all of them
    ids[:, 1] = torch.where(torch.arange(133) < 65, 1, torch.where(torch.arange(133) < 82, 2, 3))
    ids[3, 1], ids[4], ids[130, 0], ids[131, 1], ids[2, 1] = -1, 6, -(2**31), 2**31 - 1, 0
    weights = p.topk_weights.masked_fill((ids < 0) | (ids >= 6), math.nan)
    x = p.x.clone()
    x[5], x[11, 3] = math.nan, math.inf
    memory = torch.full((133 * 128 + 256,), -7.0, dtype=BF16)
    out = memory[128:-128].view(133, 128).fill_(math.nan)
    with rfops.vgpu.check() as checked:
        run("hip", p.with_(x=x, topk_ids=ids, topk_weights=weights), config, out)
    assert not checked.findings, "\n".join(map(str, checked.findings))
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()
    clean = p.with_(x=p.x.index_fill(0, torch.tensor([5, 11]), 0), topk_ids=ids)
    assert out[5].isnan().all() and out[11].isnan().all()
    assert_correct(out.index_fill(0, torch.tensor([5, 11]), 0), clean)


@pytest.mark.thin(4)
@pytest.mark.parametrize("config", [LOW, HIGH])
def test_counts_that_a_call_left_behind(config: FusedMoeFp8HipConfig, arch: str) -> None:
    """As one that failed between its launches would: no list grows beyond its memory, no row is
    made beyond what there is, and the call after the next is right."""
    p = random_problem(arch, 40, 128, 128, 4, 2)
    inputs = p.x, p.w1, p.w2, p.w1_scale, p.w2_scale, *p.choice, None
    c = OP.check((*inputs, 2, 4, False, False, BF16, "raw", None, None))[0]
    launches = OP.kernels["hip"].launches(c, config)
    memory = torch.full((40 * 128 + 256,), -7.0, dtype=BF16)
    out = memory[128:-128].view(40, 128)
    memory_of = dict(zip(launches.names, launches.tensors(out, *inputs), strict=True))
    lists, counted = memory_of["lists"], memory_of["counts"]
    for left in ([30, 30, 30, 30], [39, 2**30, 0, 7], [40, 2**32 - 1, 40, 40]):
        lists.fill_(2**31 - 1)  # that nobody wrote
        counted[:4] = torch.tensor(left).to(counted.dtype)
        with rfops.vgpu.check() as checked:  # each count may fit, their sum does not
            launches(out, *inputs)
        assert not checked.findings, "\n".join(map(str, checked.findings))
        assert not counted[:4].any()
    launches(out, *inputs)
    assert_correct(out, p)
    assert (memory[:128] == -7).all() and (memory[-128:] == -7).all()


@pytest.mark.thin(2)
def test_the_same_in_any_order(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_problem(arch, 150, 128, 128, 3, 2, num_shared=1)
    first = run("hip", p, LOW)
    for schedule in ("random:1", "random:2"):
        monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", schedule)
        assert torch.equal(run("hip", p, LOW), first)


@pytest.mark.thin(2)
@pytest.mark.parametrize("config", [LOW, HIGH])
def test_what_hip_does(config: FusedMoeFp8HipConfig, arch: str) -> None:
    """Four launches without scratch or spills; 16 rows that are not there are not multiplied."""
    p = random_problem(arch, 50, 256, 128, 3, 2)
    ids = torch.tensor([[0, 1]] * 40 + [[0, 0]] * 10, dtype=torch.int32)
    with rfops.vgpu.profile() as profiled:
        run("hip", p.with_(topk_ids=ids), config)
    name = "moe_experts_fp8"
    kernels = [launch.kernel for launch in profiled.launches]
    assert kernels == ["moe_fp8_prepare", name, name, "moe_add"]
    for launch in profiled.launches:
        assert launch.vgpr_spills == launch.sgpr_spills == launch.scratch_bytes_per_lane == 0
    rows = sum(-(-count // 16) * 16 for count in (50, 40))
    for launch, n, k in ((profiled.launches[1], 256, 256), (profiled.launches[2], 256, 128)):
        flops = {"gfx942": 2 * 16 * 16 * 32, "gfx950": 2 * 16 * 16 * 128}[arch]
        assert sum(launch.mfma.values()) * flops == 2 * rows * n * k
        assert launch.lds_conflict_cycles == 0


@pytest.mark.sweep
@pytest.mark.parametrize("config", [LOW, HIGH])
@pytest.mark.parametrize("stage", [1, 2])
def test_no_spills_of_many_experts(stage: int, config: FusedMoeFp8HipConfig, arch: str) -> None:
    defines = experts_defines(config.rows, BF16, stage, 512, False)
    found = moe_experts_fp8_kernel.bind(torch.device("cpu"), defines, arch).resources
    assert found["vgpr_spills"] == found["sgpr_spills"] == found["scratch"] == 0, (defines, found)


@pytest.mark.sweep
def test_more_tiles_than_workgroups(arch: str) -> None:
    """Whole rounds and a last one that is shared out by rows, of routed experts and shared ones."""
    p = random_problem(arch, 300, 128, 2048, 18, 4, num_shared=2)
    with rfops.vgpu.check() as checked:
        got = run("hip", p, LOW)
    assert_correct(got, p)
    assert not checked.findings, "\n".join(map(str, checked.findings))


@pytest.mark.thin(2)
def test_empty(arch: str) -> None:
    p = random_problem(arch, 4, 128, 128, 3, 2)
    none = p.x[:0], p.w1, p.w2, p.topk_weights[:0], p.topk_ids[:0]
    assert fused_moe(*none, **p.scales).shape == (0, 128)


@pytest.mark.requires_gfx950
def test_opcheck() -> None:
    p = random_problem("gfx950", 4, 128, 128, 3, 2)
    more = (None, 2, 3, False, False, BF16, "raw", "")
    args = (p.x, p.w1, p.w2, p.w1_scale, p.w2_scale, *p.choice, *more)
    # Its other tests multiply FP8 tensors, which torch cannot.
    torch.library.opcheck(
        torch.ops.rfops.fused_moe_fp8.default, args, test_utils=("test_faketensor",)
    )


P = random_problem("gfx950", 4, 256, 128, 3, 2)
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "fp32 rows": ({"x": P.x.float()}, "x must be bfloat16 or float16, got .*; convert it"),
    "bf16 weights": ({"w1": P.w1.bfloat16()}, "w1 must be float8_e4m3fn or float8_e4m3fnuz, got"),
    "two kinds": (
        {"w2": P.w2.view(torch.float8_e4m3fnuz)},
        "w2 must be torch.float8_e4m3fn as w1 is, got torch.float8_e4m3fnuz",
    ),
    "gate alone": (
        {"w1": P.w1[:, :128].contiguous(), "w1_scale": P.w1_scale[:, :1].contiguous()},
        "w1 must be of 2 . I = 256 rows an expert",
    ),
    "no scales": ({"w1_scale": None}, "w1_scale must be a"),
    "scales of rows": (
        {"w2_scale": torch.ones(3, 256, 1)},
        r"w2_scale must be a \[E=3, D/128=2, I/128=1\] tensor",
    ),
    "bf16 scales": ({"w2_scale": P.w2_scale.bfloat16()}, "w2_scale must be float32"),
    "rounding": ({"rounding": "up"}, "rounding must be None, got .up.; fp32 scales are not"),
    "shared": ({"num_shared": 4}, "num_shared must be an int from 0 to 3, got 4"),
    "one shuffled": ({"w1": rfops.shuffle_weight(P.w1)}, "w2 must be 16x16 as w1 is, got raw"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    changes, message = REFUSALS[case]
    args = {
        "x": P.x,
        "w1": P.w1,
        "w2": P.w2,
        "topk_weights": P.topk_weights,
        "topk_ids": P.topk_ids,
        **P.scales,
        **changes,
    }
    with pytest.raises(ValueError, match=f"^fused_moe_fp8: {message}"):
        fused_moe(**args)


@pytest.mark.requires_gfx950
def test_refusals_of_sizes_and_configs() -> None:
    p = random_problem("gfx950", 4, 256, 128, 3, 2)
    x, w1, w2 = p.x[:, :192].contiguous(), p.w1[:, :, :192].contiguous(), p.w2[:, :192].contiguous()
    with pytest.raises(ValueError, match=r"D must be a multiple of 128|must be a .*D"):
        fused_moe(x, w1, w2, *p.choice, **p.scales)
    with pytest.raises(ValueError, match="rows are 64 or 128"):
        FusedMoeFp8HipConfig(32)
    with pytest.raises(ValueError, match=r"block_k must be 128, block_n at most 256"):
        run("triton", p, FusedMoeTritonConfig(16, 64, 64))


def test_supports() -> None:
    assert OP.supports(arch="gfx942", dtype=BF16, backend="hip")
    assert OP.supports(arch="sm_90", dtype=BF16, backend="triton")
    assert not OP.supports(arch="sm_80", dtype=BF16, backend="triton")


@pytest.mark.thin(2)
def test_a_layer(arch: str) -> None:
    """The router's choice in two launches, then its experts."""
    p = random_problem(arch, 40, 256, 128, 6, 2, num_shared=1)
    generator = torch.Generator().manual_seed(7)
    router = (torch.randn(5, 256, generator=generator) / 16).to(BF16)
    with rfops.vgpu.profile() as profiled:
        got = rfops.moe_layer(p.x, router, p.w1, p.w2, 2, num_shared=1, **p.scales)
    names = [launch.kernel for launch in profiled.launches]
    assert names[:2] == ["a16w16_stream", "moe_topk"]
    assert "a16w16_stream" not in names[2:] and "moe_topk" not in names[2:]
    weights, ids = rfops.moe_router(p.x, router, 2)
    assert_correct(got, p.with_(topk_weights=weights, topk_ids=ids))
