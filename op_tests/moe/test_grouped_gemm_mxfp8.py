"""grouped_gemm_mxfp8 against float64, in which products and scales of MX-FP8 are exact.

The tolerance is compare.py's. A matrix instruction adds its 128 products in an order it does not
tell: a product passes through 128 roundings there, one for each further 128 of K, one for each
other part of K that is added up, and one for the routed weight.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import mmap
from collections.abc import Iterator

import pytest
import torch

import rfops.vgpu
from rfops.moe.align_block_size import moe_align_block_size, moe_align_block_size_ref
from rfops.moe.grouped_gemm_mxfp8 import grouped_gemm_mxfp8, grouped_gemm_mxfp8_ref, run_torch
from rfops.moe.kernels.grouped.hip import MoeConfig
from rfops.quantization.mxfp8 import E8M0, dequant_mxfp8, quant_mxfp8
from rfops.triton.tiles import TritonConfig
from support.calls import default_moe, grouped_route
from support.grouped_problems import (
    BF16,
    F32,
    ROUTINGS,
    UNTOUCHED,
    Problem,
    assert_correct,
    by_hand,
    problem_of,
    ragged,
    run,
    scattered_blocks,
    spread,
)
from support.mxfp8_problems import surround

pytestmark = pytest.mark.requires_gfx950
moe_module = importlib.import_module("rfops.moe.kernels.grouped.hip")

MAP_NORESERVE = 0x4000  # Linux; Python's mmap names it from 3.13 on
SMALL = MoeConfig(16, 1, 1, 2)  # for any shape; few variants, as each takes half a second to build


def check(problem: Problem, device: torch.device, config: MoeConfig | None = None) -> None:
    """The HIP kernel, whatever the route would be."""
    config = config or default_moe(
        problem.w.shape[1],
        problem.w.shape[2],
        problem.w.shape[0],
        problem.num_valid_tokens,
        problem.block_m,
    )
    assert_correct(run(problem, device, config=config), problem)


# ---------------------------------------------------------------- values


@pytest.mark.thin(3)
@pytest.mark.parametrize("gemm", [1, 2])
@pytest.mark.parametrize("experts", [256, 128, 64, 32])
def test_experts(experts: int, gemm: int, gfx950: torch.device) -> None:
    check(problem_of(spread(4, 4, experts), experts, 80, 512, gemm=gemm), gfx950)


@pytest.mark.parametrize("block_m", [1, 5, 8, 16, 32, 48, 64, 128])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_routings(routing: str, block_m: int, gfx950: torch.device) -> None:
    check(problem_of(ROUTINGS[routing], 8, 40, 288, block_m, gemm=2), gfx950, SMALL)


@pytest.mark.parametrize("n", [1, 3, 17, 37])
@pytest.mark.parametrize("k", [32, 96, 160, 256, 768, 1056])
def test_odd_sizes(k: int, n: int, gfx950: torch.device) -> None:
    """K of no whole chunk, or a whole one; n of no whole tile, and rows of out unaligned."""
    check(problem_of(spread(5, 2, 4), 4, n, k, block_m=8), gfx950, SMALL)


VARIANTS = [
    MoeConfig(16, 1, 1, 1),
    MoeConfig(16, 4, 1, 2),
    MoeConfig(16, 1, 3, 8),
    MoeConfig(16, 3, 2, 3),
    MoeConfig(8, 1, 1, 1),
    MoeConfig(8, 3, 2, 2),
    MoeConfig(8, 2, 1, 16),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize("k", [1056, 1280])
@pytest.mark.parametrize("config", VARIANTS, ids=str)
def test_variants(config: MoeConfig, k: int, gfx950: torch.device) -> None:
    """Several rounds along K, waves without work, tiles beyond N, folded tiles."""
    check(problem_of(ragged(20, 2, 4), 4, 70, k, block_m=7, gemm=2), gfx950, config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes(dtype: torch.dtype, gfx950: torch.device) -> None:
    problem = problem_of(spread(3, 2, 4), 4, 21, 512, gemm=2)
    actual = run(problem, gfx950, dtype, config=SMALL)
    assert actual.dtype == dtype
    assert_correct(actual, problem)


@pytest.mark.parametrize(("gemm", "weighted"), [(1, True), (2, False)])
def test_weights_with_either_a_div(gemm: int, weighted: bool, gfx950: torch.device) -> None:
    check(problem_of(spread(4, 3, 6), 6, 40, 512, gemm=gemm, weighted=weighted), gfx950)


def test_a_div_that_is_not_top_k(gfx950: torch.device) -> None:
    problem = problem_of(spread(6, 4, 8), 8, 24, 256, gemm=2)
    check(
        dataclasses.replace(
            problem, a_div=3, a_q=problem.a_q[:8].clone(), a_scale=problem.a_scale[:8].clone()
        ),
        gfx950,
    )


@pytest.mark.parametrize("config", [MoeConfig(16, 2, 3, 8), MoeConfig(8, 2, 1, 8)], ids=str)
def test_deterministic(config: MoeConfig, gfx950: torch.device) -> None:
    problem = problem_of(spread(4, 2, 8), 8, 64, 6144, block_m=8)
    first = run(problem, gfx950, F32, config=config)
    for _ in range(3):
        assert torch.equal(first, run(problem, gfx950, F32, config=config))


def test_scale_dtypes_agree(gfx950: torch.device) -> None:
    problem = problem_of(spread(2, 2, 4), 4, 16, 256)
    typed = dataclasses.replace(
        problem, a_scale=problem.a_scale.view(E8M0), w_scale=problem.w_scale.view(E8M0)
    )
    assert torch.equal(run(problem, gfx950, config=SMALL), run(typed, gfx950, config=SMALL))


@pytest.mark.parametrize("which", ["a_scale", "w_scale"])
def test_scales_at_any_address(which: str, gfx950: torch.device) -> None:
    """A variant loads four scales at once: it is not taken where that is not aligned."""
    problem = problem_of(spread(2, 2, 4), 4, 16, 256)
    aligned = run(problem, gfx950)
    scales = getattr(problem, which)
    moved = torch.empty(scales.numel() + 1, dtype=torch.uint8)[1:].view(scales.shape).copy_(scales)
    odd = dataclasses.replace(problem, **{which: moved})
    with rfops.vgpu.profile() as profile:
        assert_correct(run(odd, gfx950), problem)
    assert profile.launches[0].instructions["buffer_load_ubyte"] > 0
    assert_correct(aligned, problem)


def test_reference_agrees_with_float64() -> None:
    problem = problem_of(ROUTINGS["some rows in no block"], 8, 20, 288, 4, gemm=2)
    actual = grouped_gemm_mxfp8_ref(*problem.args(F32))
    assert_correct(actual, problem, untouched=False)
    assert (actual[[1, 2, 5]] == 0).all()  # the ids in no block


# ---------------------------------------------------------------- e8m0 and e4m3 extremes


@pytest.mark.parametrize("k", [64, 256])  # scales byte by byte, and four at once
@pytest.mark.parametrize(
    ("a_byte", "w_byte", "a_code", "w_code", "expected"),
    [
        (0, 254, 0x38, 0x38, 32.0),  # 2^-127 * 2^127; code 0x38 is 1
        (254, 0, 0x01, 0xFE, -32 * 448.0 * 2.0**-9),
        (254, 127, 0x01, 0x01, 32 * 2.0**109),
        (254, 254, 0x00, 0x7E, 0.0),  # zero, not 0 * inf
        (254, 254, 0x38, 0x38, math.inf),
        (254, 254, 0xB8, 0x38, -math.inf),
        (0, 0, 0x7E, 0x7E, 0.0),
        (255, 127, 0x00, 0x38, math.nan),
        (127, 255, 0x38, 0x00, math.nan),
        (127, 127, 0x7F, 0x00, math.nan),
        (127, 127, 0x00, 0xFF, math.nan),
    ],
)
def test_extremes(
    a_byte: int,
    w_byte: int,
    a_code: int,
    w_code: int,
    expected: float,
    k: int,
    gfx950: torch.device,
) -> None:
    """The first block of a row has the scales and codes of the case, the others zeros."""
    problem = problem_of(torch.tensor([[1], [0]], dtype=torch.int32), 2, 3, k)
    for tensor, code in ((problem.a_q, a_code), (problem.w, w_code)):
        tensor.view(torch.uint8).zero_()[..., :32] = code
    problem.a_scale.fill_(127)[..., 0] = a_byte
    problem.w_scale.fill_(127)[..., 0] = w_byte
    wanted = torch.full((2, 3), expected).bfloat16()
    for actual in (run(problem, gfx950, config=SMALL), grouped_gemm_mxfp8_ref(*problem.args())):
        torch.testing.assert_close(actual.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("config", [MoeConfig(16, 1, 1, 2), MoeConfig(8, 1, 1, 2)], ids=str)
@pytest.mark.parametrize("k", [288, 1088, 1280])
def test_nan_stays_in_its_row_and_column(k: int, config: MoeConfig, gfx950: torch.device) -> None:
    """NaN scales and payloads, at ends that lie beside other rows' beginnings."""
    problem = problem_of(torch.zeros(8, 1, dtype=torch.int32), 1, 40, k, block_m=8)
    problem.a_scale[2, -1] = 255
    problem.a_q.view(torch.uint8)[4, :16] = 0x7F
    problem.w_scale[0, 17, 0] = 255
    problem.w.view(torch.uint8)[0, 25, -32:] = 0xFF
    actual = run(problem, gfx950, config=config).cpu()
    expected = torch.zeros(8, 40, dtype=torch.bool)
    expected[[2, 4], :] = True
    expected[:, [17, 25]] = True
    assert torch.equal(actual.isnan(), expected)
    assert_correct(actual, problem)


