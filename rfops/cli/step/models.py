"""The launches of one decode step of large language models, as a GPU of a tensor-parallel group has
them: what `rfops bench step` times.

Sizes are the models' own config.json. Linears of FP8 have scales of 1 x 128 and 128 x 128, as
DeepSeek-V3's checkpoint; a shared expert is one expert more of `fused_moe_fp8`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BF16, FP8 = 2, 1  # bytes
_BLOCK = 128


class Place(NamedTuple):
    """Where a step runs."""

    parts: int  # GPUs of a tensor-parallel group
    batch: int  # sequences
    context: int  # tokens of each in the cache


@dataclass(frozen=True)
class Part:
    """A launch, or several of one op. Without an op its time is what its bytes take: rfops has no
    kernel for it. `size` of `all-reduce`: bytes that each GPU gives."""

    block: str  # attention, experts, dense, head
    name: str
    op: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


class Model(NamedTuple):
    """Blocks with how often a step has each."""

    layers: Mapping[str, int]
    parts: Callable[[Place], Iterator[Part]]


ALL_REDUCE = "all-reduce"


def _linear(block: str, name: str, m: int, n: int, k: int) -> Iterator[Part]:
    """Activations quantised, then multiplied."""
    yield Part(block, f"{name}: quantise", "quant_fp8_blockscale", {"M": m, "K": k})
    yield _product(block, name, m, n, k)


def _product(block: str, name: str, m: int, n: int, k: int) -> Part:
    return Part(block, name, "gemm_a8w8_blockscale", {"M": m, "N": n, "K": k})


def _norm(block: str, name: str, m: int, k: int, **more: Any) -> Part:
    """rms_norm of rows, with the residual where `more` says so."""
    return Part(block, name, "rms_norm", {"M": m, "K": k, **more})


def _norm_quant(block: str, name: str, m: int, k: int, **more: Any) -> Part:
    """The same and its result quantised for the next linear."""
    return Part(block, name, "rms_norm_quant", {"M": m, "K": k, **more})


def _deepseek(
    d: int, heads: int, q_rank: int, i: int, experts: int, groups: int, vocabulary: int, dense: int
) -> Callable[[Place], Iterator[Part]]:
    """Multi-head latent attention of 512 + 64, absorbed, and experts with a shared one."""
    rank, rope, nope, value = 512, 64, 128, 128

    def parts(p: Place) -> Iterator[Part]:
        m, num_heads = p.batch, heads // p.parts
        block = "attention"
        yield _norm_quant(block, "norm of the input, residual, quantise", m, d, residual=True)
        yield _product(block, "q_a, kv_a", m, q_rank + rank + rope, d)
        yield _norm_quant(block, "norm of q_a, quantise", m, q_rank)
        yield _product(block, "q_b", m, num_heads * (nope + rope), q_rank)
        yield _norm(block, "norm of kv_a", m, rank)
        yield _absorbed("into the latent space", num_heads, m, rank, nope)
        shape = {"T": m, "H": num_heads, "kv_dtype": "fp8", "interleaved": True}
        yield Part(block, "rope, cache write", "mla_rope_concat_cache_write", shape)
        shape = {"B": m, "H": num_heads, "S": m * p.context, "kv_dtype": "fp8"}
        yield Part(block, "latent attention", "mla_decode", shape)
        yield _absorbed("out of the latent space", num_heads, m, value, rank)
        yield from _linear(block, "o", m, d, num_heads * value)
        yield Part(block, ALL_REDUCE, size=m * d * BF16)
        block = "experts"
        yield _norm(block, "norm, residual", m, d, residual=True)
        yield _bf16(block, "gate", m, experts, d)
        shape = {
            "M": m,
            "E": experts,
            "K": 8,
            "num_groups": groups,
            "topk_groups": (groups + 1) // 2,
        }
        yield Part(
            block,
            "routing",
            "grouped_topk",
            shape | {"bias": True, "renormalize": True, "scale": 2.5},
        )
        shape = {"M": m, "D": d, "I": i // p.parts, "E": experts + 1, "K": 8, "R": experts}
        yield Part(block, "experts, the shared one too", "fused_moe_fp8", shape)
        yield Part(block, ALL_REDUCE, size=m * d * BF16)
        block = "dense"
        yield _norm_quant(block, "norm, residual, quantise", m, d, residual=True)
        yield _product(block, "gate, up", m, 2 * dense // p.parts, d)
        silu = {"M": m, "N": 2 * dense // p.parts, "activation": "silu"}
        yield Part(block, "silu, quantise", "act_mul_quant", silu)
        yield _product(block, "down", m, d, dense // p.parts)
        yield Part(block, ALL_REDUCE, size=m * d * BF16)
        yield from _head(p, d, vocabulary)

    return parts


def _absorbed(name: str, heads: int, m: int, n: int, k: int) -> Part:
    shape = {"B": heads, "M": m, "N": n, "K": k}
    return Part("attention", f"{name}, by heads", "batched_gemm_a16w16", shape)


def _grouped_query(
    d: int,
    heads: int,
    kv_heads: int,
    width: int,
    routed: Callable[[Place], Iterator[Part]],
    vocabulary: int,
    linear: Callable[[str, str, int, int, int], Iterator[Part]],
    window: int = 0,
    has_head_norms: bool = True,
) -> Callable[[Place], Iterator[Part]]:
    """Grouped-query attention, of which every other layer may see a window."""

    def parts(p: Place) -> Iterator[Part]:
        m, num_heads, kv = p.batch, heads // p.parts, max(1, kv_heads // p.parts)
        block = "attention"
        yield _norm(block, "norm of the input, residual", m, d, residual=True)
        yield from linear(block, "q, k, v", m, (num_heads + 2 * kv) * width, d)
        if has_head_norms:
            yield _norm(block, "norm of q, by heads", m * num_heads, width)
            yield _norm(block, "norm of k, by heads", m * kv, width)
        yield Part(block, "rope", "rope", {"T": m, "H": num_heads, "G": kv, "D": width})
        shape = {"T": m, "G": kv, "D": width, "key_cache_dtype": "fp8"}
        yield Part(block, "cache write", "kv_cache_write", shape)
        num_visible = (p.context + min(p.context, window)) // 2 if window else p.context
        yield Part(block, "attention", size=2 * m * num_visible * kv * width * FP8)
        yield from linear(block, "o", m, d, num_heads * width)
        yield Part(block, ALL_REDUCE, size=m * d * BF16)
        yield _norm("experts", "norm, residual", m, d, residual=True)
        yield from routed(p)
        yield Part("experts", ALL_REDUCE, size=m * d * BF16)
        yield from _head(p, d, vocabulary)

    return parts


def _head(p: Place, d: int, vocabulary: int) -> Iterator[Part]:
    yield _norm("head", "last norm", p.batch, d)
    yield _bf16("head", "logits, bf16", p.batch, vocabulary // p.parts, d)


def _padded(size: int, multiple: int) -> int:
    """What engines pad an expert's share to, whose scales are of blocks."""
    return -(-size // multiple) * multiple


def _qwen(p: Place) -> Iterator[Part]:
    router = {"M": p.batch, "D": 4096, "E": 128, "K": 8}
    yield Part("experts", "gate, routing", "moe_router", router)
    shape = {"M": p.batch, "D": 4096, "I": _padded(1536 // p.parts, _BLOCK), "E": 128, "K": 8}
    yield Part("experts", "experts", "fused_moe_fp8", {**shape, "R": 128})


def _gpt_oss(p: Place) -> Iterator[Part]:
    yield _bf16("experts", "gate", p.batch, 128, 2880)
    yield Part("experts", "routing", "topk_softmax", {"M": p.batch, "E": 128, "K": 4})
    shape = {"M": p.batch, "D": 2880, "I": _padded(2880 // p.parts, 32), "E": 128, "K": 4, "R": 128}
    yield Part("experts", "experts", "fused_moe_mxfp4", shape)


def _bf16(block: str, name: str, m: int, n: int, k: int) -> Part:
    return Part(block, name, "gemm_a16w16", {"M": m, "N": n, "K": k})


def _bf16_linear(block: str, name: str, m: int, n: int, k: int) -> Iterator[Part]:
    yield _bf16(block, f"{name}, bf16", m, n, k)


MODELS: MutableMapping[str, Model] = {
    "deepseek-v3": Model(
        {"attention": 61, "experts": 58, "dense": 3, "head": 1},
        _deepseek(7168, 128, 1536, 2048, 256, 8, 129280, 18432),
    ),
    "kimi-k2": Model(
        {"attention": 61, "experts": 60, "dense": 1, "head": 1},
        _deepseek(7168, 64, 1536, 2048, 384, 1, 163840, 18432),
    ),
    "qwen3-235b": Model(
        {"attention": 94, "experts": 94, "head": 1},
        _grouped_query(4096, 64, 4, 128, _qwen, 151936, _linear),
    ),
    "gpt-oss-120b": Model(
        {"attention": 36, "experts": 36, "head": 1},
        _grouped_query(2880, 64, 8, 64, _gpt_oss, 201088, _bf16_linear, 128, False),
    ),
}
