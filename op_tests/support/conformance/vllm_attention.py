"""vLLM's call sites of attention: MLA by aiter and by Triton, its own backend, sparse MLA."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import reference
from .cases import (
    BF16,
    F32,
    I32,
    METADATA,
    SCALE,
    keys_of,
    nan,
    paged,
    starts,
    words,
)
from .engine_code import World
from .vllm_common import MLA, vllm


def aiter_mla(world: World, p: Any, **changes: Any) -> tuple[Any, list[Any]]:
    """AiterMLAImpl and forward_mqa's arguments, as the builder of its metadata leaves them."""
    module = world.load(f"{MLA}.rocm_aiter_mla")
    heads, rows = p.q.shape[1], len(p.lens)
    impl = object.__new__(module.AiterMLAImpl)
    ranks = changes.get("dcp_world_size", 1)
    impl.__dict__ |= {
        "scale": SCALE,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "num_heads": heads // ranks,
        "dcp_world_size": ranks,
        "kv_cache_dtype": "auto",
        "_sm_count": 304,
    }
    decode = words(
        qo_indptr=starts(rows, p.qo_len),
        max_qo_len=p.qo_len,
        paged_kv_indptr=p.kv_indptr,
        paged_kv_indices=p.kv_indices,
        paged_kv_last_page_len=torch.ones(rows, dtype=I32),
        attn_out_dtype=BF16,
        use_gluon_decode=False,
        use_gluon_verify=False,
        dcp_route=None,
        dcp_verify=None,
        asm_decode_num_heads=0,
        has_persistent_metadata=True,
        varlen_q_rows=None,
    )
    metadata = words(decode=decode, causal=p.causal, **METADATA)
    for name, value in changes.items():
        owner = impl if hasattr(impl, name) else decode if hasattr(decode, name) else metadata
        setattr(owner, name, value)
    layer = words(_q_scale=torch.ones(()), _k_scale=torch.ones(()))
    return impl, [p.q, p.kv.squeeze(2), metadata, layer]


def run_aiter_mla(world: World, p: Any, **changes: Any) -> None:
    impl, args = aiter_mla(world, p, **changes)
    out, lse = impl.forward_mqa(*args)
    if impl.dcp_world_size > 1:
        world.covers("_get_aiter_mla_decode", "mla_decode_fwd")
    expected = reference.attention(p.q, keys_of(p), SCALE)
    assert out.dtype == BF16
    reference.assert_attention(out, expected, lse)


@vllm(each=(16, 128))
def mla_bf16(world: World, heads: int) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33, 1], heads))


@vllm()
def mla_heads_of_a_rank(world: World) -> None:
    """Eight heads, which vLLM repeats to the 16 that aiter wants."""
    run_aiter_mla(world, paged(world.arch, [5, 33], 8))


@vllm()
def mla_without_metadata(world: World) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33]), work_meta_data=None)


@vllm()
def mla_of_a_padded_batch(world: World) -> None:
    """A graph of four requests, of which two have no query and no token."""
    p = paged(world.arch, [5, 33])
    impl, args = aiter_mla(world, p)
    decode = args[2].decode
    decode.qo_indptr = torch.tensor([0, 1, 2, 2, 2], dtype=I32)
    decode.paged_kv_indptr = torch.cat([p.kv_indptr, p.kv_indptr[-1:], p.kv_indptr[-1:]])
    decode.paged_kv_last_page_len = torch.ones(4, dtype=I32)
    q = torch.cat([p.q, nan(2, *p.q.shape[1:])])
    out, _ = impl.forward_mqa(q, *args[1:])
    reference.assert_attention(out[:2], reference.attention(p.q, keys_of(p), SCALE))


@vllm(each=(True, False))
def mla_several_tokens(world: World, causal: bool) -> None:
    """Tokens of a draft, checked in one call."""
    run_aiter_mla(world, paged(world.arch, [5, 33, 2], qo_len=2, causal=causal))


@vllm(each=(True, False))
def mla_fp8(world: World, q_fp8: bool) -> None:
    run_aiter_mla(world, paged(world.arch, [5, 33], fp8=True, q_fp8=q_fp8), kv_cache_dtype="fp8")


@vllm()
def mla_ranks_of_a_context(world: World) -> None:
    """Context parallelism: each rank its shard of tokens, merged by lse, causal over one query."""
    run_aiter_mla(world, paged(world.arch, [5, 33, 1], 32), dcp_world_size=2)


@vllm(refused="cp_world_size|g_kv_indptr|cp_rank")
def mla_causal_over_ranks(world: World) -> None:
    p = paged(world.arch, [5, 33], 32, qo_len=2)
    route = world.load(f"{MLA}.rocm_aiter_mla")._DCPDecodeRoute.CPRR
    impl, args = aiter_mla(world, p, dcp_world_size=2, dcp_route=route)
    decode = args[2].decode
    decode.g_kv_indptr, decode.cp_world_size, decode.cp_rank = p.kv_indptr, 2, 0
    decode.mla_num_kv_splits = 1
    impl.forward_mqa(*args)


@vllm(each=("some", "none"))
def mla_verify_by_rows(world: World, empty: str) -> None:
    """Each row of a draft as a sequence of its own; a shard can be empty."""
    lens = [20, 0, 48] if empty == "some" else [20, 47, 48]
    p = paged_by_16(world, lens=lens)
    module = world.load(f"{MLA}.rocm_aiter_mla", decode_attention_fwd=decode_attention_fwd())
    module._triton_dcp_verify_num_kv_splits = lambda *_: 4
    verify = words(row_lens=p.kv_lens, block_table=p.kv_indices, page_size=16, max_kv_seq_len=48)
    impl, args = aiter_mla(world, p)
    _, cache, _, layer = args
    out, lse = impl._forward_triton_dcp_verify(p.q, verify, cache, layer, BF16)
    assert lse.dtype == F32
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


