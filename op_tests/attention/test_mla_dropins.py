"""Callers as they are: each passes what vLLM or a user of FlashMLA passes, in their order."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import pytest
import torch

from rfops import compat
from rfops.attention import mla_dropins
from rfops.jit import log
from support.mla_problems import BF16, Problem, assert_correct, problem

pytestmark = pytest.mark.requires_gfx950


def result(p: Problem) -> torch.Tensor:
    return torch.full((*p.q.shape[:2], 512), math.nan, dtype=BF16)


def aiter_args(p: Problem, o: torch.Tensor) -> list[Any]:
    """vLLM's rocm_aiter_mla: the cache as rows, int32 lists, one row of q a sequence."""
    batch = len(p.lens)
    qo_indptr = torch.arange(batch + 1, dtype=torch.int32) * p.qo_len
    page = p.kv.shape[1]
    last = torch.tensor([(n - 1) % page + 1 for n in p.lens], dtype=torch.int32)
    kv = p.kv.view(-1, 1, 1, 576) if page == 1 else p.kv
    return [p.q, kv, o, qo_indptr, p.kv_indptr, p.kv_indices, last, p.qo_len]


@pytest.mark.thin(7)
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("qo_len", [1, 2])
def test_aiter(page: int, fp8: bool, qo_len: int) -> None:
    p = problem([33, 0, 16, 100], 8, page=page, fp8=fp8, q_fp8=fp8, qo_len=qo_len)
    o = result(p)
    got = compat.mla_decode_fwd(
        *aiter_args(p, o),
        page_size=page,
        sm_scale=p.sm_scale,
        q_scale=p.q_scale,
        kv_scale=p.kv_scale,
        return_lse=True,
        g_kv_indptr=None,
    )
    assert got[0] is None and got[1] is not None
    assert_correct((o, got[1]), p)
    o = result(p)
    again = compat.mla_decode_fwd(
        *aiter_args(p, o), sm_scale=p.sm_scale, q_scale=p.q_scale, kv_scale=p.kv_scale
    )
    assert again == (None, None)
    assert_correct((o, got[1]), p)


def test_aiters_metadata_is_ignored_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem([70, 5], 16)
    monkeypatch.setattr(log.get(), "propagate", True)
    mla_dropins._say_ignored.cache_clear()
    info = compat.get_mla_metadata_info_v1(2, 1, 16, BF16, BF16, is_sparse=False, fast_mode=True)
    buffers = [torch.empty(shape, dtype=dtype) for shape, dtype in info]
    assert len(buffers) == 6
    o = result(p)
    args = aiter_args(p, o)
    names = (
        "work_meta_data",
        "work_indptr",
        "work_info_set",
        "reduce_indptr",
        "reduce_final_map",
        "reduce_partial_map",
    )
    with caplog.at_level(logging.INFO, "rfops"):
        assert compat.get_mla_metadata_v1(*args[3:5], args[6], 16, 1, True, *buffers) is None
        for _ in range(2):
            compat.mla_decode_fwd(
                *args,
                sm_scale=p.sm_scale,
                num_kv_splits=8,
                **dict(zip(names, buffers, strict=True)),
            )
    said = [r.getMessage() for r in caplog.records if "metadata" in r.getMessage()]
    assert len(said) == 2 and said[1].startswith("mla_decode_fwd: metadata and splits are ignored")
    lse = compat.mla_decode_fwd(*args, sm_scale=p.sm_scale, return_lse=True)[1]
    assert lse is not None
    assert_correct((o, lse), p)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logit_cap": 30.0}, "logit_cap must be 0 or less, got 30.0; call the original"),
        ({"return_logits": True}, "return_logits must be False"),
        ({"nhead_kv": 2}, "nhead_kv must be 1, got 2"),
        ({"cp_world_size": 2}, "cp_world_size must be 1 or None, got 2"),
        ({"cp_rank": 1}, "cp_rank must be 0 or None, got 1"),
        ({"g_kv_indptr": torch.zeros(1)}, "g_kv_indptr must be None"),
    ],
)
def test_what_of_aiters_is_not_taken(change: dict[str, Any], message: str) -> None:
    p = problem([5], 16)
    with pytest.raises(ValueError, match=f"^mla_decode_fwd: {message}"):
        compat.mla_decode_fwd(*aiter_args(p, result(p)), **change)


