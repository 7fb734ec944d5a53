"""kv_cache_write: key and value of each token written to its slot of paged caches.

    key_cache[slot] = key,  value_cache[slot] = value           slot = page * page_size + offset

Tokens with a slot outside of the caches, as -1, and those beyond the slots, are not cached. FP8
caches have fp8(x * (1 / scale)), saturated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit import compile_ops, u32
from rfops.quantization.rows import IN_TYPES

from .mla_cache_write import (
    NO_ROWS,
    Torch,
    cache_dtype_refusal,
    draw_scale,
    draw_slots,
    is_fp8,
    scale_refusal,
    slot_refusal,
    write_slots,
)
from .rotary import (
    INDEX_TYPES,
    MAX_UNITS,
    THREADS,
    VEC,
    Refusal,
    dtype_refusal,
    head_strides,
    place_refusal,
)

__all__ = ["kv_cache_write", "kv_cache_write_ref"]


def _variants(_arch: str) -> list[dict[str, Any]]:
    """Return the defines of the variants that `rfops build` makes: 1 and 8 heads of 128, with
    caches of 16 bits and of FP8."""
    common_defines = {"IN": "bf16", "SLOT": "Index64", "VEC": VEC, "DIM": 128, "THREADS": THREADS}
    return [
        {**common_defines, "HEADS": heads, "NESTED": 0, "CACHE_FP8": fp8}
        for heads in (1, 8)
        for fp8 in (0, 1)
    ]


@compile_ops("kv_cache_write", kernel="kv_cache_write", variants=_variants)
def kv_cache_write_kernel(
    slot_indices: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_tokens: u32,
    num_cache_slots: u32,
    page: u32,
    page_stride: u32,
    slot_stride: u32,
    head_stride: u32,
    key_token: u32,
    key_head: u32,
    value_token: u32,
    value_head: u32,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> None:
    """csrc/attention/kv_cache_write.hip: the shapes stand there."""


def _cache_strides(c: Call, name: str) -> tuple[int, ...] | None:
    """Return the strides in elements between pages, slots and heads of the cache `name`
    [pages, page, heads, D]; None where the elements of a head are not contiguous."""
    view = c.tensors.get(name)
    if view is None or view.contiguous:
        return c.page * c.G * c.D, c.G * c.D, c.D
    *strides, element = view.strides
    if c.N == 1:  # whose stride says nothing
        strides[0] = c.page * strides[1]
    return tuple(strides) if element == 1 or c.D == 1 else None


class Hip(Kernel):
    """The HIP kernel; heads that are not aligned go by pairs of elements."""

    name, module = "hip", "kv_cache_write"

    def numbers(self, c: Call) -> dict[str, int] | None:
        """Return the launch's numbers that say where rows begin, in elements; None where the kernel
        does not take such strides."""
        heads = [head_strides(c, name, c.G, c.D) for name in ("key", "value")]
        caches = [_cache_strides(c, f"{name}_cache") for name in ("key", "value")]
        if None in heads or caches[0] is None or caches[0] != caches[1]:
            return None
        page_stride, slot_stride, head_stride = caches[0]
        is_flat = page_stride == c.page * slot_stride  # then slots alone say where rows begin
        numbers = {
            "page": 1 if is_flat else c.page,
            "page_stride": slot_stride if is_flat else page_stride,
        }
        numbers |= {"slot_stride": slot_stride, "head_stride": head_stride}
        for name, strides in zip(("key", "value"), heads, strict=True):
            assert strides is not None
            numbers |= {f"{name}_token": strides[0], f"{name}_head": strides[1]}
        return numbers

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        numbers = self.numbers(c)
        if numbers is None:
            return f"{NO_ROWS}, or the caches do not lie alike"
        if is_fp8(c.key_cache_dtype) and c.key_cache_dtype != fp8_of(c.arch):
            return f"{c.arch} converts to {fp8_of(c.arch)}, not {c.key_cache_dtype}"
        if c.D % 2:
            return "heads of an odd number of elements"
        max_number = max(c.S * c.G * c.D, c.N * c.page, *numbers.values())
        return (
            "2^31 units, slots or elements of a stride, or more"
            if max_number >= MAX_UNITS
            else None
        )

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        numbers = self.numbers(c)
        assert numbers is not None
        size, rows = c.key_dtype.itemsize, [n for name, n in numbers.items() if name != "page"]
        is_aligned = c.D % (2 * VEC) == 0 and all(n * size % 16 == 0 for n in rows)
        is_aligned = is_aligned and c.align("key", "value", "key_cache", "value_cache") >= 16
        return {
            "IN": IN_TYPES[c.key_dtype],
            "SLOT": INDEX_TYPES[c.slots_dtype],
            "VEC": VEC if is_aligned else 1,
            "DIM": c.D,
            "HEADS": c.G,
            "THREADS": THREADS,
            "NESTED": int(numbers["page"] > 1),
            "CACHE_FP8": int(is_fp8(c.key_cache_dtype)),
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        bound = kv_cache_write_kernel.bind(c.device, defines, c.arch)
        launch = bound.prepare((THREADS, 1, 1), self.arguments, sources={"slot_indices": "slots"})
        units_of_token = c.G * c.D // (2 * defines["VEC"])

        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            numbers = self.numbers(sized)
            assert numbers is not None
            groups = -(-sized.S * units_of_token // THREADS)
            return launch(
                (groups, 2, 1), num_tokens=sized.S, num_cache_slots=sized.N * sized.page, **numbers
            )

        return run_of


def kv_cache_write_ref(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Write key and value [T, heads, D], bfloat16 or float16, to the slots of their caches in plain
    torch; arguments as of kv_cache_write.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: Kwon et al., PagedAttention (arXiv:2309.06180).
    """
    write_slots(key, key_cache, slots, key_scale)
    write_slots(value, value_cache, slots, value_scale)