# ---------------------------------------------------------------- the layout


@pytest.mark.parametrize("block_m", [4, 2, 16])
def test_padding_anywhere(block_m: int, gfx950: torch.device) -> None:
    """Among valid ids, before them, a whole block of it, negative ids; block 3 is not in use."""
    experts = torch.tensor([2, 0, 1, 0] * 2, dtype=torch.int32)
    check(by_hand(block_m=block_m, expert_ids=experts), gfx950, SMALL)


@pytest.mark.parametrize("none", [-1, 3, 2**31 - 1, -(2**31)])
def test_blocks_without_an_expert_are_zero(none: int, gfx950: torch.device) -> None:
    """Also where the weight is NaN."""
    problem = by_hand(expert_ids=torch.tensor([2, none, none, 0], dtype=torch.int32))
    assert problem.weights is not None
    problem.weights.view(-1)[3] = math.nan
    actual = run(problem, gfx950, config=SMALL).cpu()
    assert (actual[[1, 3, 5]] == 0).all() and (actual[2] == UNTOUCHED).all()
    problem.weights.view(-1)[3] = 0.0
    assert_correct(actual, problem)


@pytest.mark.parametrize("in_use", [0, 4, 8, 16, 1000, 2**31 - 1, -1, -5, -(2**31)])
def test_num_tokens_post_padded(in_use: int, gfx950: torch.device) -> None:
    """No more than there are ids is taken, and none where it is negative, whatever the route."""
    problem = by_hand(num_tokens_post_padded=torch.tensor([in_use], dtype=torch.int32))
    check(problem, gfx950, SMALL)
    triton = run(problem, gfx950, config=TritonConfig("blocks", 16, 16, 32, warps=1))
    assert_correct(triton, problem)
    of_torch = torch.full_like(triton, UNTOUCHED)
    run_torch(problem.block_m, problem.a_div, of_torch, *problem.args()[:7], problem.weights)
    assert_correct(of_torch, problem)
    named = {id for id, _ in problem.rows()}
    plain = grouped_gemm_mxfp8_ref(*problem.args(F32))
    assert [i for i in range(6) if plain[i].any()] == sorted(named)


