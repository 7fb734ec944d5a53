"""Matrix instructions of gfx942 and gfx950 in numpy: shapes from their names, register layouts, and
packing of matrices into registers.

Layouts come from AMD's matrix calculator (data/mfma_layouts_gfx942.json) where it knows the
instruction; for the instructions that gfx950 adds, from the tables of its ISA manual (7.1.5), and
for its doubled sparse instructions from measurements on hardware (AMD's fpsan tests).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from support import OP_TESTS
from support.vgpu import formats as formats
from support.vgpu.registers import LANES

DATA = json.loads((OP_TESTS / "vgpu/isa/mfma_layouts_gfx942.json").read_text())
ADDED_GFX950 = [
    *(f"v_mfma_f32_{s}_{t}" for s in ("16x16x32", "32x32x16") for t in ("f16", "bf16")),
    "v_mfma_i32_16x16x64_i8",
    "v_mfma_i32_32x32x32_i8",
    "v_mfma_f32_16x16x128_f8f6f4",
    "v_mfma_f32_32x32x64_f8f6f4",
    *(f"v_smfmac_f32_{s}_{t}" for s in ("16x16x64", "32x32x32") for t in ("f16", "bf16")),
    "v_smfmac_i32_16x16x128_i8",
    "v_smfmac_i32_32x32x64_i8",
    *(
        f"v_smfmac_f32_{s}_{a}_{b}"
        for s in ("16x16x128", "32x32x64")
        for a in ("fp8", "bf8")
        for b in ("fp8", "bf8")
    ),
]
SMALL = ["fp8", "bf8", "fp6", "bf6", "fp4"]  # by CBSZ and BLGP of f8f6f4
BITS = {
    "f64": 64,
    "f32": 32,
    "xf32": 32,
    "f16": 16,
    "bf16": 16,
    "i8": 8,
    "fp8": 8,
    "bf8": 8,
    "fp6": 6,
    "bf6": 6,
    "fp4": 4,
}


def names_for(arch: str) -> list[str]:
    names = list(DATA["instructions"])
    if arch == "gfx942":
        return names
    return [n for n in names if "xf32" not in n] + [n for n in ADDED_GFX950 if "f8f6f4" not in n]


# ------------------------------------------------------------------------------ shapes, layouts


@dataclass(frozen=True)
class Shape:
    name: str
    dim: int
    k: int
    blocks: int
    a: str
    b: str
    out: str
    sparse: bool

    @property
    def stored_k(self) -> int:
        return self.k // 2 if self.sparse else self.k

    def registers(self, operand: str) -> int:
        elements = {"A": self.dim * self.stored_k, "B": self.dim * self.k, "D": self.dim**2}[
            operand
        ]
        kind = {"A": self.a, "B": self.b, "D": self.out}[operand]
        return elements * self.blocks * BITS[kind] // (32 * LANES)


def shape_of(name: str, a: str = "", b: str = "") -> Shape:
    pattern = r"v_(s?mfma)c?_(?:scale_)?(\w\d+)_(\d+)x\d+x(\d+)(?:_(\d+)b)?_(.*)"
    match = re.fullmatch(pattern, name)
    assert match, name
    kind, out, dim, k, blocks, types = match.groups()
    pair = types.split("_") if "_" in types else [types, types]
    return Shape(
        name,
        int(dim),
        int(k),
        int(blocks or 1),
        a or pair[0],
        b or pair[1],
        {"i32": "f32"}.get(out, out),
        kind == "smfma",
    )


def contiguous(dim: int, k: int, chunk: int) -> np.ndarray:
    """item * 64 + lane of [row, k] where a lane group holds chunks of `chunk` k in turn."""
    groups = LANES // dim
    row, kk = np.meshgrid(np.arange(dim), np.arange(k), indexing="ij")
    piece = kk // chunk
    return ((piece // groups) * chunk + kk % chunk) * LANES + (piece % groups) * dim + row


def added_layout(shape: Shape, operand: str) -> np.ndarray:
    """The layouts of ISA manual 7.1.5: a lane's k are consecutive, in runs of at most 16 bytes,
    which alternate between the lane groups (6-bit elements: one run of 32)."""
    if operand == "D":
        twin = {16: "v_mfma_f32_16x16x16_f16", 32: "v_mfma_f32_32x32x8_f16"}[shape.dim]
        return calculated(shape_of(twin), "D")
    bits = BITS[shape.a if operand == "A" else shape.b]
    elems_per_lane = shape.k * shape.dim // LANES
    run = min(elems_per_lane, 128 // bits if bits != 6 else 32)
    return contiguous(shape.dim, shape.k, run)[None]


def calculated(shape: Shape, operand: str, layout: int | None = None) -> np.ndarray:
    """A layout of the calculator: [block, row or column, k] or [block, row, column]."""
    layout_id = DATA["instructions"][shape.name][operand] if layout is None else layout
    numbers = np.array(DATA["layouts"][str(layout_id)].split(), np.int64)
    per_row = {"A": shape.k, "B": shape.k, "D": shape.dim, "K": shape.k // 4}[operand]
    if operand == "A" and shape.sparse:
        per_row = shape.k // 4
    return numbers.reshape(shape.blocks, shape.dim, per_row)


def layout_of(shape: Shape, operand: str) -> np.ndarray:
    if shape.name in DATA["instructions"]:
        return calculated(shape, operand)
    return added_layout(shape, operand)


def measured_sparse(shape: Shape, operand: str) -> np.ndarray:
    """Layouts of gfx950's doubled sparse instructions as measured on hardware: of A and of the
    index (K) by group q of four k, of B by k."""
    dim = shape.dim
    groups = LANES // dim
    if operand == "B":
        return contiguous(dim, shape.k, 8)[None]
    row, q = np.meshgrid(np.arange(dim), np.arange(shape.k // 4), indexing="ij")
    if BITS[shape.a] == 16:
        group, pair = q // 4, q % 4
    elif dim == 16:
        group = 2 * (q // 16) + q // 4 % 2
        pair = 4 * (q // 2 % 2) + 2 * (q // 8 % 2) + q % 2
    else:
        group = q // 8
        pair = 4 * (q // 2 % 2) + 2 * (q // 4 % 2) + q % 2
    assert group.max() < groups
    return ((pair * (2 if operand == "A" else 1)) * LANES + group * dim + row)[None]


# ------------------------------------------------------------------------------ packing


def write_codes(rows: np.ndarray, positions: np.ndarray, bits: int, codes: np.ndarray) -> None:
    """Writes codes of `bits` bits at item * 64 + lane of zeroed register rows."""
    positions, codes = np.broadcast_arrays(positions, codes)
    lane, bit = positions.ravel() % LANES, positions.ravel() // LANES * bits
    words = codes.ravel().astype(np.uint64) << (bit % 32).astype(np.uint64)
    np.bitwise_or.at(rows, (bit // 32, lane), words.astype(np.uint32))
    high = words >> np.uint64(32)
    crosses = bit % 32 + bits > 32
    np.bitwise_or.at(rows, (bit[crosses] // 32 + 1, lane[crosses]), high[crosses].astype(np.uint32))


def take(rows: np.ndarray, positions: np.ndarray, kind: str) -> np.ndarray:
    item, lane = positions // LANES, positions % LANES
    if kind == "f64":
        low, high = (
            rows[2 * item, lane].astype(np.uint64),
            rows[2 * item + 1, lane].astype(np.uint64),
        )
        return (low | high << np.uint64(32)).view(np.float64)
    return rows[item, lane].view({"f32": np.float32, "i32": np.int32}[kind])


def encode(values: np.ndarray, kind: str, arch: str) -> np.ndarray:
    """Codes of values that the type holds exactly."""
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    if kind in ("f32", "xf32"):
        return values.astype(np.float32).view(np.uint32)
    if kind in ("i8", "i32"):
        return values.astype(np.int64) & (0xFF if kind == "i8" else 0xFFFFFFFF)
    if kind == "bf16":
        return values.astype(np.float32).view(np.uint32) >> 16
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return format_of(kind, arch).encode_exact(values)


def format_of(kind: str, arch: str) -> formats.Format:
    small_formats = {"fp6": formats.E2M3, "bf6": formats.E3M2, "fp4": formats.E2M1}
    return (small_formats | formats.eight_bit(arch))[kind]


def exact_values(rng: np.random.Generator, kind: str, size: tuple[int, ...]) -> np.ndarray:
    """Values whose sums of products are exact in the result, whatever the order."""
    if kind == "i8":
        return rng.integers(-128, 128, size).astype(np.float64)
    if kind in ("fp8", "bf8", "fp6", "bf6", "fp4"):
        magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        return rng.choice(magnitudes, size) * rng.choice([-1.0, 1.0], size)
    return rng.integers(-16, 17, size).astype(np.float64)


# ------------------------------------------------------------------------------ one instruction


@dataclass
class Product:
    """One instruction's operands as matrices, and what it must give."""

    shape: Shape
    arch: str
    a: np.ndarray  # [block, i, k stored]
    b: np.ndarray  # [block, j, k]
    c: np.ndarray  # [block, i, j]
    chosen: np.ndarray | None = None  # sparse: [block, i, k stored] -> k

    @cached_property
    def dense_a(self) -> np.ndarray:
        if self.chosen is None:
            return self.a
        out = np.zeros((self.shape.blocks, self.shape.dim, self.shape.k))
        np.put_along_axis(out, self.chosen, self.a, axis=2)
        return out

    def expected(self) -> np.ndarray:
        return self.c + np.einsum("bik,bjk->bij", self.dense_a, self.b)

    def magnitude(self) -> np.ndarray:
        return np.abs(self.c) + np.einsum("bik,bjk->bij", np.abs(self.dense_a), np.abs(self.b))


