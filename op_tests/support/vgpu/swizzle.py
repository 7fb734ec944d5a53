"""Which lanes and which bits of a register an instruction sees: EXEC masks, DPP and SDWA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from support.vgpu import reference as ref
from support.vgpu.asm import LANES
from support.vgpu.reference import Array

U64 = np.uint64


def exec_lanes(mask: int, count: int) -> Array:
    bits = np.array([mask >> i & 1 for i in range(LANES)], bool)
    return np.tile(bits, count // LANES)


def dpp_source(control: str) -> list[int]:
    """Source lane of each lane under a DPP control, -1 where there is none."""
    name, _, value = control.partition(":")
    lanes = range(LANES)
    if name == "quad_perm":
        order = [int(v) for v in value.strip("[]").split(",")]
        return [i // 4 * 4 + order[i % 4] for i in lanes]
    count = int(value or 0)
    table: dict[str, Callable[[int], int]] = {
        "row_shl": lambda i: i + count if i % 16 + count < 16 else -1,
        "row_shr": lambda i: i - count if i % 16 >= count else -1,
        "row_ror": lambda i: i // 16 * 16 + (i - count) % 16,
        "wave_shl": lambda i: i + 1 if i < 63 else -1,
        "wave_shr": lambda i: i - 1 if i > 0 else -1,
        "wave_rol": lambda i: (i + 1) % 64,
        "wave_ror": lambda i: (i - 1) % 64,
        "row_mirror": lambda i: i ^ 15,
        "row_half_mirror": lambda i: i ^ 7,
        "row_bcast": lambda i: {15: i // 16 * 16 - 1, 31: 31 if i >= 32 else -1}[count],
        "row_newbcast": lambda i: i // 16 * 16 + count,
    }
    return [table[name](i) for i in lanes]


DPP_CONTROLS = [
    "quad_perm:[0,1,2,3]",
    "quad_perm:[3,2,1,0]",
    "quad_perm:[1,1,0,2]",
    *[f"{n}:{i}" for n in ("row_shl", "row_shr", "row_ror") for i in range(1, 16)],
    "wave_shl:1",
    "wave_shr:1",
    "wave_rol:1",
    "wave_ror:1",
    "row_mirror",
    "row_half_mirror",
    "row_bcast:15",
    "row_bcast:31",
    *[f"row_newbcast:{i}" for i in range(16)],
]


@dataclass(frozen=True)
class Dpp:
    control: str
    row_mask: int = 15
    bank_mask: int = 15
    bound: bool = False

    @property
    def text(self) -> str:
        tail = " bound_ctrl:0" if self.bound else ""
        return f"{self.control} row_mask:{self.row_mask:#x} bank_mask:{self.bank_mask:#x}{tail}"

    def apply(self, bits: Array, active: Array) -> tuple[Array, Array]:
        """Permuted source, and the lanes that are written."""
        source = np.array(dpp_source(self.control))
        waves, lanes = bits.reshape(-1, LANES), active.reshape(-1, LANES)
        valid = (source >= 0) & lanes[:, source]
        moved = np.where(valid, waves[:, source], U64(0)).ravel()
        lane = np.arange(LANES)
        gate = (self.row_mask >> lane // 16 & 1) & (self.bank_mask >> lane % 16 // 4 & 1)
        written = lanes & gate.astype(bool) & (valid | self.bound)
        return moved, written.ravel()


_SELECTS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}


@dataclass(frozen=True)
class Sdwa:
    src: tuple[str, ...]
    sext: tuple[bool, ...]
    dst: str = "DWORD"
    unused: str = "UNUSED_PAD"

    @property
    def text(self) -> str:
        sources = " ".join(f"src{i}_sel:{s}" for i, s in enumerate(self.src))
        return f"{self.destination} {sources}"

    @property
    def destination(self) -> str:
        return f"dst_sel:{self.dst} dst_unused:{self.unused}"

    def source(self, bits: Array, source_idx: int) -> Array:
        shift, count = _SELECTS[self.src[source_idx]]
        value = bits >> U64(shift) & U64((1 << count) - 1)
        if self.sext[source_idx]:
            value = ref.encode(
                np.where(
                    value >> U64(count - 1),
                    value.astype(np.int64) - (1 << count),
                    value.astype(np.int64),
                ),
                "u32",
            )
        return value

    def result(self, bits: Array, old: Array) -> Array:
        shift, count = _SELECTS[self.dst]
        field_mask = ((1 << count) - 1) << shift
        value = bits << U64(shift) & U64(field_mask)
        if self.unused == "UNUSED_PRESERVE":
            return value | old & U64(0xFFFFFFFF & ~field_mask)
        if self.unused == "UNUSED_SEXT":
            sign_bits = 0xFFFFFFFF & ~((1 << (shift + count)) - 1)
            return value | np.where(bits >> U64(count - 1) & U64(1), U64(sign_bits), U64(0))
        return value


SDWA_SELECTS = tuple(_SELECTS)