def test_more_blocks_than_workgroups_along_y(gfx950: torch.device) -> None:
    check(scattered_blocks(), gfx950, SMALL)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("n", "k", "block_m"), [(5, 96, 16), (37, 288, 8), (40, 512, 64), (9, 800, 5)]
)
def test_writes_its_output_and_reads_its_inputs_only(
    n: int, k: int, block_m: int, gfx950: torch.device
) -> None:
    """NaN around payloads, scales and weights; ids around the ids; a pattern around out."""
    plain = problem_of(ragged(9, 2, 4), 4, n, k, block_m, gemm=2)
    poison = {
        "a_q": 0x7F,
        "w": 0x7F,
        "a_scale": 255,
        "w_scale": 255,
        "weights": 255,
        "sorted_token_ids": 0,
        "expert_ids": 0,
        "num_tokens_post_padded": 0x7F,
    }
    problem = plain.to(gfx950)
    for name, byte in poison.items():
        problem = dataclasses.replace(problem, **{name: surround(getattr(problem, name), byte)[0]})
    nan = torch.full((plain.num_valid_tokens, n), math.nan, dtype=BF16, device=gfx950)
    out, buffer = surround(nan, 0xA5)
    grouped_gemm_mxfp8(*problem.args(), out=out, config=MoeConfig(16, 2, 1, 2))
    assert_correct(out, plain)
    outside = torch.cat([buffer[:4096], buffer[-4096:]])
    assert (outside == 0xA5).all(), "bytes beyond out were written"


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_out_at_any_address(dtype: torch.dtype, gfx950: torch.device) -> None:
    """N of whole vectors, out not aligned to one."""
    problem = problem_of(spread(3, 2, 4), 4, 24, 256)
    out = torch.full((6 * 24 + 1,), UNTOUCHED, dtype=dtype, device=gfx950)[1:].view(6, 24)
    grouped_gemm_mxfp8(*problem.to(gfx950).args(dtype), out=out, config=SMALL)
    assert_correct(out, problem)


