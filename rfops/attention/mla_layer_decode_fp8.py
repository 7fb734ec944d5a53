"""mla_layer_decode_fp8: a decode step of an MLA layer as models and engines have it: norms of q_a
and kv_a, weights in FP8 with scales of 128 x 128, a paged cache, YaRN in table and softmax scale.

    q_a, kv_a, k_pe = x qkv_a^T                      x quantised by 1 x 128, as each linear's input
    q_nope, q_pe    = norm(q_a) q_b^T                of each head 128 and 64
    kv[slot]        = norm(kv_a) | rope(k_pe)
    out             = attention(q_nope k_up^T | rope(q_pe), kv) v_up^T o^T

Steps are calls of rfops' ops, each by the kernel that its op chooses: quant_fp8_blockscale,
gemm_a8w8_blockscale, rms_norm_quant, gemm_a8w8_blockscale, mla_absorb_cache_write, mla_decode,
batched_gemm_a16w8_blockscale, linear_fp8_blockscale. What lies between them is bfloat16.
`mla_layer_decode` has the form of the challenge of 2025: bf16 weights, no norms, a cache of its own
for each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.steps import OpStep, Source, run_steps
from rfops.gemm.a8w8_blockscale import OP as GEMM
from rfops.gemm.a8w8_blockscale import gemm_a8w8_blockscale_ref
from rfops.gemm.a16w8_blockscale import OP as BATCHED
from rfops.gemm.a16w8_blockscale import batched_gemm_a16w8_blockscale_ref
from rfops.gemm.linear_fp8 import OP as LINEAR
from rfops.quantization.fp8_blockscale import BLOCK
from rfops.quantization.fp8_blockscale import OP as QUANT
from rfops.quantization.fp8_blockscale import reference as quantise
from rfops.rowwise.rms_norm import EPS, rms_norm_ref
from rfops.rowwise.rms_norm_quant import OP as NORM_QUANT

from .mla_absorb_cache_write import OP as ABSORB
from .mla_cache_write import mla_rope_concat_cache_write_ref
from .mla_decode import OP as DECODE
from .mla_decode import mla_decode_ref
from .mla_layer_parts import CACHE_ROW, LATENT, NOPE, ROPE, SM_SCALE, V
from .rotary import Refusal, rope_cos_sin

__all__ = ["mla_layer_decode_fp8", "mla_layer_decode_fp8_ref"]
BF16, F32 = torch.bfloat16, torch.float32


class Steps(Kernel):
    """The launches of the ops, whose kernels are the ops' own choice."""

    name = "steps"
    error = 2.0**-5  # of FP8 inputs that round the other way after sums in another order

    def unsupported_reason(self, c: Call) -> str | None:
        if not c.arch.startswith("gfx"):
            return f"its FP8 quantisers have no kernel for {c.arch}"
        return None if c.qkv_a_dtype == fp8_of(c.arch) else f"{c.arch} quantises to another FP8"

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *sizes: self.launches(c.resized(sizes))

    def launches(self, c: Call) -> Run:
        """The launches of one call."""
        workspace, inputs = _workspace(c), _inputs(c)
        steps = _steps(c, {**inputs, **workspace})
        return run_steps(
            c.device, self.arguments, steps, arch=c.arch, workspace=workspace, outer=True
        )


