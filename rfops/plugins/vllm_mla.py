"""RFOPS_MLA, vLLM's attention backend for MLA by rfops.mla_decode: vLLM's Triton backend, whose
decoding goes to the op where its HIP kernel takes the call."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend, TritonMLAImpl

from rfops.attention.mla_decode import mla_decode

from .binding import Arguments, Key
from .callees import mla_sizes
from .wrapper import Callee, RouteCall


def _facts(arguments: Arguments) -> Key:
    impl, metadata = arguments["self"], arguments["attn_metadata"]
    lens = metadata.decode.seq_lens.shape
    return lens, metadata.decode.block_table.dtype, metadata.causal, impl.dcp_world_size


def _route(self: Any, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any) -> RouteCall:
    cache, rows = kv_c_and_k_pe_cache, q[0] if isinstance(q, tuple) else q
    length, remainder = divmod(rows.shape[0], attn_metadata.decode.seq_lens.shape[0])
    # Of several ranks the lengths are one's own, and the tokens of a query not its last.
    if remainder or (length > 1 and self.dcp_world_size > 1):
        raise ValueError(
            "query lengths must be equal for all sequences, and 1 with decode context parallelism"
        )
    return mla_sizes(rows, rows.shape[0], cache, cache.shape[1], length)


def _decode(
    self: Any, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, heads, 512] and lse [tokens, heads], natural logarithms."""
    q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
    cache, decode = kv_c_and_k_pe_cache, attn_metadata.decode
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    out = mla_decode(
        q,
        cache.unsqueeze(2),
        None,
        decode.block_table,
        self.scale,
        qo_len=q.shape[0] // decode.seq_lens.shape[0],
        causal=attn_metadata.causal,
        kv_lens=decode.seq_lens,
        lse=lse,
        kv_scale=layer._k_scale if cache.element_size() == 1 else None,
    )
    return out, lse


MLA = Callee(
    "vllm: RFOPS_MLA", "q kv_c_and_k_pe_cache", _route, lambda: _decode, extra_facts=_facts
)


class RfopsMLAImpl(TritonMLAImpl):  # type: ignore[misc]
    """vLLM's Triton MLA whose decode attention is `rfops.mla_decode` where that takes the call."""

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return vLLM's decode attention and its LSE, by rfops where it takes the call."""
        result: tuple[torch.Tensor, torch.Tensor | None] = MLA.call(
            TritonMLAImpl.forward_mqa, self, q, kv_c_and_k_pe_cache, attn_metadata, layer
        )
        return result


class RfopsMLABackend(TritonMLABackend):  # type: ignore[misc]
    """The attention backend RFOPS_MLA of vLLM."""

    @staticmethod
    def get_name() -> str:
        """The name that vLLM's --attention-backend takes."""
        return "RFOPS_MLA"

    @staticmethod
    def get_impl_cls() -> type[RfopsMLAImpl]:
        """The class of the attention layers."""
        return RfopsMLAImpl
