"""flashinfer's BatchMLAPagedAttentionWrapper, its plan and run, by mla_decode.

There is nothing to plan: `plan` keeps what it is told, and looks at lengths once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard
from rfops.jit.errors import show

from .mla_decode import mla_decode
from .mla_terms import D_QK, D_V

_NAME = "BatchMLAPagedAttentionWrapper"
_ROPE = D_QK - D_V


def _refuse(argument: str, expected: str, value: Any, fix: str = "call the original") -> None:
    Guard(_NAME).fail(argument, expected, show(value), fix)


class BatchMLAPagedAttentionWrapper:
    """Attention with a latent cache of pages; the workspace and `backend` are not looked at.

    With use_cuda_graph the lists that `plan` is given are copied into the buffers given here, whose
    addresses a captured `run` has.
    """

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor | None = None,
        kv_indptr: Tensor | None = None,
        kv_indices: Tensor | None = None,
        kv_len_arr: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        self.device = float_workspace_buffer.device
        self._kept_tables = (kv_indptr, kv_indices, kv_len_arr) if use_cuda_graph else None
        if self._kept_tables and any(buffer is None for buffer in self._kept_tables):
            _refuse(
                "kv_indptr, kv_indices and kv_len_arr",
                "given with use_cuda_graph",
                None,
                "pass buffers for all of them",
            )
        self._kept_queries = qo_indptr if use_cuda_graph else None
        self._lists: tuple[Tensor, Tensor, Tensor] | None = None

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        """Reads qo_indptr back, to know whether all sequences have as many rows of q. Raises
        ValueError for other head dimensions, the profiler, and with use_cuda_graph for rows that
        differ where no buffer for qo_indptr was given."""
        dims = (head_dim_ckv, head_dim_kpe)
        if dims != (D_V, _ROPE):
            _refuse("head_dim_ckv, head_dim_kpe", f"{D_V}, {_ROPE}", dims)
        if use_profiler:
            _refuse("use_profiler", "False", use_profiler)
        counts = sorted(set(qo_indptr.diff().tolist()))
        self._queries = None
        self._qo_len = counts[-1] if counts else 1
        if len(counts) > 1 or counts == [0] or (counts and int(qo_indptr[0]) != 0):
            self._queries = self._plan_queries(qo_indptr, counts)
        tables = (kv_indptr, kv_indices, kv_len_arr)
        if self._kept_tables:
            for kept_table, table in zip(self._kept_tables, tables, strict=True):
                assert kept_table is not None
                kept_table[: len(table)].copy_(table)
            batch = len(kv_len_arr)
            kept_bounds, kept_indices, kept_lens = self._kept_tables
            assert kept_bounds is not None and kept_indices is not None and kept_lens is not None
            self._lists = kept_bounds[: batch + 1], kept_indices, kept_lens[:batch]
        else:
            bounds, indices, lens = (table.to(self.device) for table in tables)
            self._lists = bounds, indices, lens
        self._heads, self._page, self._causal = num_heads, page_size, causal
        self._scale, self._dtypes = sm_scale, (q_data_type, kv_data_type)

    def _plan_queries(self, qo_indptr: Tensor, counts: list[int]) -> Tensor:
        """Where the rows of each sequence begin, of numbers that differ."""
        if self._kept_tables is None:
            return qo_indptr.to(self.device)
        if self._kept_queries is None:
            _refuse(
                "qo_indptr",
                "given to the constructor with use_cuda_graph",
                counts,
                "pass a buffer for it, or as many rows for each sequence",
            )
            raise AssertionError
        indptr = self._kept_queries[: len(qo_indptr)]
        return indptr.copy_(qo_indptr)

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv_cache: Tensor,
        kpe_cache: Tensor,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        profiler_buffer: Tensor | None = None,
        kv_len: Tensor | None = None,
        page_table: Tensor | None = None,
        return_lse_base_on_e: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """out [rows, heads, 512], with lse [rows, heads] where return_lse: of base 2, or of e.

        q_nope [rows, heads, 512], q_pe [rows, heads, 64]; ckv_cache [pages, page_size, 512] and
        kpe_cache [pages, page_size, 64] are views of one cache [pages, page_size, 576]: two caches
        would have to be copied, and are refused."""
        if self._lists is None:
            _refuse("plan", "called before run", None, "call it")
            raise AssertionError
        for argument, value in {
            "profiler_buffer": profiler_buffer,
            "kv_len": kv_len,
            "page_table": page_table,
        }.items():
            if value is not None:
                _refuse(argument, "None", value)
        for argument, tensor, dtype in (
            ("q_nope", q_nope, self._dtypes[0]),
            ("ckv_cache", ckv_cache, self._dtypes[1]),
        ):
            if tensor.dtype != dtype:
                _refuse(argument, f"{dtype}, as planned", tensor.dtype, "plan for it")
        q = _join_views(q_nope, q_pe)
        q = torch.cat([q_nope, q_pe], -1) if q is None or not q.is_contiguous() else q
        if q.shape[1] != self._heads:
            _refuse("q_nope", f"of {self._heads} heads, as planned", q.shape[1], "plan for it")
        kv = _join_views(ckv_cache, kpe_cache)
        if kv is None or kv.shape[1] != self._page:
            _refuse(
                "ckv_cache, kpe_cache",
                f"[..., :512] and [..., 512:] of one cache [pages, page_size={self._page}, 576]",
                [list(ckv_cache.shape), list(kpe_cache.shape)],
                "allocate one, and pass views of it",
            )
            raise AssertionError
        lse_out = (
            torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
        )
        bounds, indices, lens = self._lists
        is_uniform = self._queries is None
        out = mla_decode(
            q,
            kv.unsqueeze(2),
            bounds,
            indices,
            self._scale,
            qo_len=self._qo_len if is_uniform else 1,
            qo_indptr=self._queries,
            max_qo_len=None if is_uniform else self._qo_len,
            causal=self._causal,
            kv_lens=lens,
            out=out,
            lse=lse_out,
        )
        if lse_out is None:
            return out
        base = lse_out if return_lse_base_on_e else lse_out.mul_(1 / math.log(2))
        return out, base if lse is None else lse.copy_(base)


def _join_views(latent: Tensor, rope: Tensor) -> Tensor | None:
    """Return the tensor [..., 576] of which `latent` [..., 512] and `rope` [..., 64] are adjacent
    views; None if they are not."""
    size = latent.element_size()
    is_one = (
        latent.dtype == rope.dtype
        and latent.shape == (*rope.shape[:-1], D_V)
        and rope.shape[-1] == _ROPE
        and latent.stride() == rope.stride()
        and latent.stride(-1) == 1
        and latent.stride(-2) >= D_QK
        and rope.data_ptr() - latent.data_ptr() == D_V * size
        and latent.untyped_storage().data_ptr() == rope.untyped_storage().data_ptr()
    )
    if not is_one:
        return None
    return latent.as_strided((*latent.shape[:-1], D_QK), latent.stride(), latent.storage_offset())
