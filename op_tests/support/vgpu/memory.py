"""Memory instructions on the virtual GPU: batches of snippets, and a byte-wise model in numpy.

A case is one or more instructions between a common prologue and epilogue. It sees
  v[8:9]   lane's address: where the lane's offset lies in the case's memory
  v10      that offset, s[8:9] the memory's base, s10 a size (buffer's number of records)
  v[24:27] data: two random dwords and their complements
and leaves its result in v[20:23], which hold OLD before. Offsets and addresses have the
instruction's immediate offset taken off already. EXEC is the mask of the run.

The memory of LDS and scratch cases is copied in by the prologue and out by the epilogue, so that
all families share one model: 4096 bytes, or PRIVATE bytes for each of the 64 lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from support.vgpu.asm import LANES, Snippets

Array = NDArray[np.generic]
LDS_BYTES, PRIVATE = 4096, 256  # as asm.py's kernel descriptors say
OLD = 0x0BADCAFE
FULL = (1 << 64) - 1
MASKS = (FULL, 0xDEAD_BEEF_1234_5678, 1 << 63, 0xFFFF, 0)
LANE = np.arange(LANES, dtype=np.int64)

_ENTER = f"""
  v_sub_co_u32 v28, vcc, v8, v10
  v_subb_co_u32 v29, vcc, v9, 0, vcc
  v_readfirstlane_b32 s8, v28
  v_readfirstlane_b32 s9, v29
  v_readfirstlane_b32 s10, v11
  v_readfirstlane_b32 s12, v14
  v_readfirstlane_b32 s13, v15
  v_mov_b32 v24, v12
  v_mov_b32 v25, v13
  v_not_b32 v26, v12
  v_not_b32 v27, v13
  v_mov_b32 v20, 0x{OLD:x}
  v_mov_b32 v21, 0x{OLD:x}
  v_mov_b32 v22, 0x{OLD:x}
  v_mov_b32 v23, 0x{OLD:x}
