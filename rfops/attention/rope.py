"""rope: q and k rotated in place by their positions (rfops/attention/rotary.py).

Of a head of D elements R turn, from `first` on; the others stay. q and k may be rows within a qkv
tensor. Each element is computed in fp32 and rounded once.

| kernel | what it takes |
|---|---|
| hip | gfx942 and gfx950: heads and rows of angles of neighbouring elements |
| triton (rope_triton_kernels.py) | the same, on AMD's and NVIDIA's GPUs |
| torch | whatever is left |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.kernel import Call, Kernel, Run, RunOf
from rfops.dispatch.op import Op
from rfops.dispatch.problem import InputGenerator, grid
from rfops.dispatch.tuned_table import serving
from rfops.jit import compile_ops, u32
from rfops.quantization.rows import IN_TYPES
from rfops.triton import launch as triton_launch
from rfops.triton.bound import BoundTriton

from .rotary import (
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
    split_angles,
    sum_of_products,
)

__all__ = ["rope", "rope_ref"]
NO_ROWS = "q, k, cos_sin or sin has no rows of neighbouring elements, or sin lies as cos_sin not"


def _variants(_arch: str) -> list[dict[str, Any]]:
    """Return the defines of the variants that `rfops build` makes: heads of 128 and DeepSeek's of
    64, angles in bf16, as vLLM has them, and in fp32."""
    common_defines = {
        "IN": "bf16",
        "POSITION": "Index64",
        "VEC": VEC,
        "THREADS": THREADS,
        "INVERSE": 0,
    }
    return [
        {**common_defines, "ANGLE": angle, "ROTARY": rotary, "INTERLEAVED": interleaved}
        for angle in ("bf16", "f32")
        for rotary, interleaved in ((128, 0), (64, 1))
    ]


@compile_ops("rope", kernel="rope", variants=_variants)
def rope_kernel(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    num_units: u32,
    units_of_token: u32,
    multiplier: u32,
    shift: u32,
    units_of_q: u32,
    first_elem: u32,
    q_head: u32,
    k_head: u32,
    q_token: u32,
    k_token: u32,
    num_positions: u32,
    angle_row: u32,
    sin_offset: u32,
    cos_sin: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """csrc/attention/rope.hip: the shapes stand there."""


def divisor_numbers(divisor: int) -> dict[str, int]:
    """Return the multiplier and shift by which n // divisor is (2 n * multiplier >> 32) >> shift
    for all n below 2^31: the multiplier is 2^(31 + shift) / divisor rounded up, below 2^32, whose
    error times n is below 2^(31 + shift).

    Source: Division by Invariant Integers using Multiplication (Granlund, Montgomery 1994), 4.
    """
    shift = (divisor - 1).bit_length()
    return {"multiplier": -(-(1 << (31 + shift)) // divisor), "shift": shift}


def rows_of(c: Call) -> dict[str, int] | None:
    """Return the launch's numbers that say where heads and angles begin, in elements; None where
    kernels do not take such strides."""
    q, k = head_strides(c, "q", c.H, c.D), head_strides(c, "k", c.G, c.D)
    angles = angle_rows(c)
    if q is None or k is None or angles is None:
        return None
    names = ("q_token", "q_head", "k_token", "k_head", "angle_row", "sin_offset")
    return dict(zip(names, (*q, *k, *angles), strict=True))


class Hip(Kernel):
    """The HIP kernel: a lane turns eight pairs, or one where rows are not aligned."""

    name, module = "hip", "rope"

    def vec_of(self, c: Call, rows: Mapping[str, int]) -> int:
        """Return how many elements a lane loads at once: VEC where all rows are aligned to 16
        bytes, otherwise 1."""
        size = c.q_dtype.itemsize
        heads = [rows[name] for name in ("q_token", "q_head", "k_token", "k_head")]
        is_aligned = all(number * size % 16 == 0 for number in (*heads, c.first))
        is_aligned = is_aligned and c.align("q", "k") >= 16 and angles_are_aligned(c)
        return VEC if is_aligned else 1

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := self.unsupported_arch_reason(c):
            return reason
        rows = rows_of(c)
        if rows is None:
            return NO_ROWS
        units = c.T * (c.H + c.G) * (rotary_dim(c) // 2)
        return (
            "2^31 units or elements of a stride, or more"
            if (max(units, *rows.values()) >= MAX_UNITS)
            else None
        )

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        rows = rows_of(c)
        assert rows is not None
        return {
            "IN": IN_TYPES[c.q_dtype],
            "VEC": self.vec_of(c, rows),
            "INVERSE": int(c.inverse),
            **define_values(c),
        }

    def variant(self, c: Call, config: Any) -> RunOf:
        defines = self.defines(c, config)
        bound = rope_kernel.bind(c.device, defines, c.arch)
        sources = {} if c.has("sin") else {"sin": "cos_sin"}
        launch = bound.prepare((THREADS, 1, 1), self.arguments, sources=sources)
        units_of_head = defines["ROTARY"] // (2 * defines["VEC"])

        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            rows = rows_of(sized)
            assert rows is not None
            numbers = {
                "num_units": sized.T * (sized.H + sized.G) * units_of_head,
                "units_of_token": (sized.H + sized.G) * units_of_head,
                **divisor_numbers((sized.H + sized.G) * units_of_head),
                "units_of_q": sized.H * units_of_head,
                "num_positions": sized.P,
            }
            groups = -(-numbers["num_units"] // THREADS)
            return launch((groups, 1, 1), first_elem=c.first, **numbers, **rows)

        return run_of


class Triton(Kernel):
    """The Triton kernel, a program a head, where rows lie as the HIP kernel takes them."""

    name = "triton"

    def unsupported_reason(self, c: Call) -> str | None:
        if reason := triton_launch.missing():
            return reason
        if serving(c.arch) is None:
            return f"Triton has no kernel for {c.arch}"
        return NO_ROWS if rows_of(c) is None else None

    def variant(self, c: Call, config: Any) -> RunOf:
        half = rotary_dim(c) // 2
        constants = {
            "HALF": half,
            "BLOCK": 1 << (half - 1).bit_length(),
            "INTERLEAVED": c.interleaved,
            "INVERSE": c.inverse,
            "HAS_SIN": c.has("sin"),
        }
        module = "rfops.attention.rope_triton_kernels"
        bound = BoundTriton(module, "rope", c.device, constants, 1)
        launch = bound.prepare(self.arguments)

        def run_of(*sizes: int) -> Run:
            sized = c.resized(sizes)
            rows = rows_of(sized)
            assert rows is not None
            return launch(
                (sized.T, sized.H + sized.G, 1),
                heads=sized.H,
                num_positions=sized.P,
                first_elem=c.first,
                **rows,
            )

        return run_of


class Torch(Kernel):
    """The formula in plain torch, for every device."""

    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(
            _: Any,
            positions: torch.Tensor,
            q: torch.Tensor,
            k: torch.Tensor,
            cos_sin: torch.Tensor,
            sin: torch.Tensor | None,
        ) -> None:
            rope_ref(positions, q, k, cos_sin, sin, c.interleaved, c.first, c.inverse)

        return lambda *_sizes: run


def rope_ref(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
    first: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate q [T, H, D] and k [T, G, D] of any floating-point dtype in place, in float32, rounded
    once to their dtype; arguments as of rope.

    Raises nothing of its own: torch's errors for shapes that do not fit.

    Source: Su et al., RoFormer (arXiv:2104.09864).
    """
    _rotate_heads(rotated, positions, q, k, cos_sin, sin, interleaved, first, inverse)


