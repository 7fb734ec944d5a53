"""mla_decode: the attention of decoding with a latent KV cache (MLA, absorbed), paged.

A row of the cache has 576 elements, the key of all heads; its first 512 are their value. What a
sequence's queries see is `softmax(sm_scale * q . k)`, causal at the end of the sequence.

Kernels, in mla_decode_<kernel>.py and, those in HIP, csrc/attention/mla_decode_<kernel>.hip:

| kernel | inputs |
|---|---|
| shared_fp8 (in mla_decode_shared.py) | gfx950; q, kv and P in FP8; many query rows |
| shared | gfx942 and gfx950; page size a power of two; many query rows |
| flow | as shared, for up to 32 query rows (heads of a query), or few tokens |
| triton | AMD and NVIDIA GPUs |
| torch | all others; no file of its own |
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import check_int
from rfops.dispatch.heuristic import ceil, coarse
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit.errors import show

from .mla_decode_flow import COLUMNS, Flow, is_table
from .mla_decode_shared import Shared, SharedFp8
from .mla_decode_triton import TritonMla

__all__ = ["mla_decode", "mla_decode_ref"]

D_QK, D_V = 576, 512
LEAST_WEIGHT = 2.0**-110  # times a kernel's error, 2^-8 to 2^-12, more than what it loses
SCALE = 2.0**-6  # of FP8 whose largest value is 448: of kv, of q
# Flow reads tokens once for 16 columns, the shared kernel for 128, whose parts take 15 us and more
# to add up, longer where a sequence has more than its workgroups share out: up to that many tokens
# by groups of 16 columns but two flow is quicker, by bytes of an element. 64 sequences of 512
# tokens, 128 heads, bf16, estimated: MI300X 38 us (flow 66), MI355X 29 (35); 4 of 8,192 51 (31).
FEW_TOKENS = {"gfx942": {2: 70_000, 1: 190_000}, "gfx950": {2: 270_000, 1: 300_000}}
FEW_TOKENS_OF_LONG = {"gfx942": {2: 200_000, 1: 400_000}, "gfx950": {2: 500_000, 1: 500_000}}
MOST_SHARED = 40  # parts of a sequence, of csrc/attention/mla_partials.h
PAGES = "pass one row of pages per sequence"  # the fix of a refusal
NO_INDPTR = "None where kv_indices is a block table [batch, width]"
NO_LENS = "kv_lens", "given with a block table", "None", "pass the tokens of each sequence"


class Torch(Kernel):
    name = "torch"
    error = 2.0**-12  # exp and the sums of chunks, of the sum of |products|

    def variant(self, c: Call, config: Any) -> RunOf:
        run = functools.partial(run_torch, c.sm_scale, c.qo_len, c.causal)
        return lambda *_sizes: run


class _MlaDecode(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        b, t, _h, s, _pages, page, ends, width = sizes
        is_ragged = c.has("qo_indptr")
        if is_ragged and ends != b + 1:
            wanted = f"of batch + 1 = {b + 1} elements"
            return "qo_indptr", wanted, f"{ends}", "pass the first row of each sequence, and T"
        if not is_ragged and b * c.qo_len != t:
            wanted = f"of batch * qo_len = {b} * {c.qo_len} rows"
            return "q", wanted, f"{t}", "pass qo_len rows of each sequence, or qo_indptr"
        if c.tensors and c.is_table != is_table(c):
            wanted = "a tensor where kv_indices is a list of pages" if c.is_table else NO_INDPTR
            got = "None" if c.is_table else "a tensor"
            return "kv_indptr", wanted, got, "pass one of the two forms"
        if is_table(c):
            if not c.has("kv_lens"):
                return NO_LENS
            if b * width != s:
                return "kv_indices", f"of batch = {b} rows", f"{s // width}", PAGES
        elif ends != b + 1:
            wanted = f"of batch + 1 = {b + 1} elements"
            return "kv_indptr", wanted, f"{ends}", "pass where each sequence's pages begin and end"
        if page < 1:
            return "kv", "of pages of 1 token or more", f"{page}", "pass [pages, page_size, 1, 576]"
        return None

    def order(self, c: Call) -> Sequence[str]:
        """HIP's, but flow before those of many columns where there are few tokens."""
        groups, tokens = ceil(c.H * c.qo_len, COLUMNS), coarse(c.S, 1) * c.page
        bounds = FEW_TOKENS if coarse(c.B, 1) * MOST_SHARED >= c.cu_num else FEW_TOKENS_OF_LONG
        is_few = (groups - 2) * tokens < bounds.get(c.arch, {}).get(c.kv_dtype.itemsize, 0)
        return sorted(super().order(c), key=lambda name: is_few and name != "flow")

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """Of S pages in a list, one token each."""
        sizes.setdefault("T", sizes["B"] * values["qo_len"])
        sizes.setdefault("P", sizes["S"])
        sizes.setdefault("page", 1)
        sizes.setdefault("ends", sizes["B"] + 1)
        sizes.setdefault("W", sizes["S"])

    def is_empty(self, c: Call) -> bool:
        """Also without sequences: then no row of the result belongs to one."""
        return c.B == 0 or super().is_empty(c)

    def flops(self, c: Call) -> int:
        return int(2 * c.H * c.qo_len * (D_QK + D_V) * c.S * c.page)

    def roundings(self, c: Call) -> int:
        return int(2 * (D_QK + c.S))

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Sequences of equal length, pages in any order; a scale as quantisers leave it; q of about
        1, and FP8 without a scale below 2, as scores of hundreds leave weights that no P of FP8
        has."""
        bounds = torch.linspace(0, c.S, c.B + 1).to(torch.int32).to(c.device)
        pages = draw.ints((c.S,), 0, max(c.P, 1))
        if c.P >= c.S:
            pages = torch.randperm(c.P, generator=draw.generator, device=c.device)[: c.S]
        fitted: dict[str, Any] = {"kv_indptr": bounds, "kv_indices": pages.to(torch.int32)}
        for name in ("q_scale", "kv_scale"):
            if c.has(name):
                fitted[name] = torch.full((1,), SCALE, device=c.device)
        if c.has("kv_lens"):
            fitted["kv_lens"] = bounds.diff() * c.page
        if c.has("qo_indptr"):
            rows = torch.arange(c.B + 1, dtype=torch.int32, device=c.device)
            fitted["qo_indptr"] = rows * c.qo_len
        if c.kv_dtype.itemsize == 1 and not c.has("kv_scale"):
            code = draw.ints((c.P, c.page, 1, D_QK), 0, 128, torch.uint8)
            fitted["kv"] = (code & 63 | 1 | (code & 64) << 1).view(c.kv_dtype)
        if c.q_dtype.itemsize == 1:
            q = draw.floats((c.T, c.H, D_QK)) / (SCALE if c.has("q_scale") else 1)
            fitted["q"] = q.to(c.q_dtype)
        return fitted

    def traffic(self, c: Call) -> int:
        """Pages that are named, once."""
        named = min(c.S, c.P) * c.page * D_QK * c.kv_dtype.itemsize
        return int(super().traffic(c) - c.tensors["kv"].nbytes + named)


OP = _MlaDecode(
    "mla_decode",
    """
    q: bf16|e4m3|e4m3fnuz[T, H, 576] @16
    kv: bf16|e4m3|e4m3fnuz[P, page, 1, 576] @16
    kv_indptr: i32[ends]
    kv_indices: i32[*S] row W
    sm_scale: float
    batch: B >= 0
    is_table: bool
    qo_len: int >= 1
    causal: bool
    kv_lens: i32[B]?
    kv_scale: f32[*1]?
    q_scale: f32[*1]?
    lse: f32[T, H]? inout
    qo_indptr: i32[ends]?
    -> out: bf16[T, H, 512]
    """,
    sizes="B T H S P page ends W",
    kernels=(SharedFp8(), Shared(), Flow(), TritonMla(), Torch()),
    coarse={"B": 1, "T": 1, "S": 1, "P": 0, "ends": 1, "W": 0},
    table="B~ H S~ page qo_len kv_scale?",
    usual={"sm_scale": 1 / 24, "causal": True},
    shapes={
        "published": [
            {**shape, "S": batch * tokens}
            for batch in (4, 32, 64, 256)
            for tokens in (1024, 8192)
            for shape in grid("B H", [(batch, 16)], kv_dtype=("fp8", torch.bfloat16))
        ],
        # The layer of 2025's challenge: 128 heads that see what was prefilled, and their own.
        "layer": [
            {"B": 128, "H": 128, "S": 128 * (tokens + 1)} for tokens in (1024, 2048, 4096, 6144)
        ],
    },
    hints={
        "q": "absorb the up projection of k: [tokens, heads, 576]",
        "kv": "view it as [pages, page_size, 1, 576]",
        "kv_scale": "pass one float32, of the whole cache",
        "q_scale": "pass one float32, of all of q",
        "lse": "pass [tokens, heads] float32, or None",
    },
)


def mla_decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_indptr: torch.Tensor | None,
    kv_indices: torch.Tensor,
    sm_scale: float,
    *,
    qo_len: int = 1,
    causal: bool = True,
    kv_lens: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    qo_indptr: torch.Tensor | None = None,
    max_qo_len: int | None = None,
    config: Any = None,
) -> torch.Tensor:
    """out[b, t, h] = sum_n softmax_n(sm_scale * q[b, t, h] . kv[n]) * kv[n, :512], n over the
    tokens of sequence b that query t sees.

    Parameters
    ----------
    q : [B * qo_len, heads, 576] bfloat16, or the chip's FP8 (float8_e4m3fn, on gfx942
        float8_e4m3fnuz); the qo_len queries of a sequence follow each other.
    kv : [pages, page_size, 1, 576] of the same choice; any size.
    kv_indptr, kv_indices : int32. A list of pages: sequence b's are
        kv_indices[kv_indptr[b] : kv_indptr[b + 1]], in the order of its tokens. Or a block table:
        kv_indices [B, W] with sequence b's pages first in row b; kv_indptr is None then.
    sm_scale : of q . k, before the softmax.
    qo_len : queries of each sequence, where all have as many.
    causal : the last query sees all tokens of its sequence, one before it one less, and so on.
    kv_lens : [B] int32, the tokens of each sequence; None where all of its pages are full. A block
        table needs it.
    kv_scale, q_scale : one float32 by which all of kv, of q, is to be multiplied.
    out : [B * qo_len, heads, 512] bfloat16, written in place where given.
    lse : [B * qo_len, heads] float32, where given: ln of the sum of exp(sm_scale * q . k). Of
        shared_fp8 it is of weights rounded to e4m3, as the result is: within 2^-4.
    qo_indptr : [B + 1] int32, ascending: sequence b has the queries q[qo_indptr[b] :
        qo_indptr[b + 1]], any number of them, 0 too. Then q is [rows, heads, 576]; rows of out and
        lse that no sequence has are not written. As prefill: a sequence's queries are its tokens.
    max_qo_len : the most queries of any sequence, with qo_indptr; None: as many as q has rows. HIP
        kernels take it as a hint; it must not be too small for Triton's, which tile by it.
    config : takes that kernel in that variant, a FlowConfig or an MlaTritonConfig. On gfx950 the
        weights P are FP8 where q and kv are, with more than 32 columns and many tokens: within 3e-2
        of a head's result from about 1,000 of a sequence on. A SharedConfig has them in bf16.

    A query that sees no token gets zeros, and an lse of -inf. Rows that no sequence names, and
    those of a page beyond its sequence's end, may hold anything, NaN too; NaN and inf in a token
    reach the queries that see it, and no others. Nothing is checked on the
    device: pages must be there. Sums are fp32 in an order that config, lengths and device fix:
    deterministic. HIP's kernels and Triton's synchronise with nothing and can be captured; torch's
    reads the lengths back. Raises ValueError for what does not fit, and what building a kernel
    raises.

    Source: multi-head latent attention, DeepSeek-V2 (arXiv:2405.04434), 2.1, with absorbed
    projections; splits of tokens as FlashDecoding, combined by their lse.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    if qo_indptr is None and max_qo_len is None:
        batch = _batch(q, qo_len)
    else:
        batch, qo_len = _ragged(q, qo_indptr, qo_len, max_qo_len)
    bounds, has_table = kv_indptr, kv_indptr is None
    if has_table:
        bounds = kv_lens if qo_indptr is None else qo_indptr  # it stands in for kv_indptr
        if kv_lens is None and isinstance(kv_indices, torch.Tensor) and kv_indices.dim() == 2:
            OP.fail(*NO_LENS)
    return call(
        q,
        kv,
        bounds,
        kv_indices,
        sm_scale,
        batch,
        has_table,
        qo_len,
        causal,
        kv_lens,
        kv_scale,
        q_scale,
        lse,
        qo_indptr,
        out,
        config,
    )


