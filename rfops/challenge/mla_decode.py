"""amd-mla-decode (2025, MI300X): one decode step of DeepSeek's MLA layer, cache not paged.

    q = rope(x Wqd^T Wqu^T); cache gets x Wkvd^T; k, v = cache Wkvu^T, rope on k's last 64
    y = softmax(q k^T / sqrt(192)) v Wo^T

RoPE: theta = bf16(10000^(-i/32)), and torch multiplies position and theta in bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from rfops.challenge.problem import Case, Problem, generator, smaller

BF16 = torch.bfloat16
LORA, NOPE, ROPE, V, MAX_ROWS = 512, 128, 64, 128, 8192
_MAX_KV_ELEMS = 1 << 26  # elements of k and v that the reference holds at once


class KVCache(torch.nn.Module):
    """The harness's: rows of `data` up to `seq_len` are filled; a call appends."""

    data: torch.Tensor

    def __init__(self, kv_cache_shape: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.register_buffer("data", torch.zeros(kv_cache_shape, dtype=BF16))
        self.seq_len = 0

    def zero(self) -> None:
        self.data.zero_()

    def get_data(self) -> torch.Tensor:
        return self.data

    def forward(self, c_kv: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Append the rows to the cache; return its rows so far and their number."""
        end = self.seq_len + c_kv.shape[1]
        if end > self.data.shape[1]:
            raise ValueError(f"KVCache: {end} rows, room for {self.data.shape[1]}")
        self.data[:, self.seq_len : end] = c_kv
        self.seq_len = end
        return self.data[:, :end], end


@dataclass
class Config:
    batch_size: int
    dim: int
    n_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    seq_len: int
    max_seq_len: int
    kv_cache_shape: tuple[int, ...]
    Q_proj_down_weight: torch.Tensor
    Q_proj_up_weight: torch.Tensor
    KV_proj_down_weight: torch.Tensor
    KV_proj_up_weight: torch.Tensor
    wo_weight: torch.Tensor


def _cases(*sizes: tuple[int, int]) -> tuple[Case, ...]:
    full = {"batchsize": 128, "dim": 7168, "dq": 1536}
    return tuple({**full, "prefill": prefill, "seed": seed} for prefill, seed in sizes)


def generate(case: Case) -> Any:
    """A `heads` of a shrunk case is not the harness's: there it is always 128."""
    gen, dim, dq, bs = generator(case), case["dim"], case["dq"], case["batchsize"]
    heads = case.get("heads", 128)
    shape = (bs, min(MAX_ROWS, case.get("rows", MAX_ROWS)), LORA + ROPE)

    def weight(n: int, k: int) -> torch.Tensor:
        return torch.randn(n, k, generator=gen).to(BF16) / math.sqrt(k)

    config = Config(
        batch_size=bs,
        dim=dim,
        n_heads=heads,
        q_lora_rank=dq,
        kv_lora_rank=LORA,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=V,
        seq_len=1,
        max_seq_len=shape[1],
        kv_cache_shape=shape,
        Q_proj_down_weight=weight(dq, dim),
        KV_proj_down_weight=weight(LORA + ROPE, dim),
        Q_proj_up_weight=weight((NOPE + ROPE) * heads, dq),
        KV_proj_up_weight=weight((NOPE + V) * heads, LORA),
        wo_weight=weight(dim, V * heads),
    )
    x = torch.randn(bs, 1, dim, generator=gen).to(BF16)
    cache = KVCache(shape)
    cache(torch.randn(bs, case["prefill"], LORA + ROPE, generator=gen).to(BF16))
    return config, x, cache


def rope(x: torch.Tensor, start: int, dtype: torch.dtype) -> torch.Tensor:
    """Of x [..., positions, 64]; angles in bf16 whatever the dtype, as the layer defines them."""
    half = x.shape[-1] // 2
    theta = 10000 ** (-torch.arange(half, dtype=BF16) / half)
    positions = torch.arange(start, start + x.shape[-2])
    angle = positions.to(BF16)[:, None] * theta
    cos, sin = (f(angle).to(BF16).to(dtype).repeat(1, 2) for f in (torch.cos, torch.sin))
    half_rotated = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + half_rotated * sin


def mm(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return a @ w.T in float32."""
    return a.float() @ w.float().mT


def queries(data: Any, dtype: torch.dtype) -> torch.Tensor:
    """[batch, heads, 1, NOPE + ROPE], turned to their position; products rounded to dtype."""
    config, x, cache = data
    q = mm(mm(x, config.Q_proj_down_weight).to(dtype), config.Q_proj_up_weight).to(dtype)
    q = q.view(config.batch_size, config.n_heads, 1, NOPE + ROPE)
    return torch.cat((q[..., :NOPE], rope(q[..., NOPE:], cache.seq_len, dtype)), -1)


def cached(data: Any) -> torch.Tensor:
    """The cache's filled rows, and this step's."""
    config, x, cache = data
    new_rows = mm(x, config.KV_proj_down_weight).to(BF16)
    return torch.cat((cache.data[:, : cache.seq_len], new_rows), 1)


def step(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, the cache's data), each intermediate rounded to bf16."""
    config, _, cache = data
    heads = config.n_heads

    def attended(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        up = mm(kv[..., :LORA], kv_up).to(BF16).view(*kv.shape[:2], heads, NOPE + V)
        up = up.transpose(1, 2)
        k_rope = rope(kv[:, None, :, LORA:], 0, BF16).expand(-1, heads, -1, -1)
        k = torch.cat((up[..., :NOPE], k_rope), -1)
        scores = (mm(q, k).to(BF16) / math.sqrt(NOPE + ROPE)).float()
        return mm(scores.softmax(-1).to(BF16), up[..., NOPE:].mT).to(BF16)

    kv, kv_up = cached(data), config.KV_proj_up_weight.float()
    rows = cache.data.clone()
    rows[:, cache.seq_len] = kv[:, -1]
    # k and v of all of the batch would take 137 GB at 8192 keys.
    batch_step = max(1, _MAX_KV_ELEMS // (kv.shape[1] * kv_up.shape[0]))
    batches = zip(queries(data, BF16).split(batch_step), kv.split(batch_step), strict=True)
    y = torch.cat([attended(*batch) for batch in batches])
    return mm(y.reshape(config.batch_size, 1, -1), config.wo_weight).to(BF16), rows


def exact(data: Any) -> torch.Tensor:
    """y in fp32 with the up-projections taken into q and out: k and v are not made."""
    config = data[0]
    kv = cached(data).float()
    q = queries(data, torch.float32)[:, :, 0]
    w = config.KV_proj_up_weight.float().view(config.n_heads, NOPE + V, LORA)
    absorbed = torch.einsum("bhn,hnc->bhc", q[..., :NOPE], w[:, :NOPE])
    rotated = rope(kv[..., LORA:], 0, torch.float32)
    scores = absorbed @ kv[..., :LORA].mT + q[..., NOPE:] @ rotated.mT
    p = (scores / math.sqrt(NOPE + ROPE)).softmax(-1)
    y = torch.einsum("bhc,hvc->bhv", p @ kv[..., :LORA], w[:, NOPE:])
    return mm(y.reshape(config.batch_size, 1, -1), config.wo_weight)


def _shrink(case: Case) -> Case:
    prefill = min(case["prefill"], 128)
    return {
        **smaller(batchsize=2, dim=256, dq=128)(case),
        "prefill": prefill,
        "heads": 16,
        "rows": 160,
    }


PROBLEM = Problem(
    name="amd-mla-decode",
    arch="gfx942",
    tests=_cases((128, 9247), (512, 2197), (1024, 9107), (2048, 5291)),
    benchmarks=_cases((4096, 9817), (6144, 5291)),
    generate=generate,
    reference=step,
    shrink=_shrink,
    rtol=2e-2,
    atol=8e-3,
    truths=lambda data, _: {"the layer": exact(data)},
    bound=3e-2,  # bf16 in nine places; half of the keys dropped is 0.4 and more
    in_place=lambda data: [data[2].data],
)