@pytest.mark.parametrize("change", [{"n": 0}, {"tokens": 0}, {"ids": 0}])
def test_empty(change: dict[str, int], gfx950: torch.device) -> None:
    n = change.get("n", 8)
    problem = problem_of(spread(2, 2, 4), 4, n, 64).to(gfx950)
    if "tokens" in change:
        problem = dataclasses.replace(problem, num_valid_tokens=0)
    if "ids" in change:
        problem = dataclasses.replace(problem, sorted_token_ids=problem.sorted_token_ids[:0])
    actual = grouped_gemm_mxfp8(*problem.args())
    assert actual.shape == (problem.num_valid_tokens, n) and actual.dtype == BF16


def test_no_experts_at_all_is_zero(gfx950: torch.device) -> None:
    problem = problem_of(spread(2, 2, 4), 4, 8, 64)
    empty = dataclasses.replace(problem, w=problem.w[:0], w_scale=problem.w_scale[:0])
    assert (run(empty, gfx950) == 0).all()
    by_torch = torch.full((4, 8), UNTOUCHED)
    run_torch(16, 2, by_torch, *empty.args()[:7], None)
    assert (by_torch == 0).all()


def mapped(*shape: int) -> torch.Tensor:
    """Zeros that take memory only where they are touched."""
    size = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8).view(shape)