Layouts = Callable[[Shape, str], np.ndarray]


def random_product(rng: np.random.Generator, shape: Shape, arch: str) -> Product:
    b, d = shape.blocks, shape.dim
    product = Product(
        shape,
        arch,
        exact_values(rng, shape.a, (b, d, shape.stored_k)),
        exact_values(rng, shape.b, (b, d, shape.k)),
        rng.integers(-1000, 1000, (b, d, d)).astype(np.float64),
    )
    if shape.sparse:
        pairs = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
        picks = pairs[rng.integers(0, 6, (b, d, shape.k // 4))]
        base_index = np.arange(shape.k // 4)[:, None] * 4
        product.chosen = (picks + base_index).reshape(b, d, shape.stored_k)
    return product


def out_kind(shape: Shape) -> str:
    return "i32" if shape.a == "i8" else shape.out


def operand_rows(product: Product, layouts: Layouts, index_shift: int = 0) -> list[np.ndarray]:
    """Register rows of A, B, C and, if sparse, the index."""
    shape, arch = product.shape, product.arch
    a, b, c = (np.zeros((shape.registers(x), LANES), np.uint32) for x in "ABD")
    index = np.zeros((1, LANES), np.uint32)
    if product.chosen is None:
        write_codes(a, layouts(shape, "A"), BITS[shape.a], encode(product.a, shape.a, arch))
    else:
        a_positions = layouts(shape, "A")
        codes = encode(product.a, shape.a, arch)
        write_codes(a, a_positions, BITS[shape.a], codes[..., 0::2])
        write_codes(a, a_positions + LANES, BITS[shape.a], codes[..., 1::2])
        local = product.chosen % 4
        fields = local[..., 0::2] | local[..., 1::2] << 2
        positions = layouts(shape, "K")
        write_codes(index, positions + index_shift * LANES, 4, fields)
    write_codes(b, layouts(shape, "B"), BITS[shape.b], encode(product.b, shape.b, arch))
    kind = out_kind(shape)
    write_codes(c, layouts(shape, "D"), 64 if kind == "f64" else 32, encode(product.c, kind, arch))
    return [a, b, c, *([index] if shape.sparse else [])]
