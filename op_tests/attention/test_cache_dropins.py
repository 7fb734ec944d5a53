"""Drop-ins for RoPE and cache writes: the signatures of vLLM 0.33.0, SGLang 0.5.23 and aiter
0590d9a, the forms of tensors that engines pass, and that each computes what its op does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rfops.attention import cache_dropins as dropins
from rfops.attention.kv_cache_write import kv_cache_write
from rfops.attention.mla_absorb_cache_write import mla_absorb_cache_write
from rfops.attention.mla_cache_write import mla_cache_write, mla_rope_concat_cache_write
from rfops.attention.rope import rope
from rfops.attention.rotary import rope_cos_sin
from support.dropin_checks import assert_same_bytes, random_bf16, signature_of

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
pytestmark = pytest.mark.requires_gfx950
# Facts read off the libraries: schemas of torch.ops, and aiter's Python signatures.
SIGNATURES = {
    "rotary_embedding": "positions, query, key, head_size, cos_sin_cache, is_neox, "
    "rope_dim_offset=0, inverse=False",
    "apply_rope_with_cos_sin_cache_inplace": "positions, query, key, head_size, cos_sin_cache, "
    "is_neox=True, fused_set_kv_buffer_arg=None, enable_pdl=None",
    "rope_cached_positions_2c_fwd_impl": "output_x, output_y, input_x, input_y, cos, sin, "
    "positions, rotate_style, reuse_freqs_front_part, nope_first",
    "rope_cached_positions_2c_fwd_inplace": "input_x, input_y, cos, sin, positions, rotate_style, "
    "reuse_freqs_front_part, nope_first",
    "rope_cached_2c_fwd_inplace": "input_x, input_y, cos, sin, rotate_style, "
    "reuse_freqs_front_part, nope_first",
    "rope_cached_thd_positions_2c_fwd_inplace": "x, y, cos, sin, positions, rotate_style, "
    "reuse_freqs_front_part, nope_first, transpose_output=False",
    "concat_and_cache_mla": "kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale, "
    "skip_scale=False",
    "concat_and_cache_mla_rope_fused": "positions, q_pe, k_pe, kv_c, cos_sin_cache, is_neox, "
    "slot_mapping, kv_cache, kv_cache_dtype, kv_cache_scale",
    "fused_qk_rope_concat_and_cache_mla": "q_nope, q_pe, kv_c, k_pe, kv_cache, q_out, "
    "slot_mapping, k_scale, q_scale, positions, cos_cache, sin_cache, is_neox, is_nope_first",
    "fused_qk_rope_cat_and_cache_mla": "q_nope, q_pe, k_nope, k_pe, kv_cache, slot_mapping, pos, "
    "cos, sin, k_scale, is_neox, num_decode_toks_for_zeros=0, apply_scale=True, q_out=None, "
    "decode_q_pe_out=None, k_pe_out=None, q_out_dtype=None, shuffled_kv_cache=False, "
    "upcast_operand=False",
    "fused_fp8_bmm_rope_cat_and_cache_mla": "q_nope, w_k, w_k_scale, q_pe, k_nope, k_rope, "
    "kv_cache, slot_mapping, positions, cos, sin, group_size=128, transpose_bm=True, config=None, "
    "k_scale=None, is_neox=False, q_out_dtype=torch.bfloat16, num_decode_toks_for_zeros=0",
    "reshape_and_cache_flash": "key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, "
    "k_scale, v_scale",
}


def test_signatures() -> None:
    assert set(dropins.NAMES) == set(SIGNATURES)
    for name, expected in SIGNATURES.items():
        assert signature_of(getattr(dropins, name)) == expected, name


TOKENS, HEADS, DIM = 4, 3, 64
TABLE, POSITIONS = rope_cos_sin(50, DIM), torch.tensor([49, 0, 7, 7])
Q, K = random_bf16(TOKENS, HEADS, DIM), random_bf16(TOKENS, 1, DIM)


def turned(interleaved: bool = False, **values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = Q.clone(), K.clone()
    rope(POSITIONS, q, k, TABLE, interleaved=interleaved, **values)
    return q, k


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("form", ["rows", "heads", "batch", "batch of heads", "qkv"])
def test_rotary_embedding(form: str, is_neox: bool) -> None:
    q, k = Q.clone(), K.clone()
    if form == "qkv":
        qkv = torch.cat((Q, K, K), 1).view(TOKENS, -1)
        query, key, _ = qkv.split([HEADS * DIM, DIM, DIM], -1)
    else:
        shape = (2, 2) if "batch" in form else (TOKENS,)
        tail = (-1, DIM) if "heads" in form else (-1,)
        query, key = q.view(*shape, *tail), k.view(*shape, *tail)
    positions = POSITIONS.view(2, 2) if "batch" in form else POSITIONS
    dropins.rotary_embedding(positions, query, key, DIM, TABLE, is_neox)
    for actual, expected in zip((query, key), turned(not is_neox), strict=True):
        assert_same_bytes(actual, expected)


def test_more_of_rotary_embedding() -> None:
    q = Q.clone()
    dropins.rotary_embedding(POSITIONS, q, None, DIM, TABLE[:, ::2].contiguous(), True, 16, True)
    expected = Q.clone()
    rope(POSITIONS, expected, K[:, :0], TABLE[:, ::2], None, False, 16, True)
    assert_same_bytes(q, expected)
    q, k = Q.clone().view(TOKENS, -1), K.clone().view(TOKENS, -1)
    dropins.apply_rope_with_cos_sin_cache_inplace(POSITIONS, q, k, DIM, TABLE)
    assert_same_bytes(q, turned()[0])
    assert_same_bytes(k, turned()[1])


@pytest.mark.parametrize("style", [0, 1])
def test_aiters_rope(style: int) -> None:
    cos, sin = (half.reshape(50, 1, 1, -1) for half in TABLE.chunk(2, -1))
    values, expected = (style, True, False), turned(style == 1)
    for shape in ((1, TOKENS), (TOKENS, 1), (2, 2)):
        q, k = Q.clone().view(*shape, HEADS, DIM), K.clone().view(*shape, 1, DIM)
        outs = torch.zeros_like(q), torch.zeros_like(k)
        positions = POSITIONS.view(shape)
        dropins.rope_cached_positions_2c_fwd_impl(*outs, q, k, cos, sin, positions, *values)
        assert_same_bytes(q, Q)
        dropins.rope_cached_positions_2c_fwd_inplace(q, k, cos, sin, positions, *values)
        for actual, want in zip((*outs, q, k), expected * 2, strict=True):
            assert_same_bytes(actual, want)
    q, k = Q.clone().view(TOKENS, 1, HEADS, DIM), K.clone().view(TOKENS, 1, 1, DIM)
    dropins.rope_cached_2c_fwd_inplace(q, k, cos[POSITIONS], sin[POSITIONS], *values)
    for actual, want in zip((q, k), expected, strict=True):
        assert_same_bytes(actual, want)
    q, k, tables = Q.clone(), K.clone(), TABLE.chunk(2, -1)  # views, as vLLM passes them
    dropins.rope_cached_thd_positions_2c_fwd_inplace(q, k, *tables, POSITIONS, *values)
    assert_same_bytes(q, expected[0])
    wide = random_bf16(TOKENS, HEADS, 2 * DIM)
    want = wide.clone()
    key = wide[:, :1].clone()
    rope(POSITIONS, want, want[:, :0], TABLE, None, style == 1, DIM)
    dropins.rope_cached_thd_positions_2c_fwd_inplace(
        wide, key, *tables, POSITIONS, style, True, True
    )
    assert_same_bytes(wide, want)


LATENT = random_bf16(TOKENS, 512)
NOPE = random_bf16(TOKENS, HEADS, 512, seed=1)
SLOTS, SCALE = torch.tensor([5, -1, 0, 17]), torch.tensor(0.05)


def cache(dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(2, 16, 576).to(dtype)


@pytest.mark.parametrize("word", ["auto", "fp8"])
def test_concat_and_cache_mla(word: str) -> None:
    dtype = BF16 if word == "auto" else FP8
    expected, rows = cache(dtype), torch.cat((LATENT, random_bf16(2, 512)))  # padded for a graph
    mla_cache_write(LATENT, K[:, 0], expected, SLOTS, SCALE)
    for actual in (cache(dtype), cache(dtype).view(2, 16, 1, 576)):
        given = actual.view(torch.uint8) if word == "fp8" else actual
        dropins.concat_and_cache_mla(
            rows,
            K.new_zeros(6, 1, 64).index_copy_(0, torch.arange(4), K),
            given,
            SLOTS,
            word,
            SCALE,
        )
        assert_same_bytes(actual, expected)
    mla_cache_write(LATENT, K[:, 0], expected, SLOTS, torch.ones(1))
    dropins.concat_and_cache_mla(LATENT, K[:, 0], given, SLOTS, word, SCALE, True)
    assert_same_bytes(actual, expected)
    q, k = turned(True)
    expected, actual, q_pe, k_pe = cache(dtype), cache(dtype), Q.clone(), K[:, 0].clone()
    mla_cache_write(LATENT, k[:, 0], expected, SLOTS, SCALE)
    given = actual.view(torch.uint8) if word == "fp8" else actual
    dropins.concat_and_cache_mla_rope_fused(
        POSITIONS, q_pe, k_pe, LATENT, TABLE, False, SLOTS, given, word, SCALE
    )
    assert_same_bytes(actual, expected)
    assert_same_bytes(q_pe, q)
    assert_same_bytes(k_pe, k)


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_fused_with_q(dtype: torch.dtype) -> None:
    """aiter's HIP function as vLLM calls it, q padded to more heads, and its Triton one as SGLang
    does, a cache of single slots."""
    expected, cos, sin = cache(dtype), *(half.reshape(50, 1, 1, -1) for half in TABLE.chunk(2, -1))
    q_scale = torch.tensor([0.5])
    args = POSITIONS, NOPE, Q, K[:, 0], LATENT, expected, SLOTS, TABLE, None, SCALE
    q = mla_rope_concat_cache_write(*args, q_scale, None, False, dtype)
    actual, padded = cache(dtype), torch.zeros(TOKENS, 8, 576).to(dtype)
    dropins.fused_qk_rope_concat_and_cache_mla(
        NOPE,
        Q,
        LATENT,
        K[:, 0],
        actual,
        padded[:, :HEADS],
        SLOTS,
        SCALE,
        q_scale,
        POSITIONS,
        cos,
        sin,
        True,
        True,
    )
    assert_same_bytes(actual, expected)
    assert_same_bytes(padded[:, :HEADS], q)
    assert (padded[:, HEADS:].float() == 0).all()

    actual = cache(dtype).view(32, 1, 576)
    made = dropins.fused_qk_rope_cat_and_cache_mla(
        NOPE,
        Q,
        LATENT[:, None],
        K,
        actual,
        SLOTS,
        POSITIONS,
        cos,
        sin,
        SCALE,
        True,
        q_out_dtype=dtype,
    )
    q = mla_rope_concat_cache_write(*args, torch.ones(1), None, False, dtype)
    assert_same_bytes(actual.view_as(expected), expected)
    assert_same_bytes(made[0], q)
    assert_same_bytes(made[2], turned()[1])
    assert made[1].shape == (0, HEADS, 64) and made[3].shape == (0, HEADS, 512)


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_aiters_absorbed_product(dtype: torch.dtype) -> None:
    """One scale of w_k for all heads; views as SGLang passes them, and no scale of a bf16 cache."""
    q_nope, w = random_bf16(TOKENS, HEADS, 128), random_bf16(HEADS, 128, 512, seed=3).to(FP8)
    w_scale, cos_sin = torch.tensor([0.03]), [half.reshape(50, 1, 1, -1) for half in TABLES]
    w_k = w.mT.contiguous()
    actual, expected = cache(dtype).view(32, 1, 576), cache(dtype)
    made = dropins.fused_fp8_bmm_rope_cat_and_cache_mla(
        q_nope.transpose(0, 1),
        w_k,
        w_scale,
        Q,
        LATENT[:, None],
        K,
        actual,
        SLOTS,
        POSITIONS,
        *cos_sin,
        k_scale=SCALE if dtype == FP8 else None,
        is_neox=True,
        q_out_dtype=dtype,
    )
    is_fp8 = dtype == FP8
    q = mla_absorb_cache_write(
        POSITIONS,
        q_nope,
        Q,
        K[:, 0],
        LATENT,
        w_k,
        expected,
        SLOTS,
        TABLE,
        None,
        SCALE if is_fp8 else None,
        torch.full((HEADS, 4, 1), 0.03),
        q_scale=torch.ones(1) if is_fp8 else None,
        dtype=dtype,
    )
    assert_same_bytes(actual.view_as(expected), expected)
    assert_same_bytes(made[0], q)
    assert_same_bytes(made[2], turned()[1])
    assert made[1].shape == (0, HEADS, 64) and made[3].shape == (0, HEADS, 512)


@pytest.mark.parametrize("word", ["auto", "fp8_e4m3"])
def test_reshape_and_cache_flash(word: str) -> None:
    dtype, scales = (BF16 if word == "auto" else FP8), (SCALE, torch.tensor(0.1))
    key, value = random_bf16(TOKENS, 2, 64), random_bf16(TOKENS, 2, 64, seed=1)
    actual, expected = (torch.zeros(2, 2, 16, 2, 64).to(dtype) for _ in range(2))
    kv_cache_write(key, value, *expected, SLOTS, *scales)
    given = actual.view(torch.uint8) if word != "auto" else actual
    dropins.reshape_and_cache_flash(key, value, *given, SLOTS, word, *scales)
    assert_same_bytes(actual, expected)


TABLES = TABLE.chunk(2, -1)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "rotary_embedding",
            (POSITIONS, Q.expand(2, *Q.shape).transpose(0, 1), None, DIM, TABLE, True),
            "query must be of 4 tokens and heads of 64, whose rows have one stride",
        ),
        (
            "apply_rope_with_cos_sin_cache_inplace",
            (POSITIONS, Q, K, DIM, TABLE, True, object()),
            "fused_set_kv_buffer_arg must be None",
        ),
        (
            "rope_cached_thd_positions_2c_fwd_inplace",
            (Q, K, *TABLES, POSITIONS, 0, False, False),
            "reuse_freqs_front_part must be True, got False",
        ),
        (
            "rope_cached_thd_positions_2c_fwd_inplace",
            (Q, K, *TABLES, POSITIONS, 2, True, False),
            "rotate_style must be 0 or 1, got 2",
        ),
        (
            "rope_cached_positions_2c_fwd_inplace",
            (Q[None], K[None], *TABLES, POSITIONS[None, :2], 0, True, False),
            r"input_x must be of \[1, 2\] positions",
        ),
        (
            "rope_cached_2c_fwd_inplace",
            (Q[:, None], K[:, None], *(table[:3] for table in TABLES), 0, True, False),
            "cos must be of 4 rows or more",
        ),
        (
            "concat_and_cache_mla",
            (LATENT, K, cache(), SLOTS, "fp8_ds_mla", SCALE),
            "kv_cache_dtype must be one of auto",
        ),
        (
            "fused_qk_rope_concat_and_cache_mla",
            (
                NOPE,
                Q,
                LATENT,
                K,
                cache(),
                NOPE,
                SLOTS,
                SCALE,
                SCALE,
                POSITIONS,
                *TABLES,
                True,
                False,
            ),
            "is_nope_first must be True, got False",
        ),
        (
            "fused_qk_rope_cat_and_cache_mla",
            (NOPE, Q, LATENT, K, cache(), SLOTS, POSITIONS, *TABLES, SCALE, True, 4),
            "num_decode_toks_for_zeros must be 0, got 4",
        ),
        (
            "fused_fp8_bmm_rope_cat_and_cache_mla",
            (NOPE, NOPE, SCALE, Q, LATENT, K, cache(), SLOTS, POSITIONS, *TABLES, 128, False),
            "transpose_bm must be True, got False",
        ),
    ],
)
def test_refusals(name: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        getattr(dropins, name)(*args)
