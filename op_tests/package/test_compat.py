"""The drop-ins: HIP's result, or None where HIP does not engage; mistakes and faults are raised."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
from rfops import compat
from rfops.compat import grouped_gemm_mxfp8, mxfp8_gemv
from rfops.dispatch import tuned_table
from rfops.dispatch.declare import FP4
from rfops.gemm.kernels.mxfp8.gemv import mxfp8_gemv as gemv_kernel
from rfops.gemm.mxfp8 import OP
from support.a8w8_problems import Problem as BlockProblem
from support.a8w8_problems import assert_correct as assert_blocks_correct
from support.a8w8_problems import random_problem as random_blocks
from support.mxfp4_problems import assert_correct as assert_fp4_correct
from support.mxfp4_problems import random_problem as random_fp4
from support.mxfp8_problems import assert_correct, bytes_of, fp8, random_problem

pytestmark = pytest.mark.requires_gfx950
BF16 = torch.bfloat16


def dense(**changes: object) -> torch.Tensor | None:
    """A call in the envelope, M=2, N=4, K=64, with changes."""
    args = {
        "xq": fp8(2, 64),
        "x_scale": bytes_of(2, 2),
        "wq": fp8(4, 64),
        "w_scale": bytes_of(4, 2),
        "out_dtype": BF16,
    }
    return mxfp8_gemv(**{**args, **changes})  # type: ignore[arg-type]


def test_signatures() -> None:
    assert list(inspect.signature(mxfp8_gemv).parameters) == [
        "xq",
        "x_scale",
        "wq",
        "w_scale",
        "out_dtype",
    ]
    assert list(inspect.signature(grouped_gemm_mxfp8).parameters) == [
        "a_q",
        "a_scale",
        "w",
        "w_scale",
        "sorted_token_ids",
        "expert_ids",
        "num_tokens_post_padded",
        "num_valid_tokens",
        "top_k",
        "block_m",
        "out_dtype",
        "a_div",
        "mul_weight_by",
        "topk_ids",
    ]


@pytest.mark.parametrize("m", [1, 4, 8, 16])
def test_dense(m: int, gfx950: torch.device) -> None:
    problem = random_problem(m, 40, 288).to(gfx950)
    actual = mxfp8_gemv(problem.x, problem.x_scale, problem.w, problem.w_scale, BF16)
    assert actual is not None and actual.dtype == BF16
    assert_correct(actual, problem)


def test_empty() -> None:
    actual = dense(xq=fp8(0, 64), x_scale=bytes_of(0, 2))
    assert actual is not None and actual.shape == (0, 4)


NONE = {
    "x is bf16": {"xq": torch.zeros(2, 64, dtype=BF16)},
    "w of another fp8": {"wq": bytes_of(4, 64).view(torch.float8_e4m3fnuz)},
    "fp32 scales": {"w_scale": torch.zeros(4, 2)},
    "out_dtype": {"out_dtype": torch.float64},
    "K not of 32": {"xq": fp8(2, 48), "wq": fp8(4, 48)},
    "x not contiguous": {"xq": fp8(2, 128)[:, :64]},
    "scales not contiguous": {"w_scale": bytes_of(2, 4).T},
    "w not aligned": {"wq": fp8(4 * 64 + 8).view(-1)[8:].view(4, 64)},
    "another device": {
        "xq": fp8(2, 64).to("meta"),
        "x_scale": bytes_of(2, 2).to("meta"),
        "wq": fp8(4, 64).to("meta"),
        "w_scale": bytes_of(4, 2).to("meta"),
    },
}


@pytest.mark.parametrize("case", NONE)
def test_none_where_hip_does_not_engage(case: str) -> None:
    assert dense(**NONE[case]) is None


def test_none_beyond_2_gib() -> None:
    """No HIP kernel's offsets reach beyond 2 GiB in 64 rows; the memory is never touched."""
    k = 2**31 // 64
    x, w = (torch.empty(rows, k, dtype=torch.uint8).view(torch.float8_e4m3fn) for rows in (1, 65))
    x_scale, w_scale = (torch.empty(rows, k // 32, dtype=torch.uint8) for rows in (1, 65))
    assert w.numel() > 2**31
    assert mxfp8_gemv(x, x_scale, w, w_scale, BF16) is None


def test_none_on_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dense() is not None
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    assert dense() is None


def test_none_where_the_table_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a result where it says yes, beyond the envelope's default."""
    rows = ((2, "triton"), (20, "mfma"))
    lines = [f"gfx950,256,{m},4,64,{kernel},,,,estimated,a test" for m, kernel in rows]
    file = tmp_path / "gemm_mxfp8.csv"
    columns = tuned_table.TABLES["gemm_mxfp8"].columns
    file.write_text("\n".join([",".join(columns), *lines]) + "\n")
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    compat._is_hip.cache_clear()
    try:
        assert dense() is None
        actual = dense(xq=fp8(20, 64), x_scale=bytes_of(20, 2))
        assert actual is not None and actual.shape == (20, 4)
    finally:
        compat._is_hip.cache_clear()


def test_sizes_that_disagree_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"w must be a \[N, K=64\] tensor"):
        dense(wq=fp8(4, 96))
    with pytest.raises(ValueError, match="w_scale must be"):
        dense(w_scale=bytes_of(5, 2))


def test_an_error_of_a_build_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise rfops.BuildError("mxfp8_gemv", "clang", "no room left", None)

    monkeypatch.setattr(gemv_kernel, "bind", fail)
    monkeypatch.setattr(type(OP), "order", lambda _op, _c: ["gemv"])
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())  # no kernel of another test's call
    with pytest.raises(rfops.BuildError, match="no room left"):
        dense(xq=fp8(3, 96), x_scale=bytes_of(3, 3), wq=fp8(5, 96), w_scale=bytes_of(5, 3))