@pytest.mark.thin(2)
@pytest.mark.parametrize("page", [1, 16])
def test_aiters_ragged_queries(page: int) -> None:
    """Of padded q, whose other rows keep what they hold; qo_indptr says which rows are whose."""
    p = problem([33, 5, 16, 100], 8, qo_lens=[1, 2, 0, 4], page=page)
    o = result(p)
    args = aiter_args(p, o)
    args[3] = p.qo_indptr
    _, lse = compat.mla_decode_fwd(*args, page_size=page, sm_scale=p.sm_scale, return_lse=True)
    assert lse is not None
    assert_correct((o, torch.where(p.is_row[:, None], lse, math.nan)), p)


def test_aiters_neutral_values() -> None:
    """As callers pass them: int64, buffers longer than the batch, one rank, SGLang's mode."""
    p = problem([33, 0, 16, 100], 8, page=16)
    o = result(p)
    args = aiter_args(p, o)
    last = args[4][-1:]
    args[3:7] = [
        args[3].long(),
        torch.cat([args[4], last, last]).long(),
        args[5].long(),
        torch.cat([args[6], last]).long(),
    ]
    _, lse = compat.mla_decode_fwd(
        *args,
        page_size=16,
        sm_scale=p.sm_scale,
        return_lse=True,
        intra_batch_mode=True,
        logit_cap=-1.0,
        cp_world_size=1,
        cp_rank=0,
        g_kv_indptr=None,
        return_logits=False,
    )
    assert lse is not None
    assert_correct((o, lse), p)
    for at, message in (
        (4, r"kv_indptr must be \[5\] or longer, got \[4\]"),
        (6, r"kv_last_page_lens must be \[4\] or longer, got \[1\]"),
    ):
        short = [*args]
        short[at] = args[at][: 4 if at == 4 else 1]
        with pytest.raises(ValueError, match=message):
            compat.mla_decode_fwd(*short, page_size=16)


def test_sparse_metadata_is_refused() -> None:
    """Its kernel would read all tokens."""
    assert compat.get_mla_metadata_v1(topk=-1) is None
    with pytest.raises(ValueError, match="get_mla_metadata_v1: topk must be -1 or None, got 2048"):
        compat.get_mla_metadata_v1(topk=2048)
    with pytest.raises(ValueError, match="is_sparse must be False or None, got True"):
        compat.get_mla_metadata_info_v1(1, 1, 16, BF16, BF16, is_sparse=True)


def test_vllms_lse_and_tables() -> None:
    """lse in q's dtype, int64 indices; a scale of a bf16 cache does not count, as in Triton's."""
    p = problem([33, 0, 64], 16, page=16, table=True)
    o, lse = result(p), torch.full(p.q.shape[:2], math.nan, dtype=BF16)
    assert p.kv_lens is not None
    args = [p.q, p.kv, p.kv[..., :512], o, lse, p.kv_indices.long(), p.kv_lens.long(), None, 4]
    compat.decode_attention_fwd(*args, p.sm_scale, 16, k_scale=torch.tensor([3.0]), is_mla=True)
    own = torch.full(p.q.shape[:2], math.nan)
    args[4] = own
    compat.decode_attention_fwd(*args, p.sm_scale, 16, is_mla=True)
    assert_correct((o, own), p)
    assert torch.equal(lse, own.to(BF16))
    args[5] = torch.cat([p.kv_indices, p.kv_indices])
    with pytest.raises(ValueError, match="kv_indices must be of batch = 3 rows, got 6"):
        compat.decode_attention_fwd(*args, p.sm_scale, 16, is_mla=True)