def _sums(*args: Any) -> None:
    """Replace q and k by the sums of |products| of their rotated elements; arguments as of
    rope_ref."""
    _rotate_heads(sum_of_products, *args)


def _rotate_heads(
    rotate: Any,
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None,
    interleaved: bool,
    rotary_begin: int,
    inverse: bool,
) -> None:
    """Replace the elements of q and k from `rotary_begin` on by `rotate` of them: `rotated`, or
    sum_of_products for error bounds."""
    cos, sines = split_angles(cos_sin, sin, positions.flatten())
    sines = -sines if inverse else sines
    for heads in (q, k):
        rows = heads[..., rotary_begin : rotary_begin + 2 * cos.shape[-1]]
        rows.copy_(rotate(rows, cos, sines, interleaved))


class _Rope(Op):
    def unsupported_reason(self, c: Call, *sizes: int) -> Refusal | None:
        named_sizes = dict(zip(self.declaration.sizes, sizes, strict=True))
        refusal = angle_refusal(c, named_sizes["C"]) or dtype_refusal(c, "q", "k")
        refusal = refusal or place_refusal(c, self.declaration, named_sizes)
        rotary = rotary_dim(c, named_sizes["C"])
        if refusal is None and c.first + rotary > named_sizes["D"]:
            expected, elems_text = (
                f"of at most D={named_sizes['D']} elements of a head",
                f"{rotary} from {c.first} on",
            )
            return "cos_sin", expected, elems_text, "pass a narrower one"
        return refusal

    def fit(self, c: Call, draw: InputGenerator) -> Mapping[str, Any]:
        return {"positions": draw.ints((c.T,), 0, c.P, c.positions_dtype)}

    def assume(self, sizes: dict[str, int], values: Mapping[str, Any]) -> None:
        """Heads of 128 that turn from `first` on, and 4,096 positions."""
        for name, size in {"D": 128, "P": 4096}.items():
            sizes.setdefault(name, size)
        pairs = max(sizes["D"] - values.get("first", 0), 2) // 2
        sizes.setdefault("C", pairs if values.get("sin") else 2 * pairs)

    def traffic(self, c: Call) -> int:
        """Rotated elements read and written, and a row of angles a token."""
        element = 2 * (c.H + c.G) * c.q_dtype.itemsize
        token = rotary_dim(c) * (element + c.cos_sin_dtype.itemsize) + c.positions_dtype.itemsize
        return int(c.T * token)

    def roundings(self, c: Call) -> int:
        return 4


