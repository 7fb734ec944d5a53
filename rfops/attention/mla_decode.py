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
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import check_int
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit.errors import show

from .mla_decode_flow import COLUMNS, Flow, is_table
from .mla_decode_shared import SharedFp8Kernel, SharedKernel
from .mla_decode_triton import TritonMla
from .mla_terms import D_QK, D_V, MlaModel

__all__ = ["mla_decode", "mla_decode_ref"]

LEAST_WEIGHT = 2.0**-110  # times a kernel's error, 2^-8 to 2^-12, more than what it loses
SCALE = 2.0**-6  # of FP8 whose largest value is 448: of kv, of q
# Calls that a model is fitted to: sequences at most, tokens of each, heads of a GPU, and tokens at
# most of all by groups of 16 columns, which flow reads: more tell nothing else.
MOST_DRAWN_BATCH, DRAWN_TOKENS, MOST_DRAWN_TOKENS = 256, (128, 32768), 300_000
LIGHT_ROWS = 4096  # of a cache that is timed alone
HEADS = 16, 32, 64, 128, 128
DRAWN_DTYPES = (torch.bfloat16, torch.bfloat16), (torch.bfloat16, "fp8"), ("fp8", "fp8")
PAGES = "pass one row of pages per sequence"  # the fix of a refusal
NO_INDPTR = "None where kv_indices is a block table [batch, width]"
NO_LENS = "kv_lens", "given with a block table", "None", "pass the tokens of each sequence"


class Torch(Kernel):
    name = "torch"
    is_capturable = False
    error = 2.0**-12  # exp and the sums of chunks, of the sum of |products|

    def variant(self, c: Call, config: Any) -> RunOf:
        run = functools.partial(run_torch, c.sm_scale, c.qo_len, c.causal)
        return lambda *_sizes: run