mla_decode.supports = OP.supports  # type: ignore[attr-defined]


def _batch(q: Any, qo_len: Any) -> Any:
    """Sequences of q; 0 where the checks will say what is wrong."""
    try:
        if type(qo_len) is int and qo_len > 0:  # operator.index and max take 0.1 us
            return q.shape[0] // qo_len
        return q.shape[0] // max(operator.index(qo_len), 1)
    except (AttributeError, IndexError, TypeError, ZeroDivisionError):
        return 0


def _ragged(q: Any, qo_indptr: Any, qo_len: Any, max_qo_len: Any) -> tuple[int, int]:
    """Sequences of qo_indptr, and the most queries that one may have. Raises ValueError."""
    if qo_indptr is None:
        OP.fail("max_qo_len", "None without qo_indptr", show(max_qo_len), "pass qo_len")
    if qo_len != 1:
        OP.fail("qo_len", "left out beside qo_indptr", show(qo_len), "pass it as max_qo_len")
    try:
        batch, rows = qo_indptr.shape[0] - 1, q.shape[0]
    except (AttributeError, IndexError):
        return 0, 1  # the checks will say what is wrong
    if batch < 0:
        OP.fail("qo_indptr", "of batch + 1 elements", "0", "pass the first row of each sequence")
    most = rows if max_qo_len is None else check_int(OP.name, "max_qo_len", max_qo_len, 0)
    return batch, max(most, 1)