# ---------------------------------------------------------------- grouped


def grouped(tokens: int = 2, **changes: object) -> torch.Tensor | None:
    """gemm1 of a mixture of 4 experts, top_k 2, N=24, K=64; every token to experts 1 and 3."""
    rows, block_m = 2 * tokens, 16
    ids = torch.full((2 * block_m,), rows, dtype=torch.int32)
    ids[:tokens] = torch.arange(0, rows, 2)
    ids[block_m : block_m + tokens] = torch.arange(1, rows, 2)
    args: dict[str, object] = {
        "a_q": fp8(tokens, 64),
        "a_scale": bytes_of(tokens, 2),
        "w": fp8(4, 24, 64),
        "w_scale": bytes_of(4, 24, 2),
        "sorted_token_ids": ids,
        "expert_ids": torch.tensor([1, 3], dtype=torch.int32),
        "num_tokens_post_padded": torch.tensor([2 * block_m], dtype=torch.int32),
        "num_valid_tokens": rows,
        "top_k": 2,
        "block_m": block_m,
        "out_dtype": BF16,
        "a_div": 2,
    }
    return grouped_gemm_mxfp8(**{**args, **changes})  # type: ignore[arg-type]


def test_grouped() -> None:
    """Against the dense op, expert by expert."""
    problem = random_problem(2, 96, 64)
    w, w_scale = problem.w.view(4, 24, 64), problem.w_scale.view(4, 24, 2)
    args = {"a_q": problem.x, "a_scale": problem.x_scale, "w": w, "w_scale": w_scale}
    actual = grouped(**args)
    assert actual is not None and actual.shape == (4, 24)
    for row, expert in ((0, 1), (1, 3), (2, 1), (3, 3)):
        token = slice(row // 2, row // 2 + 1)
        expected = rfops.gemm_mxfp8_ref(
            problem.x[token], w[expert], problem.x_scale[token], w_scale[expert]
        )
        torch.testing.assert_close(actual[row : row + 1], expected, rtol=2**-7, atol=1e-2)


GROUPED_NONE: dict[str, dict[str, object]] = {
    "int64 ids": {"expert_ids": torch.tensor([1, 3])},
    "bf16 weights": {"mul_weight_by": torch.ones(4, dtype=BF16)},
    "K not of 32": {"a_q": fp8(2, 48), "w": fp8(4, 24, 48)},
    "out_dtype": {"out_dtype": torch.float64},
    "bf16 rows": {"a_q": torch.zeros(2, 64, dtype=BF16)},
}


@pytest.mark.parametrize("case", GROUPED_NONE)
def test_grouped_none(case: str) -> None:
    assert grouped(**GROUPED_NONE[case]) is None  # type: ignore[arg-type]


def test_grouped_on_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    assert grouped() is None


def test_grouped_sizes_that_disagree_are_an_error() -> None:
    with pytest.raises(ValueError, match="w_scale must be"):
        grouped(w_scale=bytes_of(4, 24, 3))


# ---------------------------------------------------------------- FP8 with scales of blocks


@pytest.fixture(params=["gfx942", "gfx950"])
def blockscale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BlockProblem:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", request.param)
    return random_blocks(5, 144, 512, request.param)


def test_blockscale_as_vllm_calls_it(blockscale: BlockProblem) -> None:
    """rocm_aiter_gemm_a8w8_blockscale: positional tensors, dtype by name; a new result."""
    actual = compat.gemm_a8w8_blockscale(*blockscale.args, dtype=torch.float16)
    assert actual.shape == (5, 144) and actual.dtype == torch.float16
    assert_blocks_correct(actual, blockscale)


def test_blockscale_as_sglang_calls_it(blockscale: BlockProblem) -> None:
    """With weights that were shuffled when they were loaded, as plain tensors."""
    w = rfops.shuffle_weight(blockscale.w).data
    x, _, x_scale, w_scale = blockscale.args
    actual = compat.gemm_a8w8_blockscale(x, w, x_scale, w_scale, BF16, isBpreshuffled=True)
    assert_blocks_correct(actual, blockscale)


def test_bpreshuffle_takes_both_kinds_of_transposed_scales(blockscale: BlockProblem) -> None:
    """Column-major by strides, as vLLM's As, and by memory alone, as per_group_quant_hip's."""
    w = rfops.shuffle_weight(blockscale.w).data
    x, _, x_scale, w_scale = blockscale.args
    by_strides = x_scale.T.contiguous().T
    in_name_only = x_scale.T.contiguous().view(*x_scale.shape)
    for scale in (by_strides, in_name_only):
        out = torch.full((5, 144), float("nan"), dtype=BF16)
        actual = compat.gemm_a8w8_blockscale_bpreshuffle(x, w, scale, w_scale, BF16, out)
        assert actual is out
        assert_blocks_correct(out, blockscale)


def test_bpreshuffle_of_weights_that_cannot_be() -> None:
    problem = random_blocks(5, 140, 256, "gfx950")
    with pytest.raises(ValueError, match="N must be a multiple of 16 where w is shuffled"):
        compat.gemm_a8w8_blockscale_bpreshuffle(*problem.args)


# ---------------------------------------------------------------- MXFP4


def loaded(m: int, n: int = 96, k: int = 256) -> tuple[Any, Any, Any]:
    """x in bf16, and weights as checkpoints have them: bytes."""
    problem = random_fp4(m, n, k)
    return problem, problem.w, problem.w_scale


@pytest.mark.parametrize("m", [5, 40])
def test_a4w4_as_vllm_calls_it(m: int) -> None:
    """gemm_with_dynamic_quant of quark_ocp_mx.py with assembly kernels: weights that were shuffled
    when they were loaded, torch's own dtypes, an `out` of whole tiles in the fifth place."""
    problem, w, w_scale = loaded(m)
    weight, weight_scale = rfops.shuffle_weight(w).data, rfops.shuffle_scale(w_scale).data
    x_q, x_s = rfops.quant_mxfp4(problem.x, dtype=FP4)
    x_s = rfops.shuffle_scale(x_s).data
    y = torch.full(((m + 31) // 32 * 32, 96), math.nan, dtype=BF16)
    actual = compat.gemm_a4w4(
        x_q, weight.view(FP4), x_s, weight_scale.view(x_s.dtype), y, bpreshuffle=True
    )
    assert actual is y and y[m:].isnan().all()
    assert_fp4_correct(y[:m], problem)


def test_a4w4_as_sglang_calls_it() -> None:
    """Without `out`, dtype by name; a bias as aiter has it; any leading dimensions; alpha."""
    problem, w, w_scale = loaded(6)
    weight, weight_scale = rfops.shuffle_weight(w).data, rfops.shuffle_scale(w_scale).data
    x_q, x_s = rfops.quant_mxfp4(problem.x)
    x_s = rfops.shuffle_scale(x_s).data
    actual = compat.gemm_a4w4(
        x_q, weight, x_s, weight_scale.view(x_s.dtype), dtype=torch.float16, bpreshuffle=True
    )
    assert actual.dtype == torch.float16
    assert_fp4_correct(actual, problem)
    bias = torch.randn(1, 96, generator=torch.Generator().manual_seed(0)) * 64
    third = x_q.view(2, 3, -1)
    actual = compat.gemm_a4w4(third, weight, x_s, weight_scale, bias, BF16, None, None)
    assert actual.shape == (2, 3, 96)
    assert_fp4_correct(actual.view(6, 96), problem.with_(bias=bias[0]))
    twice = compat.gemm_a4w4(x_q, weight, x_s, weight_scale, None, torch.float32, 2.0)
    once = compat.gemm_a4w4(x_q, weight, x_s, weight_scale, None, torch.float32)
    assert torch.equal(twice, 2 * once)
    raw = compat.gemm_a4w4(x_q, w, x_s, weight_scale, dtype=torch.float32, bpreshuffle=False)
    assert_fp4_correct(raw, problem)


@pytest.mark.parametrize("m", [5, 40])
def test_preshuffle_as_vllm_calls_it(m: int) -> None:
    """gemm_afp4wfp4_preshuffled_weight_scales with views of bytes, raw scales of x below M = 32;
    and SGLang's call of the newer name."""
    problem, w, w_scale = loaded(m)
    weight, weight_scale = rfops.shuffle_weight(w).data, rfops.shuffle_scale(w_scale).data[:96]
    x_q, x_s = rfops.quant_mxfp4(problem.x, dtype=FP4)
    if m >= 32:
        x_s = rfops.shuffle_scale(x_s).data
        x_s = x_s.view(torch.uint8).view(x_s.shape[0] // 32, -1)
    else:
        x_s = x_s[:m, ...].view(torch.uint8)
    y = torch.full((m, 96), math.nan, dtype=BF16)
    w_bytes = weight.view(torch.uint8).view(96 // 16, -1)
    w_s = weight_scale.view(torch.uint8).view(weight_scale.shape[0] // 32, -1)
    args = x_q.view(torch.uint8), w_bytes, x_s, w_s, BF16, y
    for function in (
        compat.gemm_afp4wfp4_preshuffled_weight_scales,
        compat.gemm_afp4wfp4_preshuffle,
    ):
        y.fill_(math.nan)
        assert function(*args) is y
        assert_fp4_correct(y, problem)


def test_afp4wfp4_as_vllm_calls_it() -> None:
    """dynamic_mxfp4_quant, then gemm_afp4wfp4 with scales that were transposed when loaded."""
    problem, w, w_scale = loaded(7)
    weight_scale = w_scale.T.contiguous()
    x_q, x_s = compat.dynamic_mxfp4_quant(problem.x)
    assert x_q.dtype == x_s.dtype == torch.uint8 and x_s.shape == (7, 8)
    y = torch.full((7, 96), math.nan, dtype=torch.float16)
    assert compat.gemm_afp4wfp4(x_q, w, x_s, weight_scale.T, torch.float16, y) is y
    assert_fp4_correct(y, problem)


def test_a16wfp4_as_the_challenge_calls_it() -> None:
    """gemm_a16wfp4_preshuffle on the first N rows of padded scales; and on raw ones."""
    problem, w, w_scale = loaded(9)
    weight, scale = rfops.shuffle_weight(w).data, rfops.shuffle_scale(w_scale).data
    scale = scale.view(torch.uint8)[:96, :].contiguous().reshape(96 // 32, 256)
    actual = compat.gemm_a16wfp4_preshuffle(
        problem.x, weight.reshape(96 // 16, 128 * 16), scale, prequant=True, dtype=BF16
    )
    assert_fp4_correct(actual, problem)
    y = torch.full((9, 96), math.nan, dtype=BF16)
    assert compat.gemm_a16wfp4(problem.x, w, w_scale, False, BF16, y, None) is y
    assert_fp4_correct(y, problem)
    added = compat.gemm_a16wfp4(problem.x, w, w_scale, True, torch.float32, torch.ones(9, 96))
    assert_fp4_correct(added, problem.with_(bias=torch.ones(96)))


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("gemm_a4w4", {"beta": 1.0}, "gemm_a4w4: beta must be 0 or None, got 1.0; there is no C"),
        ("gemm_a4w4", {"apreshuffle": True}, "gemm_a4w4: apreshuffle must be None or False"),
        ("gemm_a4w4", {"global_A_scale": torch.ones(1)}, "global_A_scale must be None.*NVFP4"),
        ("gemm_a4w4", {"dtype": torch.uint8}, "gemm_afp4wfp4: dtype must be bfloat16"),
        ("gemm_afp4wfp4", {"config": {"BLOCK_SIZE_M": 16}}, "config must be None.*its own tuned"),
        ("gemm_afp4wfp4", {"skip_reduce": True}, "gemm_afp4wfp4: skip_reduce must be None or"),
    ],
)
def test_mxfp4_refusals(name: str, more: dict[str, Any], message: str) -> None:
    problem, w, w_scale = loaded(4)
    x_q, x_s = compat.dynamic_mxfp4_quant(problem.x)
    if name == "gemm_a4w4":
        x_s, w_scale = (rfops.shuffle_scale(s).data for s in (x_s, w_scale))
    with pytest.raises(ValueError, match=message):
        getattr(compat, name)(x_q, w, x_s, w_scale, **more)


def test_mxfp4_raw_scales_are_not_taken_for_shuffled_ones() -> None:
    problem, w, w_scale = loaded(4)
    x_q, x_s = compat.dynamic_mxfp4_quant(problem.x)
    with pytest.raises(ValueError, match=r"x_scale must be a \[32 or more, 8\] tensor, 32x8, got"):
        compat.gemm_a4w4(x_q, w, x_s, w_scale)
    with pytest.raises(ValueError, match="prequant must be True"):
        compat.gemm_a16wfp4_preshuffle(problem.x, w, w_scale, False)