@pytest.mark.parametrize(
    ("experts", "k"),
    [(2**16 + 3, 4096), (2**21 + 3, 2048)],
    ids=["w beyond 4 GiB", "w_scale beyond 2 GiB"],
)
def test_weights_beyond_2_gib(experts: int, k: int, gfx950: torch.device) -> None:
    """Experts before, at and behind the limits of 32-bit offsets; only they take memory."""
    n, tokens = 16, 4
    selected = [0, experts // 2 + 1, experts - 2, experts - 1]
    small = problem_of(torch.arange(4, dtype=torch.int32).view(tokens, 1), 4, n, k, block_m=1)
    w, w_scale = mapped(experts, n, k), mapped(experts, n, k // 32)
    assert max(w.numel() / 2, w_scale.numel()) > 2**31
    for index, expert in enumerate(selected):
        w[expert], w_scale[expert] = small.w[index].view(torch.uint8), small.w_scale[index]
    large = dataclasses.replace(
        small,
        w=w.view(torch.float8_e4m3fn),
        w_scale=w_scale,
        expert_ids=torch.tensor(selected, dtype=torch.int32)[small.expert_ids],
    )
    assert_correct(run(large, gfx950, config=MoeConfig(16, 1, 1, 4)), small)


def test_out_beyond_2_gib(gfx950: torch.device) -> None:
    """The last row of out starts at element 2^32."""
    n, rows = 2**10, 2**22 + 1
    small = problem_of(torch.zeros(1, 1, dtype=torch.int32), 1, n, 64, block_m=1)
    out = mapped(rows, n * 2).view(BF16)
    problem = dataclasses.replace(
        small,
        num_valid_tokens=rows,
        a_div=rows,
        sorted_token_ids=torch.tensor([rows - 1], dtype=torch.int32),
    )
    grouped_gemm_mxfp8(*problem.args(), out=out, config=MoeConfig(16, 4, 1, 1))
    assert_correct(out[rows - 1 :], small)
    assert not out[0].any()


@pytest.mark.parametrize("large", ["w", "a_q"])
def test_beyond_signed_offsets_goes_to_another_route(large: str, gfx950: torch.device) -> None:
    """A workgroup's 64 rows of w, or a_q, of 2 GiB: HIP refuses, another route takes the call."""
    k, a_rows = (2**25, 1) if large == "w" else (2**16, 2**15)
    problem = Problem(
        mapped(a_rows, k).view(torch.float8_e4m3fn),
        mapped(a_rows, k // 32),
        mapped(1, 1, k).view(torch.float8_e4m3fn),
        mapped(1, 1, k // 32),
        *(torch.zeros(1, dtype=torch.int32) for _ in range(3)),
        1,
        1,
        1,
        1,
    )
    with pytest.raises(ValueError, match=r"config must be of a kernel that takes .*2 GiB"):
        grouped_gemm_mxfp8(*problem.args(), config=SMALL)
    selected = grouped_route(1, 1, k, 1, 1, 1, False, 1, A=a_rows)
    assert not selected.is_hip and "2 GiB" in selected.refused["moe"]
    out = torch.full((1, 1), UNTOUCHED, dtype=BF16)
    grouped_gemm_mxfp8(*problem.args(), out=out)  # no id is in use: nothing to wait for
    assert (out == UNTOUCHED).all()


@pytest.mark.sweep
def test_one_experts_weights_beyond_2_gib(gfx950: torch.device) -> None:
    """The last row of w starts beyond 2^31; half a minute, as all rows are read."""
    n, k = 2**14 + 1, 2**17
    problem = Problem(
        mapped(1, k).view(torch.float8_e4m3fn),
        mapped(1, k // 32) + 127,
        mapped(1, n, k).view(torch.float8_e4m3fn),
        mapped(1, n, k // 32),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.ones(1, dtype=torch.int32),
        1,
        1,
        1,
        1,
    )
    problem.a_q.view(torch.uint8).fill_(0x38)
    problem.w.view(torch.uint8)[0, -1, -1] = 0x38  # 1.0
    problem.w_scale[0, -1] = 127
    actual = run(problem, gfx950, F32, config=MoeConfig(16, 1, 2, 8))
    assert actual[0, -1] == 1.0 and not actual[0, :-1].any()


# ---------------------------------------------------------------- a layer


def test_whole_layer(gfx950: torch.device) -> None:
    """Quantise, sort, gemm1, SwiGLU, quantise, gemm2 with weights, add up each token's experts: as
    a framework would, against the same layer in float64 on the dequantised tensors."""
    tokens, top_k, experts, width, inner, block = 6, 2, 4, 256, 96, 16
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    (x, x_scale), (w1, w1_scale), (w2, w2_scale) = (
        quant_mxfp8(t)
        for t in (
            normal(tokens, width),
            normal(experts, 2 * inner, width) / 16,
            normal(experts, width, inner) / 10,
        )
    )
    topk_ids = spread(tokens, top_k, experts)
    weights = torch.softmax(normal(tokens, top_k), dim=1)
    rows = tokens * top_k
    on = [t.to(gfx950) for t in (x, x_scale, w1, w1_scale, w2, w2_scale, topk_ids, weights)]
    x_d, xs_d, w1_d, w1s_d, w2_d, w2s_d, ids_d, weights_d = on
    layout = (*moe_align_block_size(ids_d, block, experts), rows, top_k, block)
    gate_up = grouped_gemm_mxfp8(x_d, xs_d, w1_d, w1s_d, *layout, F32, top_k, None, ids_d)
    hidden, hidden_scale = quant_mxfp8(swiglu(gate_up))
    down = grouped_gemm_mxfp8(hidden, hidden_scale, w2_d, w2s_d, *layout, F32, 1, weights_d, ids_d)
    actual = down.view(tokens, top_k, width).sum(1).cpu()

    exact_x, exact_w1, exact_w2 = (
        dequant_mxfp8(*pair, torch.float64)
        for pair in ((x, x_scale), (w1, w1_scale), (w2, w2_scale))
    )
    flat = topk_ids.view(-1).long()
    exact_gate = torch.einsum("rk,rnk->rn", exact_x.repeat_interleave(top_k, 0), exact_w1[flat])
    torch.testing.assert_close(gate_up.cpu().double(), exact_gate, rtol=1e-5, atol=1e-5)
    exact_hidden = dequant_mxfp8(hidden.cpu(), hidden_scale.cpu(), torch.float64)
    exact = torch.einsum("rk,rnk->rn", exact_hidden, exact_w2[flat]) * weights.view(-1, 1)
    exact = exact.view(tokens, top_k, width).sum(1)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-5)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


# ---------------------------------------------------------------- full size


# gemm1 and gemm2 of a layer split over 4 and 8 GPUs
CELLS = [(1, 1536, 6144), (1, 768, 6144), (2, 6144, 768)]


def full_size(gemm: int, n: int, k: int, experts: int, tokens: int, top_k: int) -> Problem:
    """Of the experts that are used alone, all others' weights never take memory."""
    topk_ids = spread(tokens, top_k, experts)
    used, index = topk_ids.unique(return_inverse=True)
    small = problem_of(index.to(torch.int32), len(used), n, k, gemm=gemm)
    w, w_scale = mapped(experts, n, k), mapped(experts, n, k // 32)
    for position, expert in enumerate(used.tolist()):
        w[expert], w_scale[expert] = small.w[position].view(torch.uint8), small.w_scale[position]
    layout = moe_align_block_size_ref(topk_ids, 16, experts)._asdict()
    return dataclasses.replace(small, w=w.view(torch.float8_e4m3fn), w_scale=w_scale, **layout)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("gemm", "n", "k", "experts", "tokens"),
    [(1, 1536, 6144, 256, 1), (1, 768, 6144, 128, 2), (2, 6144, 768, 64, 2), (2, 6144, 768, 32, 1)],
)
def test_full_size(
    gemm: int, n: int, k: int, experts: int, tokens: int, gfx950: torch.device
) -> None:
    problem = full_size(gemm, n, k, experts, tokens, 4)
    assert_correct(run(problem, gfx950), problem)


def pairs() -> Iterator[tuple[int, ...]]:
    """Each two of tokens, experts, top_k and cells in all their values: a third of the grid."""
    for i, tokens in enumerate((1, 2, 4, 8, 16)):
        for j, experts in enumerate((256, 128, 64, 32)):
            for c, cell in enumerate(CELLS):
                yield *cell, experts, (4, 5, 8)[(i + j + c) % 3], tokens


@pytest.mark.sweep
@pytest.mark.parametrize(("gemm", "n", "k", "experts", "top_k", "tokens"), pairs())
def test_full_size_all(
    gemm: int, n: int, k: int, experts: int, top_k: int, tokens: int, gfx950: torch.device
) -> None:
    """By the HIP kernel, also where the route would take another."""
    problem = full_size(gemm, n, k, experts, tokens, top_k)
    config = default_moe(n, k, experts, tokens * top_k, 16)
    assert_correct(run(problem, gfx950, config=config), problem)