@pytest.mark.parametrize("fp8", [False, True])
def test_vllm(fp8: bool) -> None:
    """As its TritonMLA: the cache with a head put in, values a view of it, split logits."""
    p = problem([33, 0, 64], 16, page=16, table=True, fp8=fp8)
    cache = p.kv.squeeze(2).unsqueeze(2)
    o, lse = result(p), torch.full(p.q.shape[:2], math.nan)
    logits = torch.empty(3, 16, 4, 513)
    given = compat.decode_attention_fwd(
        p.q, cache, cache[..., :512], o, lse, p.kv_indices, p.kv_lens, logits, 4, p.sm_scale, 16,
        k_scale=p.kv_scale, v_scale=p.kv_scale, is_mla=True,
    )  # fmt: skip
    assert given is None
    assert_correct((o, lse), p)
    with pytest.raises(ValueError, match="k_buffer must be of one head of 576"):
        compat.decode_attention_fwd(
            p.q, cache[..., :512], cache, o, lse, p.kv_indices, p.kv_lens, None, 4, 1.0, 16
        )
    with pytest.raises(ValueError, match="logit_cap must be 0 or less, got 5"):
        compat.decode_attention_fwd(
            p.q, cache, cache, o, lse, p.kv_indices, p.kv_lens, None, 4, 1.0, 16, 5.0
        )


@pytest.mark.parametrize("causal", [False, True])
def test_flash_mla(causal: bool) -> None:
    p = problem([65, 2, 128], 16, qo_len=2, page=64, table=True, causal=causal)
    metadata = compat.get_mla_metadata(p.kv_lens, 2 * 16, 1)
    q = p.q.view(3, 2, 16, 576)
    out, lse = compat.flash_mla_with_kvcache(
        q, p.kv, p.kv_indices, p.kv_lens, 512, *metadata, softmax_scale=p.sm_scale, causal=causal
    )
    assert out.shape == (3, 2, 16, 512) and lse.shape == (3, 16, 2)
    assert_correct((out.flatten(0, 1), lse.mT.flatten(0, 1)), p)
    with pytest.raises(ValueError, match="head_dim_v must be 512, got 576"):
        compat.flash_mla_with_kvcache(q, p.kv, p.kv_indices, p.kv_lens, 576)
    with pytest.raises(ValueError, match="indices must be None, got"):
        compat.flash_mla_with_kvcache(
            q, p.kv, p.kv_indices, p.kv_lens, 512, is_fp8_kvcache=False, indices=p.kv_indices
        )
    with pytest.raises(ValueError, match="kv_indices must be of batch = 3 rows, got 1"):
        compat.flash_mla_with_kvcache(q, p.kv, p.kv_indices[:1], p.kv_lens, 512)
    with pytest.raises(ValueError, match=r"q must be \[batch, seq, heads, 576\]"):
        compat.flash_mla_with_kvcache(p.q, p.kv, p.kv_indices, p.kv_lens, 512)


def test_signatures() -> None:
    """In the order of aiter e404860, vLLM 0.33.0 and FlashMLA 9241ae3."""
    wanted = {
        "mla_decode_fwd": "q kv_buffer o qo_indptr kv_indptr kv_indices kv_last_page_lens "
        "max_seqlen_q page_size nhead_kv sm_scale logit_cap num_kv_splits num_kv_splits_indptr "
        "work_meta_data work_indptr work_info_set reduce_indptr reduce_final_map "
        "reduce_partial_map q_scale kv_scale intra_batch_mode return_logits return_lse causal "
        "extra_arguments",
        "decode_attention_fwd": "q k_buffer v_buffer o lse req_to_token b_seq_len attn_logits "
        "num_kv_splits sm_scale page_size logit_cap k_scale v_scale is_mla",
        "flash_mla_with_kvcache": "q k_cache block_table cache_seqlens head_dim_v "
        "tile_scheduler_metadata num_splits softmax_scale causal extra_arguments",
    }
    for name, parameters in wanted.items():
        found = inspect.signature(getattr(compat, name)).parameters
        assert list(found) == parameters.split() and name in compat.__all__