class _KvCacheWrite(Op):
    def is_empty(self, c: Call) -> bool:
        return 0 in (c.S, c.G, c.D)

    def unsupported_reason(self, c: Call, *sizes: int) -> Refusal | None:
        refusal = dtype_refusal(c, "key", "value") or dtype_refusal(c, "key_cache", "value_cache")
        named_sizes = dict(zip(self.declaration.sizes, sizes, strict=True))
        refusal = refusal or place_refusal(c, self.declaration, named_sizes)
        refusal = refusal or cache_dtype_refusal(c, "key_cache", "key")
        for name in ("key_scale", "value_scale"):
            refusal = refusal or scale_refusal(c, name, c.key_cache_dtype)
        return refusal or slot_refusal(named_sizes)

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """Heads of 128, and as many pages of 64 slots as tokens need."""
        sizes.setdefault("D", 128)
        sizes.setdefault("page", 64)
        sizes.setdefault("S", sizes["T"])
        sizes.setdefault("N", -(-sizes["S"] // sizes["page"]) or 1)

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **arguments: Any) -> Call:
        if "key_cache_dtype" in arguments:
            arguments.setdefault("value_cache_dtype", arguments["key_cache_dtype"])
        return super().call_of(arch, cu_num, **arguments)

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        scales = {f"{name}_scale": draw_scale(c, c.key_cache_dtype) for name in ("key", "value")}
        return {"slots": draw_slots(c, draw), **scales}

    def traffic(self, c: Call) -> int:
        """Rows and slots of the tokens once."""
        row = 2 * c.G * c.D * (c.key_dtype.itemsize + c.key_cache_dtype.itemsize)
        return int(c.S * (row + c.slots_dtype.itemsize))

    def roundings(self, c: Call) -> int:
        return 1


OP = _KvCacheWrite(
    "kv_cache_write",
    """
    key: bf16|f16[T, G, D] strided
    value: bf16|f16[T, G, D] strided
    key_cache: bf16|f16|e4m3|e4m3fnuz[N, page, G, D] strided inout
    value_cache: bf16|f16|e4m3|e4m3fnuz[N, page, G, D] strided inout
    slots: i64|i32[S]
    key_scale: f32[*1]?
    value_scale: f32[*1]?
    """,
    kernels=(Hip(), Torch(kv_cache_write_ref)),
    coarse={"T": 0, "S": 0, "N": 0},
    max_bytes=None,
    hints=dict.fromkeys(("key_cache", "value_cache"), "view bytes as float8"),
    reference=kv_cache_write_ref,
    shapes={
        "models": grid(
            "G T", [(1, 1), (1, 16), (8, 16384)], key_cache_dtype=(torch.bfloat16, "fp8")
        )
    },
)


def kv_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Write key and value to the slots of their paged caches.

    Parameters
    ----------
    key, value : [T, heads, D] bfloat16 or float16; any strides. HIP takes heads of neighbouring
        elements.
    key_cache, value_cache : [pages, page_size, heads, D] of key's dtype or FP8; written. Any
        strides, so also memory of [pages, heads, page_size, D]. HIP takes caches that lie alike.
    slots : [S] int64 or int32, S <= T: of a token page * page_size + offset, or any
        number outside of the caches for a token that is not cached.
    key_scale, value_scale : one float32 each for FP8 caches: what they are to be multiplied by.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: Kwon et al., PagedAttention (arXiv:2309.06180).
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    call(key, value, key_cache, value_cache, slots, key_scale, value_scale)
