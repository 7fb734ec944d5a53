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


class Setup(NamedTuple):
    """Where a step runs."""

    num_gpus: int  # GPUs of a tensor-parallel group
    batch: int  # sequences
    context: int  # tokens of each in the cache


@dataclass(frozen=True)
class Component:
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
    components: Callable[[Setup], Iterator[Component]]


ALL_REDUCE = "all-reduce"


def _linear(block: str, name: str, m: int, n: int, k: int) -> Iterator[Component]:
    """Activations quantised and multiplied."""
    shape = {"M": m, "N": n, "K": k}
    yield Component(block, f"{name}, quantised", "linear_fp8_blockscale", shape)


def _product(block: str, name: str, m: int, n: int, k: int) -> Component:
    return Component(block, name, "gemm_a8w8_blockscale", {"M": m, "N": n, "K": k})


def _norm(block: str, name: str, m: int, k: int, **options: Any) -> Component:
    """rms_norm of rows, with the residual where `options` say so."""
    return Component(block, name, "rms_norm", {"M": m, "K": k, **options})


def _norm_quant(block: str, name: str, m: int, k: int, **options: Any) -> Component:
    """The same and its result quantised for the next linear."""
    return Component(block, name, "rms_norm_quant", {"M": m, "K": k, **options})


def _deepseek(
    d: int, heads: int, q_rank: int, i: int, experts: int, groups: int, vocabulary: int, dense: int
) -> Callable[[Setup], Iterator[Component]]:
    """Multi-head latent attention of 512 + 64, absorbed, and experts with a shared one."""
    rank, rope, nope, value = 512, 64, 128, 128

    def components(p: Setup) -> Iterator[Component]:
        m, num_heads = p.batch, heads // p.num_gpus
        block = "attention"
        yield _norm_quant(block, "norm of the input, residual, quantise", m, d, residual=True)
        yield _product(block, "q_a, kv_a", m, q_rank + rank + rope, d)
        yield _norm_quant(block, "norm of q_a, quantise", m, q_rank)
        yield _product(block, "q_b", m, num_heads * (nope + rope), q_rank)
        shape = {"T": m, "H": num_heads, "L": rank, "D": nope, "kv_dtype": "fp8"}
        shape |= {"interleaved": True, "kv_norm": True}
        name = "into the latent space, norm of kv_a, rope, cache write"
        yield Component(block, name, "mla_absorb_cache_write", shape)
        shape = {"B": m, "H": num_heads, "S": m * p.context, "kv_dtype": "fp8"}
        yield Component(block, "latent attention", "mla_decode", shape)
        yield _absorbed("out of the latent space", num_heads, m, value, rank)
        yield from _linear(block, "o", m, d, num_heads * value)
        yield Component(block, ALL_REDUCE, size=m * d * BF16)
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
        yield Component(
            block,
            "routing",
            "grouped_topk",
            shape | {"bias": True, "renormalize": True, "scale": 2.5},
        )
        shape = {"M": m, "D": d, "I": i // p.num_gpus, "E": experts + 1, "K": 8, "R": experts}
        yield Component(block, "experts, the shared one too", "fused_moe_fp8", shape)
        yield Component(block, ALL_REDUCE, size=m * d * BF16)
        block = "dense"
        yield _norm_quant(block, "norm, residual, quantise", m, d, residual=True)
        yield _product(block, "gate, up", m, 2 * dense // p.num_gpus, d)
        silu = {"M": m, "N": 2 * dense // p.num_gpus, "activation": "silu"}
        yield Component(block, "silu, quantise", "act_mul_quant", silu)
        yield _product(block, "down", m, d, dense // p.num_gpus)
        yield Component(block, ALL_REDUCE, size=m * d * BF16)
        yield from _head(p, d, vocabulary)

    return components


def _absorbed(name: str, heads: int, m: int, n: int, k: int) -> Component:
    shape = {"B": heads, "M": m, "N": n, "K": k}
    return Component("attention", f"{name}, by heads", "batched_gemm_a16w16", shape)


def _grouped_query(
    d: int,
    heads: int,
    kv_heads: int,
    width: int,
    routed: Callable[[Setup], Iterator[Component]],
    vocabulary: int,
    linear: Callable[[str, str, int, int, int], Iterator[Component]],
    window: int = 0,
    has_head_norms: bool = True,
) -> Callable[[Setup], Iterator[Component]]:
    """Grouped-query attention, of which every other layer may see a window."""

    def components(p: Setup) -> Iterator[Component]:
        m, num_heads, kv = p.batch, heads // p.num_gpus, max(1, kv_heads // p.num_gpus)
        block = "attention"
        yield _norm(block, "norm of the input, residual", m, d, residual=True)
        yield from linear(block, "q, k, v", m, (num_heads + 2 * kv) * width, d)
        if has_head_norms:
            yield _norm(block, "norm of q, by heads", m * num_heads, width)
            yield _norm(block, "norm of k, by heads", m * kv, width)
        yield Component(block, "rope", "rope", {"T": m, "H": num_heads, "G": kv, "D": width})
        shape = {"T": m, "G": kv, "D": width, "key_cache_dtype": "fp8"}
        yield Component(block, "cache write", "kv_cache_write", shape)
        num_visible = (p.context + min(p.context, window)) // 2 if window else p.context
        yield Component(block, "attention", size=2 * m * num_visible * kv * width * FP8)
        yield from linear(block, "o", m, d, num_heads * width)
        yield Component(block, ALL_REDUCE, size=m * d * BF16)
        yield _norm("experts", "norm, residual", m, d, residual=True)
        yield from routed(p)
        yield Component("experts", ALL_REDUCE, size=m * d * BF16)
        yield from _head(p, d, vocabulary)

    return components


def _head(p: Setup, d: int, vocabulary: int) -> Iterator[Component]:
    yield _norm("head", "last norm", p.batch, d)
    yield _bf16("head", "logits, bf16", p.batch, vocabulary // p.num_gpus, d)


def _padded(size: int, multiple: int) -> int:
    """What engines pad an expert's share to, whose scales are of blocks."""
    return -(-size // multiple) * multiple


def _qwen(p: Setup) -> Iterator[Component]:
    router = {"M": p.batch, "D": 4096, "E": 128, "K": 8}
    yield Component("experts", "gate, routing", "moe_router", router)
    shape = {"M": p.batch, "D": 4096, "I": _padded(1536 // p.num_gpus, _BLOCK), "E": 128, "K": 8}
    yield Component("experts", "experts", "fused_moe_fp8", {**shape, "R": 128})


def _gpt_oss(p: Setup) -> Iterator[Component]:
    yield _bf16("experts", "gate", p.batch, 128, 2880)
    yield Component("experts", "routing", "topk_softmax", {"M": p.batch, "E": 128, "K": 4})
    shape = {
        "M": p.batch,
        "D": 2880,
        "I": _padded(2880 // p.num_gpus, 32),
        "E": 128,
        "K": 4,
        "R": 128,
    }
    yield Component("experts", "experts", "fused_moe_mxfp4", shape)


def _bf16(block: str, name: str, m: int, n: int, k: int) -> Component:
    return Component(block, name, "gemm_a16w16", {"M": m, "N": n, "K": k})


def _bf16_linear(block: str, name: str, m: int, n: int, k: int) -> Iterator[Component]:
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
