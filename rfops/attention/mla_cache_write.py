"""Rows of the latent KV cache of MLA, kv_c | k_pe, written to the slots of their tokens; alone, or
after RoPE of k_pe and q_pe (rfops/attention/rotary.py).

| op | what else it writes |
|---|---|
| mla_cache_write | nothing: k_pe is rotated already |
| mla_rope_cache_write | q_pe and k_pe, rotated in place |
| mla_rope_concat_cache_write | q = q_nope / rope(q_pe) side by side, of 16 bits or FP8 |

A slot is page * page_size + offset; tokens with a slot outside of the cache, as -1, and those
beyond the slots, are not cached. An FP8 cache has fp8(x * (1 / kv_scale)), saturated, of x rounded
to its dtype, so that the fused ops have the bits of rope and mla_cache_write one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.guards import check_no_overlap
from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.jit import compile_ops, u32
from rfops.quantization.fp8_blockscale import max_of
from rfops.quantization.rows import IN_TYPES, RowStrides, row_strides

from .mla_layer_parts import LATENT, ROPE
from .rotary import (
    INDEX_TYPES,
    MAX_UNITS,
    THREADS,
    VEC,
    Refusal,
    angle_refusal,
    angle_rows,
    angles_are_aligned,
    define_values,
    dtype_refusal,
    head_strides,
    place_refusal,
    rotary_dim,
    rotated,
    row_stride,
    split_angles,
    sum_of_products,
)

__all__ = [
    "mla_cache_write",
    "mla_cache_write_ref",
    "mla_rope_cache_write",
    "mla_rope_cache_write_ref",
    "mla_rope_concat_cache_write",
    "mla_rope_concat_cache_write_ref",
]
NO_ROWS = "an argument has no rows of neighbouring elements"
_ROWS = ("kv_c", "k_pe", "k_pe_out", "kv", "q_pe", "q_nope", "q")
_SCALE = 1 / 64  # of random problems
# Arguments of the device code that an op has not, by its Query.
_ABSENT = {
    "kNone": "positions cos_sin sin q_pe q_nope q q_scale k_pe_out",
    "kInPlace": "q_nope q q_scale",
    "kConcat": "",
}


def _variants(_arch: str) -> list[dict[str, Any]]:
    """Return the defines of the variants that `rfops build` makes: DeepSeek's rows with 16 heads
    (TP 8), q and cache each of 16 bits or FP8, angles of bf16 and fp32."""
    common_defines = {
        "IN": "bf16",
        "POSITION": "Index64",
        "SLOT": "Index64",
        "VEC": VEC,
        "THREADS": THREADS,
    }
    common_defines |= {"ROTARY": ROPE, "LATENT": LATENT, "HEADS": 16, "INTERLEAVED": 1, "NESTED": 0}
    queries = (("kInPlace", 0, 0), ("kInPlace", 1, 0), ("kConcat", 0, 0), ("kConcat", 1, 1))
    return [
        {**common_defines, "ANGLE": angle, "QUERY": query, "CACHE_FP8": cache, "QUERY_FP8": q}
        | {"KEY_OUT": int(query == "kInPlace")}
        for query, cache, q in queries
        for angle in ("bf16", "f32")
    ]


@compile_ops("mla_cache_write", kernel="mla_cache_write", variants=_variants)
def mla_cache_write_kernel(
    num_key_groups: u32,
    num_tokens: u32,
    num_slots: u32,
    k_pe_row: u32,
    slot_indices: torch.Tensor,
    positions: torch.Tensor | None,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv_scale: torch.Tensor | None,
    kv_c_row: u32,
    num_q_pe_groups: u32,
    kv: torch.Tensor,
    num_cache_slots: u32,
    page: u32,
    page_stride: u32,
    slot_stride: u32,
    cos_sin: torch.Tensor | None,
    sin: torch.Tensor | None,
    angle_row: u32,
    num_positions: u32,
    sin_offset: u32,
    k_pe_out_row: u32,
    k_pe_out: torch.Tensor | None,
    q_pe: torch.Tensor | None,
    q_nope: torch.Tensor | None,
    q: torch.Tensor | None,
    q_pe_token: u32,
    q_pe_head: u32,
    q_nope_token: u32,
    q_nope_head: u32,
    q_token: u32,
    q_head: u32,
    q_scale: torch.Tensor | None,
) -> None:
    """csrc/attention/mla_cache_write.hip: the shapes stand there."""


def is_fp8(dtype: torch.dtype) -> bool:
    """Whether elements have one byte."""
    return dtype.itemsize == 1


def cache_rows(c: Call, name: str, columns: int) -> RowStrides | None:
    """Return where the slots of the cache `name` [pages, page, columns] begin; None where the
    elements of a slot are not contiguous."""
    return row_strides(c.tensors.get(name), columns)


def unlike_query_reason(c: Call) -> str | None:
    """Why HIP kernels, which copy q_nope to a q of 16 bits, do not take the call; else None."""
    if is_fp8(c.dtype) or c.dtype == c.q_nope_dtype:
        return None
    return f"it writes q of q_nope's {c.q_nope_dtype} or FP8, not {c.dtype}"


class Hip(Kernel):
    """The HIP kernel of the three ops; rows that are not aligned go by pairs of elements."""

    name, module = "hip", "mla_cache_write"

    def __init__(self, query: str) -> None:
        self.query = query  # Query of the device code

    def numbers(self, c: Call) -> dict[str, int] | None:
        """Return the launch's numbers that say where rows begin, in elements; None where the kernel
        does not take such strides."""
        kv, numbers = cache_rows(c, "kv", c.W), {}
        numbers["k_pe_row"] = row_stride(c, "k_pe", c.R)
        numbers["kv_c_row"] = row_stride(c, "kv_c", c.L)
        numbers["k_pe_out_row"] = row_stride(c, "k_pe_out" if c.has("k_pe_out") else "k_pe", c.R)
        heads: dict[str, tuple[int, int] | None] = dict.fromkeys(("q_pe", "q_nope", "q"), (0, 0))
        angles: tuple[int, int] | None = (0, 0)
        if self.query != "kNone":
            heads["q_pe"] = head_strides(c, "q_pe", c.H, c.R)
            angles = angle_rows(c)
        if self.query == "kConcat":
            heads["q_nope"] = head_strides(c, "q_nope", c.H, c.L)
            heads["q"] = head_strides(c, "q", c.H, c.W)
        if kv is None or angles is None or None in numbers.values() or None in heads.values():
            return None
        for name, strides in heads.items():
            assert strides is not None
            numbers[f"{name}_token"], numbers[f"{name}_head"] = strides
        numbers["angle_row"], numbers["sin_offset"] = angles
        numbers |= {
            "page": kv.inner,
            "page_stride": kv.outer_stride,
            "slot_stride": kv.inner_stride,
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def vec_of(self, c: Call, numbers: Mapping[str, int]) -> int:
        """Return how many elements a lane loads at once: VEC where all rows are aligned to 16
        bytes, otherwise 1."""
        size = c.kv_c_dtype.itemsize
        rows = [n for name, n in numbers.items() if "_row" in name or "_token" in name]
        rows += [n for name, n in numbers.items() if "_head" in name]
        rows += [numbers["page_stride"], numbers["slot_stride"], c.L]
        is_aligned = all(number * size % 16 == 0 for number in rows) and c.R % (2 * VEC) == 0
        is_aligned = is_aligned and c.L % (2 * VEC) == 0
        is_aligned = is_aligned and c.align(*_ROWS) >= 16
        if self.query != "kNone":
            is_aligned = is_aligned and angles_are_aligned(c)
        return VEC if is_aligned else 1

    def has_key_out(self, c: Call) -> bool:
        """Whether the rotated k_pe is written beside the cache."""
        return self.query == "kInPlace" or c.has("k_pe_out")

    def groups_of(self, c: Call, vec: int) -> tuple[int, int, int]:
        """Return how many workgroups write the cache's rows, q_pe's and q_nope's, where a lane has
        `vec` pairs."""
        heads = 0 if self.query == "kNone" else c.H
        nope_heads = heads if self.query == "kConcat" else 0
        units = (c.R + c.L, heads * c.R, nope_heads * c.L)
        key, q_pe, q_nope = (-(-c.T * num_elems // (2 * vec) // THREADS) for num_elems in units)
        return key, q_pe, q_nope

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        numbers = self.numbers(c)
        if numbers is None:
            return NO_ROWS
        for dtype in (c.kv_dtype, c.dtype if self.query == "kConcat" else c.kv_dtype):
            if is_fp8(dtype) and dtype != fp8_of(c.arch):
                return f"{c.arch} converts to {fp8_of(c.arch)}, not {dtype}"
        if self.query == "kConcat" and (reason := unlike_query_reason(c)):
            return reason
        if c.R % 2 or c.L % 2:
            return "rows of an odd number of elements"
        units = THREADS * max(self.groups_of(c, 1))
        return (
            "2^31 units, slots or elements of a stride, or more"
            if (max(units, c.N * c.page, *numbers.values()) >= MAX_UNITS)
            else None
        )

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        numbers = self.numbers(c)
        assert numbers is not None
        rotation_defines = {
            "ANGLE": "f32",
            "POSITION": "Index64",
            "INTERLEAVED": 0,
            "THREADS": THREADS,
        }
        if self.query != "kNone":
            rotation_defines = define_values(c)
        return {
            **rotation_defines,
            "ROTARY": c.R,
            "HEADS": 1 if self.query == "kNone" else max(c.H, 1),
            "IN": IN_TYPES[c.kv_c_dtype],
            "SLOT": INDEX_TYPES[c.slots_dtype],
            "VEC": self.vec_of(c, numbers),
            "LATENT": c.L,
            "NESTED": int(numbers["page"] > 1),
            "CACHE_FP8": int(is_fp8(c.kv_dtype)),
            "QUERY_FP8": int(self.query == "kConcat" and is_fp8(c.dtype)),
            "QUERY": self.query,
            "KEY_OUT": int(self.has_key_out(c)),
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        bound = mla_cache_write_kernel.bind(c.device, defines, c.arch)
        absent = _ABSENT[self.query].split()
        sources: dict[str, str | None] = {"slot_indices": "slots", **dict.fromkeys(absent)}
        if self.query != "kNone" and not c.has("sin"):
            sources["sin"] = "cos_sin"
        if self.query == "kInPlace":
            sources["k_pe_out"] = "k_pe"
        launch = bound.prepare((THREADS, 1, 1), self.arguments, sources=sources)

        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            numbers = self.numbers(sized)
            assert numbers is not None
            key, q_pe, q_nope = self.groups_of(sized, defines["VEC"])
            counts = {"num_key_groups": key, "num_q_pe_groups": q_pe}
            counts |= {"num_tokens": sized.T, "num_slots": sized.S}
            counts["num_cache_slots"] = sized.N * sized.page
            counts["num_positions"] = sized.P if self.query != "kNone" else 0
            return launch((key + q_pe + q_nope, 1, 1), **counts, **numbers)

        return run_of


# ---------------------------------------------------------------- plain torch


def write_slots(
    rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Write rows [T, ...] to their slots [S] of cache [pages, page, ...], converted as to_dtype
    does. Rows whose slot is outside of the cache, and rows S .. T - 1, are not written."""
    num_slots, page = cache.shape[0] * cache.shape[1], cache.shape[1]
    if 0 in (len(slots), num_slots):
        return
    # A stream capture takes no count from the device, so rows without a slot repeat the first that
    # has one, or what stands in slot 0 where none has.
    is_used = (slots >= 0) & (slots < num_slots)
    first = is_used.long().argmax().view(1)
    is_any_used = is_used.index_select(0, first)
    slot_idx = slots.long().masked_fill(~is_used, 0)
    slot_idx = torch.where(is_used, slot_idx, slot_idx.index_select(0, first))
    payload = _bits(to_dtype(rows[: len(slots)], cache.dtype, scale))
    bits, columns = _bits(cache), [1] * (payload.dim() - 1)
    repeated = payload.index_select(0, first).where(is_any_used.view(1, *columns), bits[0, :1])
    payload = payload.where(is_used.view(-1, *columns), repeated)
    bits[slot_idx // page, slot_idx % page] = payload


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return a view of x in which FP8, which torch neither selects nor scatters everywhere, is
    bytes."""
    return x.view(torch.uint8) if is_fp8(x.dtype) else x


def to_dtype(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None) -> torch.Tensor:
    """Return x in `dtype`: rounded to 16 bits, or for FP8 divided by `scale` [1] and saturated."""
    if not is_fp8(dtype):
        return x.to(dtype)
    assert scale is not None
    max_value = max_of(dtype)
    return (x.float() * (1.0 / scale.float().flatten())).clamp(-max_value, max_value).to(dtype)


def mla_cache_write_ref(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: torch.Tensor | None = None,
) -> None:
    """Write kv_c [T, L] | k_pe [T, R], bfloat16 or float16, to the slots of kv in plain torch;
    arguments as of mla_cache_write.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2: the compressed KV and the shared key are cached.
    """
    write_slots(torch.cat((kv_c, k_pe), -1), kv, slots, kv_scale)


def mla_rope_cache_write_ref(
    positions: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    interleaved: bool = False,
) -> None:
    """rope_ref of q_pe [T, heads, R] and k_pe, bfloat16 or float16, then mla_cache_write_ref;
    arguments as of mla_rope_cache_write.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.3, decoupled RoPE.
    """
    _in_place(rotated, positions, q_pe, k_pe, kv_c, kv, slots, cos_sin, sin, kv_scale, interleaved)


def _in_place_sums(*args: Any) -> None:
    """Write sums of |products| where mla_rope_cache_write_ref writes rotated elements."""
    _in_place(sum_of_products, *args)


def _in_place(
    rotate: Any,
    positions: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """Replace q_pe and k_pe by `rotate` of them (`rotated`, or sum_of_products for error bounds),
    then write kv_c | k_pe to the cache."""
    cos, sines = split_angles(cos_sin, sin, positions.flatten())
    for rows in (q_pe, k_pe):
        rows.copy_(rotate(rows, cos, sines, interleaved))
    mla_cache_write_ref(kv_c, k_pe, kv, slots, kv_scale)


def mla_rope_concat_cache_write_ref(
    positions: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    k_pe_out: torch.Tensor | None,
    interleaved: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """q [T, heads, L + R] of dtype, and the cache written, in plain torch; arguments as of
    mla_rope_concat_cache_write, whose q_pe and k_pe stay.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.3, decoupled RoPE.
    """
    values = kv, slots, cos_sin, sin, kv_scale, q_scale, k_pe_out, interleaved, dtype
    return _concat(rotated, positions, q_nope, q_pe, k_pe, kv_c, *values)


def _concat_sums(*args: Any) -> torch.Tensor:
    """Return sums of |products| where mla_rope_concat_cache_write_ref has rotated elements."""
    return _concat(sum_of_products, *args)


def _concat(
    rotate: Any,
    positions: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
    k_pe_out: torch.Tensor | None,
    interleaved: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Write the cache as _in_place does, on copies of q_pe and k_pe, and return q_nope | rotated
    q_pe [T, H, L + R] in `dtype`."""
    q_pe, k_pe = q_pe.clone(), k_pe.clone()
    values = kv, slots, cos_sin, sin, kv_scale, interleaved
    _in_place(rotate, positions, q_pe, k_pe, kv_c, *values)
    if k_pe_out is not None:
        k_pe_out.copy_(k_pe)
    return to_dtype(torch.cat((q_nope, q_pe), -1), dtype, q_scale)


class Torch(Kernel):
    """The reference in plain torch, for every device."""

    name = "torch"

    def __init__(self, reference: Any, values: Sequence[str] = ("interleaved", "dtype")) -> None:
        self.reference, self.values = reference, values

    def variant(self, c: Call, config: Any) -> RunOf:
        values = [c.values[n] for n in self.values if n in c.values]

        def run(result: Any, *tensors: torch.Tensor | None) -> None:
            q = self.reference(*tensors, *values)
            if q is not None:
                result.copy_(q)

        return lambda *_sizes: run


# ---------------------------------------------------------------- the ops


class Write(Op):
    """A write of rows of the latent cache, and what is computed beside it."""

    def is_empty(self, c: Call) -> bool:
        return bool(c.T == 0)

    def unsupported_reason(self, c: Call, *sizes: int) -> Refusal | None:
        named_sizes = dict(zip(self.declaration.sizes, sizes, strict=True))
        refusal = dtype_refusal(c, "kv_c", "k_pe", "q_pe", "q_nope", "k_pe_out")
        refusal = refusal or place_refusal(c, self.declaration, named_sizes)
        refusal = refusal or _cache_refusal(c, named_sizes)
        if refusal or "C" not in named_sizes:
            return refusal
        if refusal := angle_refusal(c, named_sizes["C"]):
            return refusal
        if rotary_dim(c, named_sizes["C"]) != named_sizes["R"]:
            table_columns = str(rotary_dim(c, named_sizes["C"]))
            return "cos_sin", f"of R={named_sizes['R']} columns", table_columns, "pass k_pe's own"
        return scale_refusal(c, "q_scale", c.dtype) if "dtype" in c.values else None

    def finish_run(self, c: Call, run: Run) -> Run:
        """Return `run` with a check that a passed q overlaps no input. It is needed in each call,
        because a plan knows the strides of tensors but not their addresses."""
        if not c.has("q"):
            return run
        names = [arg.name for arg in self.declaration.tensors]

        def run_checked(q: torch.Tensor, *inputs: torch.Tensor | None) -> None:
            tensors = zip(names, inputs, strict=False)
            named_inputs = {name: tensor for name, tensor in tensors if tensor is not None}
            check_no_overlap(self.name, "q", q, named_inputs)
            run(q, *inputs)

        return run_checked

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """DeepSeek's rows, and as many pages of 64 slots as tokens need."""
        defaults = {"L": LATENT, "R": ROPE, "page": 64, "P": 4096}
        for name, size in defaults.items():
            sizes.setdefault(name, size)
        sizes.setdefault("W", sizes["L"] + sizes["R"])
        sizes.setdefault("S", sizes["T"])
        sizes.setdefault("N", -(-sizes["S"] // sizes["page"]) or 1)
        sizes.setdefault("C", sizes["R"] // (2 if values.get("sin") else 1))

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        fitted: dict[str, Any] = {"slots": draw_slots(c, draw)}
        fitted["kv_scale"] = draw_scale(c, c.kv_dtype)
        if "C" in c.size_names:
            fitted["positions"] = draw.ints((c.T,), 0, c.P, c.positions_dtype)
        if "dtype" in c.values:
            fitted["q_scale"] = draw_scale(c, c.dtype)
        return fitted

    def traffic(self, c: Call) -> int:
        """Rows, angles and indices of the tokens once; nothing else of the cache and the table."""
        size, heads = c.kv_c_dtype.itemsize, c.sizes.get("H", 0)
        token = (c.R + c.L) * size + c.slots_dtype.itemsize + c.W * c.kv_dtype.itemsize
        if "C" in c.size_names:
            token += c.R * c.cos_sin_dtype.itemsize + c.positions_dtype.itemsize
        if "dtype" in c.values:
            token += heads * c.W * (size + c.dtype.itemsize)
        elif heads:
            token += (2 * heads + 1) * c.R * size
        return int(c.T * token)

    def roundings(self, c: Call) -> int:
        return 4


def draw_slots(c: Call, draw: InputGenerator) -> torch.Tensor:
    """Return S different random slots of the cache, of the call's dtype of slots."""
    slots = torch.randperm(c.N * c.page, generator=draw.generator, device=c.device)[: c.S]
    return slots.to(c.slots_dtype)


def draw_scale(c: Call, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the scale [1] of a random problem, or None where `dtype` is not FP8."""
    return torch.full((1,), _SCALE, device=c.device) if is_fp8(dtype) else None


def _cache_refusal(c: Call, sizes: Mapping[str, int]) -> Refusal | None:
    """Return a refusal of a cache, scale or slots that do not fit the rows of `sizes`, or None."""
    if sizes["W"] != sizes["L"] + sizes["R"]:
        expected = f"of rows of L + R = {sizes['L'] + sizes['R']} elements"
        return "kv", expected, f"{sizes['W']}", "pass [pages, page_size, L + R]"
    refusal = cache_dtype_refusal(c, "kv", "kv_c") or scale_refusal(c, "kv_scale", c.kv_dtype)
    return refusal or slot_refusal(sizes)


def cache_dtype_refusal(c: Call, cache: str, rows: str) -> Refusal | None:
    """Return a refusal of a 16-bit cache whose dtype is not that of its rows, or None. `cache` and
    `rows` are names of arguments."""
    cache_dtype, row_dtype = getattr(c, f"{cache}_dtype"), getattr(c, f"{rows}_dtype")
    if is_fp8(cache_dtype) or cache_dtype == row_dtype:
        return None
    row_dtype_name, cache_dtype_name = (
        str(d).removeprefix("torch.") for d in (row_dtype, cache_dtype)
    )
    return (
        cache,
        f"{row_dtype_name}, as {rows} is, or FP8",
        cache_dtype_name,
        "pass a cache of that dtype",
    )


def scale_refusal(c: Call, name: str, dtype: torch.dtype) -> Refusal | None:
    """Return a refusal of a call that writes FP8 without the scale `name`, or None; calls without
    tensors, which only ask for a decision, pass."""
    if is_fp8(dtype) and c.tensors and not c.has(name):
        return name, "a tensor where FP8 is written", "None", "pass one float32"
    return None


def slot_refusal(sizes: Mapping[str, int]) -> Refusal | None:
    """Return a refusal of more slots (S) than tokens (T), or None."""
    if sizes["S"] <= sizes["T"]:
        return None
    return "slots", f"of at most T={sizes['T']} elements", str(sizes["S"]), "pass the tokens' own"


_COMMON: dict[str, Any] = {
    "coarse": {"T": 0, "S": 0, "N": 0, "P": 0},
    "max_bytes": None,
    "hints": {"kv": "view bytes as float8"},
}
OP = Write(
    "mla_cache_write",
    """
    kv_c: bf16|f16[T, L] strided
    k_pe: bf16|f16[T, R] strided
    kv: bf16|f16|e4m3|e4m3fnuz[N, page, W] strided inout
    slots: i64|i32[S]
    kv_scale: f32[*1]?
    """,
    kernels=(Hip("kNone"), Torch(mla_cache_write_ref)),
    reference=mla_cache_write_ref,
    shapes={"models": grid("T", [(1,), (16,), (16384,)], kv_dtype=(torch.bfloat16, "fp8"))},
    **{**_COMMON, "coarse": {"T": 0, "S": 0, "N": 0}},
)
CACHE_AND_ANGLES = """
    kv: bf16|f16|e4m3|e4m3fnuz[N, page, W] strided inout
    slots: i64|i32[S]
    cos_sin: bf16|f16|f32[P, C] strided
    sin: bf16|f16|f32[P, C]? strided
    kv_scale: f32[*1]?
"""
IN_PLACE_OP = Write(
    "mla_rope_cache_write",
    f"""
    positions: i64|i32[*T]
    q_pe: bf16|f16[T, H, R] strided inout
    k_pe: bf16|f16[T, R] strided inout
    kv_c: bf16|f16[T, L] strided
    {CACHE_AND_ANGLES}
    interleaved: bool
    """,
    kernels=(Hip("kInPlace"), Torch(mla_rope_cache_write_ref)),
    reference=mla_rope_cache_write_ref,
    shapes={"models": grid("H T", [(16, 1), (16, 16), (16, 16384)], kv_dtype=("fp8",))},
    **_COMMON,
)
IN_PLACE_OP.sums = _in_place_sums
CONCAT_OP = Write(
    "mla_rope_concat_cache_write",
    f"""
    positions: i64|i32[*T]
    q_nope: bf16|f16[T, H, L] strided
    q_pe: bf16|f16[T, H, R] strided
    k_pe: bf16|f16[T, R] strided
    kv_c: bf16|f16[T, L] strided
    {CACHE_AND_ANGLES}
    q_scale: f32[*1]?
    k_pe_out: bf16|f16[T, R]? strided inout
    interleaved: bool
    dtype: bf16|f16|e4m3|e4m3fnuz
    -> q: dtype[T, H, W] strided
    """,
    kernels=(Hip("kConcat"), Torch(mla_rope_concat_cache_write_ref)),
    reference=mla_rope_concat_cache_write_ref,
    shapes={"models": grid("H T", [(16, 1), (16, 16), (16, 4096)], kv_dtype=("fp8",))},
    **_COMMON,
)
CONCAT_OP.sums = _concat_sums


def mla_cache_write(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: torch.Tensor | None = None,
) -> None:
    """Write kv_c | k_pe to the slots of the paged latent cache.

    Parameters
    ----------
    kv_c : [T, L] bfloat16 or float16; any strides. HIP takes rows of neighbouring elements.
    k_pe : [T, R] of the same, rotated already.
    kv : [pages, page_size, L + R] of kv_c's dtype or FP8; written. Any strides.
    slots : [S] int64 or int32, S <= T: of a token page * page_size + offset, or any number
        outside of the cache for a token that is not cached.
    kv_scale : one float32 for an FP8 cache: what it is to be multiplied by.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.2; slots as of PagedAttention (arXiv:2309.06180).
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    call(kv_c, k_pe, kv, slots, kv_scale)


def mla_rope_cache_write(
    positions: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    interleaved: bool = False,
) -> None:
    """Rotate q_pe and k_pe in place, and write kv_c | k_pe to the slots of the paged cache.

    Parameters
    ----------
    positions : T int64 or int32 in any shape: rows of cos_sin; one outside counts as the last. Of
        int64 the lower 32 bits are taken, unsigned.
    q_pe : [T, heads, R] bfloat16 or float16; any strides, also the last columns of heads.
    k_pe : [T, R] of q_pe's dtype; any strides.
    kv_c : [T, L] of q_pe's dtype; any strides. HIP takes rows of neighbouring elements.
    kv : [pages, page_size, L + R] of kv_c's dtype or FP8; written. Any strides.
    slots : [S] int64 or int32, S <= T: of a token page * page_size + offset, or any number
        outside of the cache for a token that is not cached.
    kv_scale : one float32 for an FP8 cache: what it is to be multiplied by.
    cos_sin : [positions, R] bfloat16, float16 or float32, a row's cosines before its sines; with
        `sin` the cosines alone, [positions, R / 2].
    sin : [positions, R / 2] of cos_sin's dtype, or None.
    interleaved : whether a pair is two neighbours, not an element of each half.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.3, decoupled RoPE.
    """
    call = IN_PLACE_OP.traced if is_dynamo_compiling() else IN_PLACE_OP.call
    call(positions, q_pe, k_pe, kv_c, kv, slots, cos_sin, sin, kv_scale, interleaved)


def mla_rope_concat_cache_write(
    positions: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_pe: torch.Tensor,
    kv_c: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_pe_out: torch.Tensor | None = None,
    interleaved: bool = False,
    dtype: torch.dtype | None = None,
    q: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return q_nope | rope(q_pe) as mla_decode takes it, and write kv_c | rope(k_pe) to the paged
    cache.

    Parameters
    ----------
    positions : T int64 or int32 in any shape: rows of cos_sin; one outside counts as the last. Of
        int64 the lower 32 bits are taken, unsigned.
    q_nope : [T, heads, L] bfloat16 or float16, absorbed; any strides, as those of [heads, T, L].
    q_pe : [T, heads, R] of the same; any strides. It stays, and so does k_pe.
    k_pe : [T, R] of q_nope's dtype; any strides.
    kv_c : [T, L] of q_nope's dtype; any strides. HIP takes rows of neighbouring elements.
    kv : [pages, page_size, L + R] of kv_c's dtype or FP8; written. Any strides.
    slots : [S] int64 or int32, S <= T: of a token page * page_size + offset, or any number
        outside of the cache for a token that is not cached.
    kv_scale : one float32 for an FP8 cache: what it is to be multiplied by.
    cos_sin : [positions, R] bfloat16, float16 or float32, a row's cosines before its sines; with
        `sin` the cosines alone, [positions, R / 2].
    sin : [positions, R / 2] of cos_sin's dtype, or None.
    interleaved : whether a pair is two neighbours, not an element of each half.
    q_scale : one float32 for q in FP8: what it is to be multiplied by.
    dtype : of q: bfloat16, float16 or FP8; None: that of `q`, else of q_nope.
    k_pe_out : [T, R] of k_pe's dtype, any strides: the rotated k_pe is written there too.
    q : [T, heads, L + R] of dtype, any strides, written and returned.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: DeepSeek-V2 (arXiv:2405.04434), 2.1.3, decoupled RoPE.
    """
    dtype = (q_nope if q is None else q).dtype if dtype is None else dtype
    call = CONCAT_OP.traced if is_dynamo_compiling() else CONCAT_OP.call
    tensors = positions, q_nope, q_pe, k_pe, kv_c, kv, slots, cos_sin, sin, kv_scale, q_scale
    result: torch.Tensor = call(*tensors, k_pe_out, interleaved, dtype, q)
    return result
