"""mla_layer_decode: a decode step of DeepSeek's MLA layer, from a token's row to its result.

    q       = rope(x q_down^T q_up^T)           a head: 128 elements as they are, 64 turned
    cache  += x kv_down^T                       576: 512 latent ones, 64 of the key, not turned yet
    k, v    = cache[:512] kv_up^T, and on k the turned 64 that all heads share
    out     = softmax(q k^T / sqrt(192)) v o^T

kv_up is absorbed: its half of k goes into q, that of v comes after the attention, which so is
`mla_decode`'s on the cache as it lies. Keys are turned as they are read.

| kernel | what it takes |
|---|---|
| hip (mla_layer_decode_hip.py) | gfx942 and gfx950: D and R multiples of 32 |
| triton (mla_layer_decode_triton.py) | AMD's and NVIDIA's GPUs |
| torch | whatever is left |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid

from .mla_layer_decode_hip import HipLayer
from .mla_layer_decode_triton import TritonLayer
from .mla_layer_parts import CACHE_ROW, HALF, LATENT, NOPE, ROPE, SM_SCALE, V

__all__ = ["mla_layer_decode", "mla_layer_decode_ref", "rope_angles"]

BF16 = torch.bfloat16


class Torch(Kernel):
    """The reference in plain torch, for every device and call."""

    name = "torch"
    is_capturable = False
    error = 2.0**-6

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *sizes: functools.partial(run_torch, sizes[list(c.sizes).index("start")])


class _MlaLayerDecode(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        sizes_by_name = dict(zip(self.declaration.sizes, sizes, strict=True))
        v, rows, start = sizes_by_name["V"], sizes_by_name["L"], sizes_by_name["start"]
        if v % V:
            return "o", f"of {V} columns a head", str(v), "pass [D, heads * 128]"
        heads = v // V
        for name, size, rows_per_head in (("q_up", "Q", NOPE + ROPE), ("kv_up", "U", NOPE + V)):
            if sizes_by_name[size] != rows_per_head * heads:
                num_rows = rows_per_head * heads
                expected = f"of {rows_per_head} rows for each of o's {heads} heads, {num_rows}"
                return name, expected, str(sizes_by_name[size]), "weights must have the same heads"
        if sizes_by_name["A"] < rows:
            fix = f"pass rope_angles({rows})"
            return (
                "angles",
                f"of a row for each of the cache's {rows}",
                str(sizes_by_name["A"]),
                fix,
            )
        if start >= rows:
            fix = "the new token's row must be free"
            return "start", f"below the cache's {rows} rows", str(start), fix
        return None

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """DeepSeek-V3's, of the challenge."""
        defaults = {"D": 7168, "R": 1536, "V": 128 * V, "L": 8192}
        sizes |= {name: size for name, size in defaults.items() if name not in sizes}
        sizes.setdefault("Q", sizes["V"] // V * (NOPE + ROPE))
        sizes.setdefault("U", sizes["V"] // V * (NOPE + V))
        sizes.setdefault("A", sizes["L"])

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Weights whose products are about 1."""
        weights = {
            "q_down": (c.R, c.D),
            "q_up": (c.Q, c.R),
            "kv_down": (CACHE_ROW, c.D),
            "kv_up": (c.U, LATENT),
            "o": (c.D, c.V),
        }
        inputs = {
            name: draw.floats(shape, BF16) / max(shape[1], 1) ** 0.5
            for name, shape in weights.items()
        }
        return {**inputs, "angles": rope_angles(c.A, device=c.device)}

    def flops(self, c: Call) -> int:
        heads = c.V // V
        down = c.D * (c.R + CACHE_ROW) + c.R * c.Q + c.V * c.D
        attention = heads * (c.start + 1) * (CACHE_ROW + LATENT)
        return int(2 * c.B * (down + heads * LATENT * (NOPE + V) + attention))

    def roundings(self, c: Call) -> int:
        return int(2 * (c.D + c.R + c.V + c.start + CACHE_ROW))

    def traffic(self, c: Call) -> int:
        """Of the cache what is read, and a row written."""
        used_bytes = 2 * CACHE_ROW * c.B * (c.start + 2)
        tensors = {name: t.nbytes for name, t in c.tensors.items() if t is not None}
        unread = tensors["angles"] + 2 * tensors["cache"]
        return int(super().traffic(c) - unread + used_bytes)


OP = _MlaLayerDecode(
    "mla_layer_decode",
    """
    x: bf16[*B, D] @16
    cache: bf16[B, L, 576] inout @16
    start: start >= 0
    q_down: bf16[R, D] @16
    q_up: bf16[Q, R] @16
    kv_down: bf16[576, D] @16
    kv_up: bf16[U, 512] @16
    o: bf16[D, V] @16
    angles: bf16[A, 64] @16
    positions: i32[B]?
    -> out: bf16[*B, D]
    """,
    sizes="B start D R V L Q U A",
    positive="D R V",
    kernels=(HipLayer(), TritonLayer(), Torch()),
    coarse={"start": 256},
    table="B+ start+ V D R",
    shapes={"published": grid("B", [(128,)], start=(4096, 6144, 128, 512, 1024, 2048))},
    hints={
        "x": "pass the tokens' rows, [B, D] or [B, 1, D]",
        "cache": "pass [B, most tokens, 576] bfloat16, of which it writes a row a sequence",
        "angles": "pass rope_angles(rows of the cache)",
        "positions": "pass [B] int32 as start",
    },
)


def mla_layer_decode(
    x: Tensor,
    cache: Tensor,
    start: int | Tensor,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    o: Tensor,
    angles: Tensor,
    *,
    out: Tensor | None = None,
    config: Any = None,
) -> Tensor:
    """One decode step of an MLA layer: each sequence's new token is appended to the cache, and
    attends to all of its sequence.

    Parameters
    ----------
    x : [B, D] or [B, 1, D] bfloat16, of each sequence's new token.
    cache : [B, L, 576] bfloat16, written in place: of sequence b row start[b] becomes
        x[b] kv_down^T. Rows before it are its tokens, keys not turned; rows after it may hold
        anything, NaN too.
    start : tokens in the cache before this one: an int, of all sequences, or [B] int32 on x's
        device, which a graph may change between replays. Nothing checks those on the device: each
        must be below L.
    q_down, q_up : [R, D] and [heads * 192, R] bfloat16: of each head 128 rows, then the 64 that are
        rotated.
    kv_down : [576, D] bfloat16, 512 latent rows and the 64 of the key that are rotated.
    kv_up : [heads * 256, 512] bfloat16, of each head 128 rows of k and then 128 of v.
    o : [D, heads * 128] bfloat16.
    angles : [L or more, 64] bfloat16, of each position 32 cosines and then 32 sines: see
        `rope_angles`. Element d is turned with d + 32, and rounded as bf16 torch does.
    out : of x's shape, written in place where given.
    config : takes that kernel in that variant, a LayerTritonConfig.

    Sums are fp32; q, what attention gives and its values are rounded to bf16 between the products,
    which gives 4e-3 of a row's norm. Deterministic. HIP makes five launches, Triton up to seven;
    both synchronise with nothing and can be captured. Raises ValueError for what does not fit, and
    what building a kernel raises.

    Source: multi-head latent attention, DeepSeek-V2 (arXiv:2405.04434), 2.1; rotary embedding,
    RoFormer (arXiv:2104.09864).
    """
    call: Callable[..., Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    start_, positions = (0, start) if isinstance(start, Tensor) else (start, None)
    return call(x, cache, start_, q_down, q_up, kv_down, kv_up, o, angles, positions, out, config)


mla_layer_decode.supports = OP.supports  # type: ignore[attr-defined]


def rope_angles(
    length: int,
    base: float = 10000.0,
    *,
    dtype: torch.dtype = BF16,
    device: torch.device | str | None = None,
) -> Tensor:
    """[length, 64]: cos and sin of position * base^(-i / 32), i = 0..31, as a model computes them
    whose positions and frequencies have that dtype. DeepSeek's challenge of 2025 has bf16: from 256
    on neighbours share an angle. vLLM's cos_sin_cache is made in float32, and converted.

    length : positions from 0 on. base : of the frequencies. dtype : in which angles are computed;
    the result is bfloat16 in any case. device : of the result; None: torch's default. Raises
    torch's RuntimeError for a negative length.

    Source: RoFormer (arXiv:2104.09864), 3.2.2.
    """
    frequency = base ** (-torch.arange(HALF, dtype=dtype, device=device) / HALF)
    angle = torch.arange(length, device=device).to(dtype)[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), -1).to(BF16)


# ---------------------------------------------------------------- torch


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Of x [..., 64] and angles [..., 64], in x's dtype."""
    low, high = x[..., :HALF], x[..., HALF:]
    cos, sin = angles[..., :HALF].to(x.dtype), angles[..., HALF:].to(x.dtype)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def _mm(a: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """a w^T by sums of at least fp32, then as dtype."""
    wide_dtype = torch.promote_types(dtype, torch.float32)
    return (a.to(wide_dtype) @ w.to(wide_dtype).mT).to(dtype)


def _appended(
    x: Tensor,
    cache: Tensor,
    start: int,
    kv_down: Tensor,
    positions: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, list[int]]:
    """Writes the new rows; x as rows, and the lengths, read back to the host."""
    rows = x.reshape(-1, x.shape[-1])
    positions_ = [start] * len(rows) if positions is None else positions.tolist()
    for b, new in enumerate(_mm(rows, kv_down, dtype).to(cache.dtype)):
        cache[b, positions_[b]] = new
    return rows, [position + 1 for position in positions_]


def _queries(
    rows: Tensor, q_down: Tensor, q_up: Tensor, angles: Tensor, lens: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """[B, heads, 128], and [B, heads, 64] turned."""
    q = _mm(_mm(rows, q_down, dtype), q_up, dtype).view(len(rows), -1, NOPE + ROPE)
    row_angles = angles[[length - 1 for length in lens]][:, None]
    return q[..., :NOPE], rotated(q[..., NOPE:], row_angles)


def run_torch(
    start: int,
    out: Tensor,
    x: Tensor,
    cache: Tensor,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    o: Tensor,
    angles: Tensor,
    positions: Tensor | None,
) -> None:
    """Any device, a sequence after the other. Reads positions back: synchronises with a GPU."""
    rows, lens = _appended(x, cache, start, kv_down, positions, BF16)
    nope, roped = _queries(rows, q_down, q_up, angles, lens, BF16)
    up = kv_up.view(-1, NOPE + V, LATENT)
    latent = _mm(nope.transpose(0, 1), up[:, :NOPE].mT, BF16).transpose(0, 1)
    q = torch.cat((latent, roped), -1).float()
    attended = torch.empty_like(latent)
    for b, length in enumerate(lens):
        kv = cache[b, :length]
        key = torch.cat((kv[:, :LATENT], rotated(kv[:, LATENT:], angles[:length])), -1).float()
        attended[b] = torch.softmax(SM_SCALE * q[b] @ key.T, -1) @ key[:, :LATENT]
    value = _mm(attended.transpose(0, 1), up[:, NOPE:], BF16).transpose(0, 1)
    out.view(rows.shape)[:] = _mm(value.reshape(len(rows), -1), o, BF16)


# ---------------------------------------------------------------- reference


def mla_layer_decode_ref(
    x: Tensor,
    cache: Tensor,
    start: int,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    o: Tensor,
    angles: Tensor,
    positions: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The formula of `mla_layer_decode` as models state it: k and v of every token and head.

    Takes x [B, D] or [B, 1, D], cache [B, L, 576] and the weights as the op does, on any device.
    Writes the cache, whose rows are bf16. Returns a tensor of x's shape in `dtype`, float32 or
    float64. Raises torch's RuntimeError for sizes that do not fit each other.

    Source: multi-head latent attention, DeepSeek-V2 (arXiv:2405.04434), 2.1, without absorption.
    """
    rows, lens = _appended(x, cache, start, kv_down, positions, dtype)
    nope, roped = _queries(rows, q_down, q_up, angles, lens, dtype)
    up = kv_up.view(-1, NOPE + V, LATENT)
    outputs = []
    for b, length in enumerate(lens):
        kv = cache[b, :length].to(dtype)
        key = _mm(kv[:, :LATENT], up[:, :NOPE], dtype)  # [heads, tokens, 128]
        rope_keys = rotated(kv[:, LATENT:], angles[:length])
        score = (nope[b][:, None] @ key.mT).squeeze(1) + roped[b] @ rope_keys.mT
        weight = torch.softmax(SM_SCALE * score, -1)
        outputs.append((weight[:, None] @ _mm(kv[:, :LATENT], up[:, NOPE:], dtype)).flatten())
    return _mm(torch.stack(outputs), o, dtype).view(x.shape) if outputs else x.to(dtype)


OP.reference = mla_layer_decode_ref