# ---------------------------------------------------------------- torch

_CHUNK = 4096  # tokens at once: 9 MiB of fp32


def run_torch(
    sm_scale: float,
    qo_len: int,
    causal: bool,
    out: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_lens: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    lse: torch.Tensor | None,
    qo_indptr: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Any size and device, a sequence after the other, in chunks of tokens. Reads lengths back:
    synchronises with a GPU."""
    scale = sm_scale * _value(kv_scale) * _value(q_scale)
    pages = sequences(kv, kv_indptr, kv_indices, kv_lens)
    for rows, (own, length) in zip(query_rows(len(pages), qo_len, qo_indptr), pages, strict=True):
        query = q[rows].to(dtype) * scale  # [queries, H, 576]
        if not len(query):
            continue
        back = torch.arange(len(query) - 1, -1, -1, device=q.device) * causal
        ends = (length - back)[:, None, None]
        most = query.new_full(query.shape[:2], -math.inf)
        total, sums = torch.zeros_like(most), query.new_zeros(*most.shape, D_V)
        for first in range(0, length, _CHUNK):
            place = torch.arange(first, min(length, first + _CHUNK), device=q.device)
            key = kv[own[place // kv.shape[1]], place % kv.shape[1], 0].to(dtype)
            seen = place < ends
            score = (query @ key.T).masked_fill(~seen, -math.inf)
            new = torch.maximum(most, score.amax(-1))
            base = torch.where(new == -math.inf, 0.0, new)  # none is seen yet
            weight, decay = torch.exp(score - base[..., None]), torch.exp(most - base)
            total = total * decay + weight.sum(-1)
            sums = sums * decay[..., None] + weight @ _masked_values(key[:, :D_V], seen)
            most = new
        none = total == 0
        out[rows] = (sums / torch.where(none, 1.0, total)[..., None] * _value(kv_scale)).to(
            out.dtype
        )
        if lse is not None:
            lse[rows] = (most + torch.log(total)).to(lse.dtype).masked_fill(none, -math.inf)


def _masked_values(value: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Values [tokens, 512] that weights of 0 may be multiplied by: where some query does not see a
    token, its NaN and inf are zeros. A query that sees it has a weight of NaN, as the value is part
    of the key, or one of 0 where the score is -inf."""
    is_masked = ~seen.flatten(0, -2).all(0)
    return torch.where(is_masked[:, None] & ~value.isfinite(), 0.0, value)


def query_rows(batch: int, qo_len: int, qo_indptr: torch.Tensor | None) -> list[slice]:
    """The rows of q of each sequence; qo_indptr is read back to the host."""
    bounds = range(0, (batch + 1) * qo_len, qo_len) if qo_indptr is None else qo_indptr.tolist()
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def _value(scale: torch.Tensor | None) -> torch.Tensor | float:
    return 1.0 if scale is None else scale.reshape(())


def sequences(
    kv: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_lens: torch.Tensor | None,
) -> list[tuple[torch.Tensor, int]]:
    """The pages and the length of each sequence, read back to the host."""
    lens = [] if kv_lens is None else kv_lens.tolist()
    if kv_indices.dim() == 2:
        return list(zip(kv_indices.long(), lens, strict=True))
    bounds = kv_indptr.tolist()
    lists = [kv_indices[a:b].long() for a, b in itertools.pairwise(bounds)]
    lens = lens or [len(own) * kv.shape[1] for own in lists]
    return list(zip(lists, lens, strict=True))


# ---------------------------------------------------------------- reference


def mla_decode_ref(
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    batch: int = 0,
    is_table: bool = False,
    qo_len: int = 1,
    causal: bool = True,
    kv_lens: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    qo_indptr: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> torch.Tensor:
    """The formula of `mla_decode` in plain torch, all of a sequence at once, in `dtype`; on any
    device. Writes lse where given; rows that no sequence has are zeros, and -inf. `magnitude`: the
    sums of weighted |values| instead, of which an error is a share: kernels lose weights below
    2^-126."""
    out = torch.zeros(*q.shape[:2], D_V, dtype=dtype, device=q.device)
    if lse is not None:
        lse.fill_(-math.inf)
    values = q.to(dtype) * _value(q_scale)
    pages = sequences(kv, kv_indptr, kv_indices, kv_lens)
    for rows, (own, length) in zip(query_rows(len(pages), qo_len, qo_indptr), pages, strict=True):
        place = torch.arange(length, device=q.device)
        key = kv[own[place // kv.shape[1]], place % kv.shape[1], 0].to(dtype) * _value(kv_scale)
        for row in range(rows.start, rows.stop):
            seen = length - (rows.stop - 1 - row) * causal
            if seen > 0:
                score = sm_scale * values[row] @ key[:seen].T
                value = key[:seen, :D_V]
                weight = torch.softmax(score, -1)
                if magnitude:
                    weight, value = weight.clamp(min=LEAST_WEIGHT), value.abs()
                out[row] = weight @ value
                if lse is not None:
                    lse[row] = torch.logsumexp(score, -1)
    return out


OP.reference = mla_decode_ref
OP.sums = functools.partial(mla_decode_ref, magnitude=True)