def decode_attention_fwd() -> Any:
    import vllm.v1.attention.ops.triton_decode_attention as module

    return module.decode_attention_fwd


def paged_by_16(
    world: World, qo_len: int = 1, causal: bool = True, lens: Sequence[int] = (20, 48, 3)
) -> Any:
    """Pages of 16 tokens in a block table, whose rows end with page 0, as vLLM's do."""
    p = paged(world.arch, lens, page=16, table=True, qo_len=qo_len, causal=causal)
    p.kv_indices = torch.where(p.kv_indices >= p.kv.shape[0], 0, p.kv_indices)
    return p


def triton_mla(world: World, cls: Any, p: Any) -> tuple[Any, list[Any]]:
    impl = object.__new__(cls)
    impl.__dict__ |= {"scale": SCALE, "kv_lora_rank": 512, "dcp_world_size": 1, "_sm_count": 304}
    decode = words(block_table=p.kv_indices, seq_lens=p.kv_lens)
    metadata = words(decode=decode, causal=p.causal, max_seq_len=48)
    return impl, [p.q, p.kv.squeeze(2), metadata, words(_k_scale=torch.ones(()))]


@vllm(each=((1, True), (2, True), (2, False)))
def triton_mla_backend(world: World, form: tuple[int, bool]) -> None:
    """TRITON_MLA, whose lse has q's dtype."""
    p = paged_by_16(world, *form)
    module = world.load(f"{MLA}.triton_mla", decode_attention_fwd=decode_attention_fwd())
    module._compute_num_kv_splits = lambda *_: 4
    impl, args = triton_mla(world, module.TritonMLAImpl, p)
    out, lse = impl.forward_mqa((p.q[..., :512], p.q[..., 512:]), *args[1:])
    assert lse.dtype == BF16
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


@vllm(
    each=(
        "MLAAttention.forward_impl",
        "MultiHeadLatentAttention._attention",
        "KimiK3MultiHeadLatentAttentionWrapper._fused_decode",
    )
)
def own_backend(world: World, function: str) -> None:
    """--attention-backend RFOPS_MLA at the calls of impl.forward_mqa that reach it."""
    p = paged_by_16(world)
    world.load(f"{MLA}.triton_mla", decode_attention_fwd=decode_attention_fwd())
    from rfops.plugins import vllm_mla

    vllm_mla.MLA.call = world.watch(  # type: ignore[method-assign]
        vllm_mla.MLA, functools.partial(type(vllm_mla.MLA).call, vllm_mla.MLA)
    )
    impl, args = triton_mla(world, vllm_mla.RfopsMLAImpl, p)
    out, lse = world.call(world.site(function, "RFOPS_MLA"), impl.forward_mqa, *args)
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE), lse)


# ---------------------------------------------------------------- sparse attention


def sparse_mla(world: World, p: Any, sinks: Tensor | None) -> tuple[Tensor, Any]:
    module = world.load(f"{MLA}.rocm_aiter_mla_sparse")
    module.AiterMLAHelper = world.load(f"{MLA}.rocm_aiter_mla").AiterMLAHelper
    module._use_rocm_sparse_triton = lambda **_: False
    module._is_long_bf16_prefill = lambda *_: False
    rows, heads = len(p.lens), p.q.shape[1]
    impl = object.__new__(module.ROCMAiterMLASparseImpl)
    impl.__dict__ |= {
        "scale": SCALE,
        "kv_lora_rank": 512,
        "num_heads": heads,
        "sinks": sinks,
        "kv_cache_dtype": "auto",
    }
    metadata = words(
        qo_indptr=starts(rows),
        paged_kv_indptr=p.kv_indptr,
        paged_kv_indices=p.kv_indices,
        paged_kv_last_page_len=torch.ones(rows, dtype=I32),
        attn_out_dtype=BF16,
        num_prefills=0,
        num_decodes=rows,
        num_decode_tokens=rows,
        max_query_len=1,
        max_seq_len=64,
        topk_tokens=64,
        **METADATA,
    )
    layer = words(_q_scale=torch.ones(()), _k_scale=torch.ones(()))
    result: tuple[Tensor, Any] = impl._forward_mla(layer, p.q, p.kv.squeeze(2), metadata)
    return result


@vllm(each=("bf16", "fp8"))
def sparse(world: World, kind: str) -> None:
    """Each token over the tokens that an indexer chose for it."""
    fp8 = kind == "fp8"
    p = paged(world.arch, [5, 33, 1], fp8=fp8, q_fp8=fp8)
    out, _ = sparse_mla(world, p, None)
    expected = reference.attention(p.q, keys_of(p), SCALE)
    reference.assert_attention(out, expected)


@vllm(each=(16, 32))
def sparse_with_sinks(world: World, heads: int) -> None:
    """lse, to which the sink of each head is added afterwards."""
    p = paged(world.arch, [5, 33, 1], heads)
    sinks = torch.full((heads,), -100.0)  # of no weight
    out, _ = sparse_mla(world, p, sinks)
    reference.assert_attention(out, reference.attention(p.q, keys_of(p), SCALE))