class _MlaDecode(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        b, t, _h, s, _pages, page, ends, width = sizes
        is_ragged = c.has("qo_indptr")
        if is_ragged and ends != b + 1:
            expected = f"of batch + 1 = {b + 1} elements"
            return "qo_indptr", expected, f"{ends}", "pass the first row of each sequence, and T"
        if not is_ragged and b * c.qo_len != t:
            expected = f"of batch * qo_len = {b} * {c.qo_len} rows"
            return "q", expected, f"{t}", "pass qo_len rows of each sequence, or qo_indptr"
        if c.tensors and c.is_table != is_table(c):
            expected = "a tensor where kv_indices is a list of pages" if c.is_table else NO_INDPTR
            form = "None" if c.is_table else "a tensor"
            return "kv_indptr", expected, form, "pass one of the two forms"
        if is_table(c):
            if not c.has("kv_lens"):
                return NO_LENS
            if b * width != s:
                return "kv_indices", f"of batch = {b} rows", f"{s // width}", PAGES
        elif ends != b + 1:
            expected = f"of batch + 1 = {b + 1} elements"
            return (
                "kv_indptr",
                expected,
                f"{ends}",
                "pass where each sequence's pages begin and end",
            )
        if page < 1:
            return "kv", "of pages of 1 token or more", f"{page}", "pass [pages, page_size, 1, 576]"
        return None

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

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """DeepSeek-V3's heads, whole or the share of a GPU; the logarithms of sequences and of
        their tokens uniform."""
        while True:
            batch = round(math.exp(rng.uniform(0.0, math.log(MOST_DRAWN_BATCH))))
            tokens = round(math.exp(rng.uniform(*map(math.log, DRAWN_TOKENS))))
            heads, queries = rng.choice(HEADS), rng.choice((1, 1, 1, 1, 2, 4))
            page, dtypes = rng.choice((1, 1, 16, 64)), rng.choice(DRAWN_DTYPES)
            pages = batch * ceil(tokens, page)
            if ceil(heads * queries, COLUMNS) * pages * page <= MOST_DRAWN_TOKENS:
                sizes = {"B": batch, "H": heads, "S": pages, "page": page, "qo_len": queries}
                return {**sizes, "q_dtype": dtypes[0], "kv_dtype": dtypes[1]}

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
        if draw.is_light or (c.kv_dtype.itemsize == 1 and not c.has("kv_scale")):
            fitted["kv"] = _cache(c, draw)
        if draw.is_light or c.q_dtype.itemsize == 1:
            q = draw.floats((c.T, c.H, D_QK)) / (SCALE if c.has("q_scale") else 1)
            fitted["q"] = q.to(c.q_dtype)
        return fitted

    def traffic(self, c: Call) -> int:
        """Pages that are named, once."""
        named = min(c.S, c.P) * c.page * D_QK * c.kv_dtype.itemsize
        return int(super().traffic(c) - c.tensors["kv"].nbytes + named)


def _cache(c: Call, draw: InputGenerator) -> torch.Tensor:
    """Rows of a cache, FP8 below 2; to be timed alone, some again and again, not zeros: their
    scores would never rise, and sums never be rescaled."""
    rows = c.P * c.page
    drawn = min(rows, LIGHT_ROWS) if draw.is_light else rows
    if c.kv_dtype.itemsize == 1:
        code = draw.ints((drawn, D_QK), 0, 128, torch.uint8)
        codes = (code & 63 | 1 | (code & 64) << 1).view(c.kv_dtype)
    else:
        codes = draw.floats((drawn, D_QK), c.kv_dtype)
    if drawn < rows:
        codes = codes.view(torch.uint8)[torch.arange(rows) % drawn].view(c.kv_dtype)
    return codes.view(c.P, c.page, 1, D_QK)


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
    kernels=(SharedFp8Kernel(), SharedKernel(), Flow(), TritonMla(), Torch()),
    coarse={"S": 1, "P": 0, "W": 0},  # B decides whether sequences share workers
    table="B~ H S~ page qo_len kv_scale?",
    time_model=MlaModel,
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
    max_rows = rows if max_qo_len is None else check_int(OP.name, "max_qo_len", max_qo_len, 0)
    return batch, max(max_rows, 1)


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
    for rows, (page_ids, length) in zip(
        query_rows(len(pages), qo_len, qo_indptr), pages, strict=True
    ):
        query = q[rows].to(dtype) * scale  # [queries, H, 576]
        if not len(query):
            continue
        distance = torch.arange(len(query) - 1, -1, -1, device=q.device) * causal
        ends = (length - distance)[:, None, None]
        row_max = query.new_full(query.shape[:2], -math.inf)
        total, sums = torch.zeros_like(row_max), query.new_zeros(*row_max.shape, D_V)
        for begin in range(0, length, _CHUNK):
            tokens = torch.arange(begin, min(length, begin + _CHUNK), device=q.device)
            key = kv[page_ids[tokens // kv.shape[1]], tokens % kv.shape[1], 0].to(dtype)
            is_visible = tokens < ends
            score = (query @ key.T).masked_fill(~is_visible, -math.inf)
            new = torch.maximum(row_max, score.amax(-1))
            base = torch.where(new == -math.inf, 0.0, new)  # none is seen yet
            weight, decay = torch.exp(score - base[..., None]), torch.exp(row_max - base)
            total = total * decay + weight.sum(-1)
            sums = sums * decay[..., None] + weight @ _masked_values(key[:, :D_V], is_visible)
            row_max = new
        none = total == 0
        out[rows] = (sums / torch.where(none, 1.0, total)[..., None] * _value(kv_scale)).to(
            out.dtype
        )
        if lse is not None:
            lse[rows] = (row_max + torch.log(total)).to(lse.dtype).masked_fill(none, -math.inf)


def _masked_values(value: torch.Tensor, is_visible: torch.Tensor) -> torch.Tensor:
    """Values [tokens, 512] that weights of 0 may be multiplied by: where some query does not see a
    token, its NaN and inf are zeros. A query that sees it has a weight of NaN, as the value is part
    of the key, or one of 0 where the score is -inf."""
    is_masked = ~is_visible.flatten(0, -2).all(0)
    return torch.where(is_masked[:, None] & ~value.isfinite(), 0.0, value)


def query_rows(batch: int, qo_len: int, qo_indptr: torch.Tensor | None) -> list[slice]:
    """The rows of q of each sequence; qo_indptr is read back to the host."""
    bounds = range(0, (batch + 1) * qo_len, qo_len) if qo_indptr is None else qo_indptr.tolist()
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def _value(scale: torch.Tensor | None) -> torch.Tensor | float:
    return 1.0 if scale is None else scale.reshape(())


def sequences(
    kv: torch.Tensor,
    kv_indptr: torch.Tensor | None,
    kv_indices: torch.Tensor,
    kv_lens: torch.Tensor | None,
) -> list[tuple[torch.Tensor, int]]:
    """The pages and the length of each sequence, read back to the host."""
    lens = [] if kv_lens is None else kv_lens.tolist()
    if kv_indices.dim() == 2:
        return list(zip(kv_indices.long(), lens, strict=True))
    assert kv_indptr is not None, "pages are a list"
    bounds = kv_indptr.tolist()
    lists = [kv_indices[a:b].long() for a, b in itertools.pairwise(bounds)]
    lens = lens or [len(page_ids) * kv.shape[1] for page_ids in lists]
    return list(zip(lists, lens, strict=True))


# ---------------------------------------------------------------- reference


def mla_decode_ref(
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_indptr: torch.Tensor | None,
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
    """The formula of `mla_decode` in plain torch, one query at a time, in `dtype`, on any device.

    Takes q [rows, heads, 576], kv [pages, page_size, 1, 576] and the others as the op does. Writes
    lse [rows, heads] where given. magnitude : the sums of weighted |values| instead, of which an
    error is a share: kernels lose weights below 2^-126. Returns [rows, heads, 512] of `dtype`,
    float32 or float64; rows that no sequence has are zeros, and -inf. Raises IndexError for a page
    that kv does not have, and torch's RuntimeError for sizes that do not fit each other.

    Source: multi-head latent attention, DeepSeek-V2 (arXiv:2405.04434), 2.1.
    """
    out = torch.zeros(*q.shape[:2], D_V, dtype=dtype, device=q.device)
    if lse is not None:
        lse.fill_(-math.inf)
    values = q.to(dtype) * _value(q_scale)
    pages = sequences(kv, kv_indptr, kv_indices, kv_lens)
    for rows, (page_ids, length) in zip(
        query_rows(len(pages), qo_len, qo_indptr), pages, strict=True
    ):
        tokens = torch.arange(length, device=q.device)
        key = kv[page_ids[tokens // kv.shape[1]], tokens % kv.shape[1], 0].to(dtype) * _value(
            kv_scale
        )
        for row in range(rows.start, rows.stop):
            num_visible = length - (rows.stop - 1 - row) * causal
            if num_visible > 0:
                score = sm_scale * values[row] @ key[:num_visible].T
                value = key[:num_visible, :D_V]
                weight = torch.softmax(score, -1)
                if magnitude:
                    weight, value = weight.clamp(min=LEAST_WEIGHT), value.abs()
                out[row] = weight @ value
                if lse is not None:
                    lse[row] = torch.logsumexp(score, -1)
    return out


OP.reference = mla_decode_ref
OP.sums = functools.partial(mla_decode_ref, magnitude=True)