"""
_WAIT = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n"


def _copy(lane_bytes: int, destination: str, writes_back: bool) -> str:
    """Copies each lane's piece of the case's memory to LDS or scratch, or back."""
    lines = [f"v_mul_u32_u24 v30, {lane_bytes}, v0"]
    for index in range(0, lane_bytes, 16):
        memory = (
            f"v30, v[32:35], s[8:9] offset:{index}"
            if writes_back
            else f"v[32:35], v30, s[8:9] offset:{index}"
        )
        local = {
            ("ds", False): f"ds_write_b128 v30, v[32:35] offset:{index}",
            ("ds", True): f"ds_read_b128 v[32:35], v30 offset:{index}",
            ("scratch", False): f"scratch_store_dwordx4 off, v[32:35], off offset:{index}",
            ("scratch", True): f"scratch_load_dwordx4 v[32:35], off, off offset:{index}",
        }[destination, writes_back]
        steps = [local, f"global_store_dwordx4 {memory}"]
        if not writes_back:
            steps = [f"global_load_dwordx4 {memory}", local]
        lines += [steps[0], _WAIT, steps[1]]
    return "\n".join(lines) + "\n" + _WAIT


class Case(NamedTuple):
    """`local` says where the case's memory is put: "" (global memory), "ds", "scratch"."""

    name: str
    body: str
    local: str = ""

    def text(self) -> str:
        size = {"": 0, "ds": LDS_BYTES // LANES, "scratch": PRIVATE}[self.local]
        enter = _ENTER + (_copy(size, self.local, writes_back=False) if size else "")
        leave = _copy(size, self.local, writes_back=True) if size else ""
        return (
            f"{enter}  s_mov_b64 exec, s[12:13]\n{self.body}\n{_WAIT}  s_mov_b64 exec, -1\n{leave}"
        )


class Batch:
    """Cases assembled together for one architecture, when the first of them runs."""

    def __init__(self, cases: Sequence[Case], arch: str = "gfx950") -> None:
        self._cases, self._arch = cases, arch
        self._index = {case.name: i for i, case in enumerate(cases)}
        assert len(self._index) == len(cases), "two cases of one name"

    @functools.cached_property
    def _snippets(self) -> Snippets:
        return Snippets([case.text() for case in self._cases], self._arch)

    def run(
        self,
        name: str,
        memory: Array,
        offsets: Array,
        mask: int = FULL,
        *,
        imm: int = 0,
        size: int = 0,
        data: Array | None = None,
        base: int | None = None,
    ) -> Array:
        """The four result dwords a lane, [4, 64]; `memory` is changed in place."""
        start = memory.ctypes.data if base is None else base
        lanes = np.zeros((LANES, 4), np.uint64)
        offset = np.broadcast_to(np.asarray(offsets, np.int64) - imm, LANES)
        lanes[:, 0] = (np.int64(start) + offset).astype(np.uint64)
        lanes[:, 1] = (offset & 0xFFFFFFFF).astype(np.uint64) | np.uint64(size << 32)
        if data is not None:
            lanes[:, 2] = data
        lanes[:, 3] = mask
        return self._snippets.run(self._index[name], lanes).T


# ------------------------------------------------------------------------------ model


def active(mask: int) -> Array:
    return (np.uint64(mask) >> LANE.astype(np.uint64) & np.uint64(1)).astype(bool)


def random_bytes(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def random_data(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 64, LANES, dtype=np.uint64)


def data_dwords(data: Array) -> Array:
    """What v[24:27] hold, [4, 64]."""
    low, high = (
        (data & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (data >> np.uint64(32)).astype(np.uint32),
    )
    return np.stack([low, high, ~low, ~high])


class Load(NamedTuple):
    bytes: int
    dtype: str  # of a part of a dword
    half: str = ""  # D16: "low" or "high"

    @property
    def dwords(self) -> int:
        return max(1, self.bytes // 4)

    def value(self, raw: bytes) -> list[int]:
        if self.bytes >= 4:
            return np.frombuffer(raw, np.uint32).tolist()
        number = int(np.frombuffer(raw, self.dtype)[0])
        if self.half:
            return [(number & 0xFFFF) << (16 if self.half == "high" else 0)]
        return [number & 0xFFFFFFFF]


class Store(NamedTuple):
    bytes: int
    shift: int = 0

    @property
    def dwords(self) -> int:
        return max(1, self.bytes // 4)

    def raw(self, dwords: Array) -> bytes:
        if self.bytes >= 4:
            return dwords[: self.dwords].astype(np.uint32).tobytes()
        return (int(dwords[0]) >> self.shift).to_bytes(4, "little")[: self.bytes]


LOADS = {
    "ubyte": Load(1, "u1"),
    "sbyte": Load(1, "i1"),
    "ushort": Load(2, "u2"),
    "sshort": Load(2, "i2"),
    "dword": Load(4, ""),
    "dwordx2": Load(8, ""),
    "dwordx3": Load(12, ""),
    "dwordx4": Load(16, ""),
    "ubyte_d16": Load(1, "u1", "low"),
    "ubyte_d16_hi": Load(1, "u1", "high"),
    "sbyte_d16": Load(1, "i1", "low"),
    "sbyte_d16_hi": Load(1, "i1", "high"),
    "short_d16": Load(2, "u2", "low"),
    "short_d16_hi": Load(2, "u2", "high"),
}
STORES = {
    "byte": Store(1),
    "byte_d16_hi": Store(1, 16),
    "short": Store(2),
    "short_d16_hi": Store(2, 16),
    "dword": Store(4),
    "dwordx2": Store(8),
    "dwordx3": Store(12),
    "dwordx4": Store(16),
}


def loaded(
    load: Load,
    memory: Array,
    offsets: Array,
    mask: int,
    in_bounds: Callable[[int], bool] | None = None,
) -> Array:
    """Result registers of a load; `inside(end)`: whether a dword (or part) ending there is read."""
    out = np.full((4, LANES), OLD, np.uint32)
    raw = memory.tobytes()
    for lane in np.flatnonzero(active(mask)):
        offset = int(offsets[lane])
        values = load.value(raw[offset : offset + load.bytes].ljust(load.bytes, b"\0"))
        for d, value in enumerate(values):
            end = offset + min(4 * d + 4, load.bytes)
            out[d, lane] = value if in_bounds is None or in_bounds(end) else 0
    return out


def stored(
    store: Store,
    memory: Array,
    offsets: Array,
    dwords: Array,
    mask: int,
    in_bounds: Callable[[int], bool] | None = None,
) -> Array:
    """The memory after a store of `dwords` [n, 64]; lanes in ascending order."""
    out = memory.copy()
    for lane in np.flatnonzero(active(mask)):
        offset = int(offsets[lane])
        raw = np.frombuffer(store.raw(dwords[:, lane]), np.uint8)
        for begin in range(0, store.bytes, 4):
            piece = raw[begin : begin + 4]
            if in_bounds is None or in_bounds(offset + begin + len(piece)):
                out[offset + begin : offset + begin + len(piece)] = piece
    return out


def assert_same(label: str, actual: Array, want: Array) -> None:
    """Bit equality; the first difference is named."""
    assert actual.shape == want.shape, (label, actual.shape, want.shape)
    wrong = np.argwhere(np.asarray(actual) != np.asarray(want))
    if len(wrong):
        offset = tuple(int(i) for i in wrong[0])
        raise AssertionError(
            f"{label}: {len(wrong)} of {actual.size} differ, first at {offset}: "
            f"got 0x{int(actual[offset]):x}, want 0x{int(want[offset]):x}"
        )