def _workspace(c: Call) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """What lies between the steps."""
    fp8 = fp8_of(c.arch)
    return {
        "x_q": ((c.B, c.D), fp8),
        "x_scale": ((c.B, c.D // BLOCK), F32),
        "a": ((c.B, c.A), BF16),  # q_a, kv_a, k_pe
        "q_a": ((c.B, c.R), fp8),
        "q_a_scale": ((c.B, c.R // BLOCK), F32),
        "heads": ((c.B, c.H, NOPE + ROPE), BF16),
        "q": ((c.B, c.H, CACHE_ROW), BF16),
        "latent": ((c.B, c.H, LATENT), BF16),
        "value": ((c.B, c.V), BF16),
    }


def _inputs(c: Call) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of the op's own tensors that steps take."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"out": ((c.B, c.D), BF16)}
    for arg in OP.declaration.tensors:
        if arg.name == "kv_scale" and not c.has("kv_scale"):
            continue
        shape = (1,) if arg.name == "kv_scale" else tuple(e.of(c.sizes) for e in arg.extents)
        shapes[arg.name] = shape, getattr(c, f"{arg.name}_dtype")
    return shapes


def _steps(c: Call, shaped: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[OpStep]:
    def step(op: Op, sources: Mapping[str, Source], **values: Any) -> OpStep:
        return OpStep(op, values, sources, shaped, c.cu_num)

    def linear(out: str, x: str, x_scale: str, w: str, n: int, k: int) -> OpStep:
        sources = {"out": out, "x": x, "w": w, "x_scale": x_scale, "w_scale": f"{w}_scale"}
        return step(GEMM, sources, M=c.B, N=n, K=k, dtype=BF16)

    def quantised(payload: str, scale: str, x: str, k: int) -> OpStep:
        sources = {"payload": payload, "scale": scale, "x": x}
        return step(QUANT, sources, M=c.B, K=k, block_rows=1)

    rows, heads = {"M": c.B, "eps": c.eps}, c.H
    norm_q: dict[str, Source] = {
        "payload": "q_a",
        "scale": "q_a_scale",
        "x": ("a", lambda a: a[:, : c.R]),
        "weight": "q_norm",
    }
    write: dict[str, Source] = {
        "q": "q",
        "q_nope": ("heads", lambda q: q[..., :NOPE]),
        "q_pe": ("heads", lambda q: q[..., NOPE:]),
        "kv_c": ("a", lambda a: a[:, c.R : c.R + LATENT]),
        "k_pe": ("a", lambda a: a[:, c.R + LATENT :]),
        **{n: n for n in ("positions", "k_up", "k_up_scale", "kv_norm", "kv", "slots", "cos_sin")},
    }
    decode: dict[str, Source] = {
        "out": "latent",
        "q": "q",
        "kv": ("kv", lambda kv: kv.unsqueeze(2)),
        **{n: n for n in ("kv_indices", "kv_lens")},
    }
    if c.has("kv_scale"):
        write["kv_scale"] = decode["kv_scale"] = "kv_scale"
    value: dict[str, Source] = {
        "out": ("value", lambda v: v.view(-1, heads, V).transpose(0, 1)),
        "x": ("latent", lambda v: v.transpose(0, 1)),
        "w": "v_up",
        "w_scale": "v_up_scale",
    }
    last: dict[str, Source] = {"out": "out", "x": "value", "w": "o", "w_scale": "o_scale"}
    paged = {"N": c.P, "page": c.page, "T": c.B, "H": heads}
    table = {"B": c.B, "S": c.B * c.W, "P": c.P, "page": c.page, "H": heads, "T": c.B}
    return [
        quantised("x_q", "x_scale", "x", c.D),
        linear("a", "x_q", "x_scale", "qkv_a", c.A, c.D),
        step(NORM_QUANT, norm_q, K=c.R, quant="fp8_group", **rows),
        linear("heads", "q_a", "q_a_scale", "q_b", c.Q, c.R),
        step(ABSORB, write, P=c.C, dtype=BF16, interleaved=c.interleaved, eps=c.eps, **paged),
        step(DECODE, decode, ends=c.B, W=c.W, sm_scale=c.sm_scale, is_table=True, **table),
        step(BATCHED, value, B=heads, M=c.B, N=V, K=LATENT, dtype=BF16),
        step(LINEAR, last, M=c.B, N=c.D, K=c.V, dtype=BF16),
    ]


class Torch(Kernel):
    """The reference in plain torch, for every device."""

    name = "torch"
    is_capturable = False
    error = Steps.error

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(out: Tensor, *tensors: Any) -> None:
            values = {"sm_scale": c.sm_scale, "eps": c.eps, "interleaved": c.interleaved}
            out.copy_(mla_layer_decode_fp8_ref(*tensors, **values))

        return lambda *_sizes: run


def mla_layer_decode_fp8_ref(
    x: Tensor,
    kv: Tensor,
    slots: Tensor,
    positions: Tensor,
    kv_indices: Tensor,
    kv_lens: Tensor,
    qkv_a: Tensor,
    qkv_a_scale: Tensor,
    q_norm: Tensor,
    q_b: Tensor,
    q_b_scale: Tensor,
    kv_norm: Tensor,
    k_up: Tensor,
    k_up_scale: Tensor,
    v_up: Tensor,
    v_up_scale: Tensor,
    o: Tensor,
    o_scale: Tensor,
    cos_sin: Tensor,
    kv_scale: Tensor | None = None,
    sm_scale: float = SM_SCALE,
    eps: float = EPS,
    interleaved: bool = True,
) -> Tensor:
    """The result [B, D] in float32, and the cache written, by the references of the steps, each
    rounded to bfloat16; arguments as of mla_layer_decode_fp8.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: that of the op.
    """
    fp8, batch, rank = qkv_a.dtype, x.shape[0], q_norm.shape[0]

    def linear(rows: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
        payload, scale = quantise(rows, 1, False, fp8)
        return gemm_a8w8_blockscale_ref(payload, w, scale, w_scale, F32)

    a = linear(x, qkv_a, qkv_a_scale).to(BF16)
    q_a = rms_norm_ref(a[:, :rank], q_norm, None, eps).to(BF16)
    heads = linear(q_a, q_b, q_b_scale).to(BF16).view(batch, -1, NOPE + ROPE)
    kv_c = rms_norm_ref(a[:, rank : rank + LATENT], kv_norm, None, eps).to(BF16)
    by_head = heads[..., :NOPE].transpose(0, 1)
    q_nope = batched_gemm_a16w8_blockscale_ref(by_head, k_up, k_up_scale).transpose(0, 1)
    k_pe, values = a[:, rank + LATENT :], (cos_sin, None, kv_scale, None, None, interleaved, BF16)
    q = mla_rope_concat_cache_write_ref(
        positions, q_nope, heads[..., NOPE:], k_pe, kv_c, kv, slots, *values
    )
    latent = mla_decode_ref(
        q,
        kv.unsqueeze(2),
        None,
        kv_indices,
        sm_scale,
        batch,
        True,
        kv_lens=kv_lens,
        kv_scale=kv_scale,
    ).to(BF16)
    value = batched_gemm_a16w8_blockscale_ref(latent.transpose(0, 1), v_up, v_up_scale)
    return linear(value.transpose(0, 1).reshape(batch, -1).to(BF16), o, o_scale)


class _MlaLayerDecodeFp8(Op):
    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        fp8 = {f"{name}_dtype": fp8_of(arch) for name in ("qkv_a", "q_b", "k_up", "v_up", "o")}
        return super().call_of(arch, cu_num, **{**fp8, **values})

    def unsupported_reason(self, c: Call, *sizes: int) -> Refusal | None:
        named_sizes = dict(zip(self.declaration.sizes, sizes, strict=True))
        heads = named_sizes["H"]
        for name, size, count, formula in (
            ("qkv_a", "A", named_sizes["R"] + CACHE_ROW, "R + 576"),
            ("q_b", "Q", heads * (NOPE + ROPE), "192 a head"),
            ("o", "V", heads * V, "128 a head"),
        ):
            if named_sizes[size] != count:
                return (
                    name,
                    f"of {count} = {formula}",
                    str(named_sizes[size]),
                    "pass the layer's own",
                )
        for name in ("q_b", "k_up", "v_up", "o"):
            if getattr(c, f"{name}_dtype") != c.qkv_a_dtype:
                qkv_a_dtype_name, weight_dtype_name = (
                    str(dtype).removeprefix("torch.")
                    for dtype in (c.qkv_a_dtype, getattr(c, f"{name}_dtype"))
                )
                return (
                    name,
                    f"{qkv_a_dtype_name}, as qkv_a is",
                    weight_dtype_name,
                    "convert it first",
                )
        if (c.kv_dtype.itemsize == 1) != c.has("kv_scale") and c.tensors:
            cache_dtype_name = f"a cache of {str(c.kv_dtype).removeprefix('torch.')}"
            return (
                "kv_scale",
                "a tensor for a cache in FP8, and None for others",
                cache_dtype_name,
                "pass it so",
            )
        return None

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """DeepSeek-V3's at TP 8, and 4,096 tokens of context in pages of 64."""
        defaults = {"D": 7168, "R": 1536, "H": 16, "page": 64, "W": 64, "C": 8192}
        for name, size in defaults.items():
            sizes.setdefault(name, size)
        sizes.setdefault("P", sizes["B"] * sizes["W"])
        sizes.setdefault("A", sizes["R"] + CACHE_ROW)
        sizes.setdefault("Q", sizes["H"] * (NOPE + ROPE))
        sizes.setdefault("V", sizes["H"] * V)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        """Full tables of pages in order, whose last token is new; scales that leave values of 1."""
        pages = torch.arange(c.B * c.W, dtype=torch.int32, device=c.device).view(c.B, c.W)
        lens = torch.full((c.B,), c.W * c.page, dtype=torch.int32, device=c.device)
        slots = (pages[:, -1].long() + 1) * c.page - 1
        scales = {"qkv_a_scale": (c.A, c.D), "q_b_scale": (c.Q, c.R), "o_scale": (c.D, c.V)}
        fitted: dict[str, Any] = {"kv_indices": pages, "kv_lens": lens, "slots": slots}
        for name, (n, k) in scales.items():
            blocks = -(-n // BLOCK), k // BLOCK
            fitted[name] = torch.full(blocks, 0.01 * k**-0.5, device=c.device)
        for name, shape in (("k_up_scale", (c.H, 4, 1)), ("v_up_scale", (c.H, 1, 4))):
            fitted[name] = torch.full(shape, 5e-4, device=c.device)
        fitted["cos_sin"] = rope_cos_sin(c.C, ROPE, device=c.device, dtype=c.cos_sin_dtype)
        positions = torch.full((c.B,), min(c.W * c.page, c.C) - 1, device=c.device)
        fitted["positions"] = positions.to(c.positions_dtype)
        is_fp8 = c.kv_dtype.itemsize == 1
        fitted["kv_scale"] = torch.full((1,), 1 / 64, device=c.device) if is_fp8 else None
        return fitted

    def flops(self, c: Call) -> int:
        linear = c.A * c.D + c.Q * c.R + c.H * LATENT * (NOPE + V) + c.D * c.V
        attention = c.H * c.W * c.page * (CACHE_ROW + LATENT)
        return int(2 * c.B * (linear + attention))


OP = _MlaLayerDecodeFp8(
    "mla_layer_decode_fp8",
    """
    x: bf16[B, D] @16
    kv: bf16|e4m3|e4m3fnuz[P, page, 576] inout @16
    slots: i64|i32[B]
    positions: i64|i32[B]
    kv_indices: i32[B, W]
    kv_lens: i32[B]
    qkv_a: e4m3|e4m3fnuz[A, D] @16
    qkv_a_scale: f32[A^128, D/128] @16
    q_norm: bf16|f32[R] @16
    q_b: e4m3|e4m3fnuz[Q, R] @16
    q_b_scale: f32[Q^128, R/128] @16
    kv_norm: bf16|f32[512] @16
    k_up: e4m3|e4m3fnuz[H, 512, 128] @16
    k_up_scale: f32[H, 4, 1] @16
    v_up: e4m3|e4m3fnuz[H, 128, 512] @16
    v_up_scale: f32[H, 1, 4] @16
    o: e4m3|e4m3fnuz[D, V] @16
    o_scale: f32[D^128, V/128] @16
    cos_sin: bf16|f32[C, 64] @16
    kv_scale: f32[*1]?
    sm_scale: float
    eps: float
    interleaved: bool
    -> out: bf16[B, D]
    """,
    kernels=(Steps(), Torch()),
    positive="D R H",
    max_bytes=None,
    usual={"sm_scale": SM_SCALE, "eps": EPS, "interleaved": True},
    reference=mla_layer_decode_fp8_ref,
    shapes={"models": grid("B", [(1,), (16,), (128,)], kv_dtype=("fp8",))},
)


def mla_layer_decode_fp8(
    x: Tensor,
    kv: Tensor,
    slots: Tensor,
    positions: Tensor,
    kv_indices: Tensor,
    kv_lens: Tensor,
    qkv_a: Tensor,
    qkv_a_scale: Tensor,
    q_norm: Tensor,
    q_b: Tensor,
    q_b_scale: Tensor,
    kv_norm: Tensor,
    k_up: Tensor,
    k_up_scale: Tensor,
    v_up: Tensor,
    v_up_scale: Tensor,
    o: Tensor,
    o_scale: Tensor,
    cos_sin: Tensor,
    kv_scale: Tensor | None = None,
    sm_scale: float = SM_SCALE,
    eps: float = EPS,
    interleaved: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Return the layer's result for one new token of each sequence, whose row it caches.

    Weights are float8_e4m3fn on gfx950 and float8_e4m3fnuz on gfx942, scales float32 of 128 x 128.

    Parameters
    ----------
    x : [B, D] bfloat16, normalised; D a multiple of 128.
    kv : [pages, page_size, 576] bfloat16 or FP8: the paged cache, written at the new slots.
    slots : [B] int64 or int32: of each token page * page_size + offset.
    positions : [B] int64 or int32: rows of cos_sin.
    kv_indices : [B, pages of a sequence] int32, a block table.
    kv_lens : [B] int32: tokens of each sequence, the new one included.
    qkv_a, qkv_a_scale : [R + 576, D] FP8 and [..., D/128] float32: q_a_proj, then
        kv_a_proj_with_mqa.
    q_norm : [R] bfloat16 or float32, of q_a's norm.
    q_b, q_b_scale : [heads * 192, R] FP8 and [..., R/128] float32, of each head 128 without and 64
        with RoPE.
    kv_norm : [512] bfloat16 or float32, of kv_a's norm.
    k_up, k_up_scale : [heads, 512, 128] FP8 and [heads, 4, 1] float32: kv_b_proj's half of k,
        transposed, to be absorbed into q.
    v_up, v_up_scale : [heads, 128, 512] FP8 and [heads, 1, 4] float32: its half of v.
    o, o_scale : [D, heads * 128] FP8 and [D/128, ...] float32.
    cos_sin : [positions, 64] bfloat16 or float32 (rope_cos_sin, with YaRN where the model has it).
    kv_scale : one float32 for an FP8 cache: what it is to be multiplied by.
    sm_scale : of scores; with YaRN 192^-0.5 m(mscale_all_dim)^2 (rope_cos_sin).
    eps : of both norms.
    interleaved : RoPE's pairs are neighbours, as DeepSeek's weights have them.
    out : [B, D] bfloat16, written and returned.

    Raises ValueError for what does not fit, and what building a kernel raises.

    Source: DeepSeek-V3's model code (deepseek-ai/DeepSeek-V3) and DeepSeek-V2 (arXiv:2405.04434),
    2.1, with k and v absorbed.
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    cache = kv, slots, positions, kv_indices, kv_lens
    weights = qkv_a, qkv_a_scale, q_norm, q_b, q_b_scale, kv_norm
    absorbed = k_up, k_up_scale, v_up, v_up_scale
    values = cos_sin, kv_scale, sm_scale, eps, interleaved, out
    result: Tensor = call(x, *cache, *weights, *absorbed, o, o_scale, *values)
    return result