OP = _Rope(
    "rope",
    """
    positions: i64|i32[*T]
    q: bf16|f16|f32[T, H, D] strided inout
    k: bf16|f16|f32[T, G, D] strided inout
    cos_sin: bf16|f16|f32[P, C] strided
    sin: bf16|f16|f32[P, C]? strided
    interleaved: bool
    first: int >= 0
    inverse: bool
    """,
    kernels=(Hip(), Triton(), Torch()),
    coarse={"T": 0, "P": 0},
    max_bytes=None,
    usual={"first": 0},
    reference=rope_ref,
    shapes={"models": grid("H G D", [(16, 1, 64), (8, 1, 128), (64, 8, 128)], T=(1, 16, 4096))},
)
OP.sums = _sums


def rope(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin: torch.Tensor,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
    first: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate q and k in place by their positions.

    Parameters
    ----------
    positions : T int64 or int32 in any shape: rows of cos_sin; one outside counts as the last. Of
        int64 the lower 32 bits are taken, unsigned.
    q : [T, heads, D] bfloat16, float16 or float32, any strides: also rows within a qkv tensor. HIP
        takes heads of neighbouring elements.
    k : [T, key heads, D] of q's dtype, any strides, no element of it one of q; without
        keys q[:, :0].
    cos_sin : [positions, R] bfloat16, float16 or float32: R / 2 cosines, then R / 2 sines; or with
        `sin` [positions, R / 2] of cosines. YaRN's scale is in it (rope_cos_sin).
    sin : [positions, R / 2] of the same dtype.
    interleaved : pairs are neighbours (GPT-J style), not halves (NeoX style).
    first : the first element of a head that rotates; R do.
    inverse : rotate back.

    Raises ValueError for what does not fit, and what building the kernel raises.

    Source: Su et al., RoFormer (arXiv:2104.09864).
    """
    call = OP.traced if is_dynamo_compiling() else OP.call
    call(positions, q, k, cos_sin, sin, interleaved, first, inverse)
