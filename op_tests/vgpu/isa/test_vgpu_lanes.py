"""Instructions that move values between lanes or within a register: every DPP control, SDWA
selects, readlane, writelane, permlane swaps, and a reduction as compilers write it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from support.vgpu import reference as ref
from support.vgpu import valu_ops as ops
from support.vgpu.asm import LANES
from support.vgpu.cases import (
    ALL,
    ARCHS,
    MASKS,
    U64,
    Book,
    Case,
    Cases,
    Form,
    low32,
    op_case,
    place,
    set_mask,
    words_of,
)
from support.vgpu.reference import Array
from support.vgpu.swizzle import DPP_CONTROLS, SDWA_SELECTS, Dpp, Sdwa, exec_lanes

CASES = Cases()
SMALL = 2 * LANES
_BY_NAME = {op.name: op for op in ops.VOP1 + ops.VOP2}
UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")


def form_case(group: str, name: str, form: Form, label: str) -> None:
    CASES.groups.setdefault(group, []).append(op_case(_BY_NAME[name], form, SMALL, label))


for _i, _control in enumerate(DPP_CONTROLS):
    _rng = random.Random(_i)
    for _bound, _exec in itertools.product((False, True), (ALL, MASKS[_i % len(MASKS)])):
        _dpp = Dpp(_control, _rng.choice((15, 15, 6, 9)), _rng.choice((15, 15, 5, 10)), _bound)
        form_case(
            "dpp", "v_mov_b32", Form("_dpp", dpp=_dpp, exec=_exec), f"{_control} {_bound} {_exec:x}"
        )
    form_case("dpp", "v_sub_u32", Form("_dpp", dpp=Dpp(_control)), _control)
for _mask in range(16):
    form_case(
        "dpp masks",
        "v_mov_b32",
        Form("_dpp", dpp=Dpp("row_shr:1", _mask, 15, True)),
        f"row {_mask}",
    )
    form_case(
        "dpp masks",
        "v_mov_b32",
        Form("_dpp", dpp=Dpp("quad_perm:[1,0,3,2]", 15, _mask)),
        f"bank {_mask}",
    )

for _dst, _unused, _src in itertools.product(SDWA_SELECTS, UNUSED, SDWA_SELECTS):
    for _sext in (False, True):
        form_case(
            "sdwa",
            "v_mov_b32",
            Form("_sdwa", sdwa=Sdwa((_src,), (_sext,), _dst, _unused)),
            f"{_dst} {_unused} {_src} {_sext}",
        )
for _a, _b in itertools.product(SDWA_SELECTS, SDWA_SELECTS):
    form_case(
        "sdwa sources", "v_sub_u32", Form("_sdwa", sdwa=Sdwa((_a, _b), (True, False))), f"{_a} {_b}"
    )
    form_case(
        "sdwa sources",
        "v_sub_u16",
        Form("_sdwa", sdwa=Sdwa((_a, _b), (False, True), "BYTE_1", "UNUSED_PRESERVE")),
        f"{_a} {_b}",
    )


# ---------------------------------------------------------------- lanes and scalars


def wave_rows(lanes: Array, column: int) -> Array:
    return low32(lanes[:, column]).reshape(-1, LANES)


def scalar_result(value: Array) -> Array:
    """A wave's scalar (one a wave) in v20, column 1 of the old pair untouched."""
    return value.repeat(LANES)


def lane_case(name: str, asm: str, expect: Callable[[Array], Array]) -> Case:
    return CASES.add(
        "lane access", name, asm, "u32 u32 u32 u32", lambda lanes: [expect(lanes)], count=512
    )


TO_V20 = "s_nop 4\ns_mov_b64 exec, -1\nv_mov_b32 v20, {0}\n"
for _mask in (ALL, MASKS[0], MASKS[2], 1 << 63, 0):
    _lane = (_mask & -_mask).bit_length() - 1 if _mask else 0
    for _dst in ("s8", "vcc_hi"):
        lane_case(
            f"v_readfirstlane_b32 {_dst} {_mask:x}",
            set_mask("exec", _mask) + f"v_readfirstlane_b32 {_dst}, v8\n" + TO_V20.format(_dst),
            lambda lanes, lane=_lane: words_of(
                lanes[:, 3], (0, "u32", scalar_result(wave_rows(lanes, 0)[:, lane]))
            ),
        )
for _lane, _how in (
    (0, "0"),
    (63, "63"),
    (5, "s10"),
    (64 + 7, "s10"),
    (63, "m0"),
    (0xFFFFFFFF, "s10"),
):
    _setup = {"s10": f"s_mov_b32 s10, {_lane:#x}\n", "m0": f"s_mov_b32 m0, {_lane:#x}\n"}.get(
        _how, ""
    )
    # lanes that EXEC turns off can be read and written
    lane_case(
        f"v_readlane_b32 {_how} {_lane:x}",
        _setup
        + set_mask("exec", MASKS[0])
        + f"s_nop 4\nv_readlane_b32 s8, v8, {_how}\n"
        + TO_V20.format("s8"),
        lambda lanes, lane=_lane: words_of(
            lanes[:, 3], (0, "u32", scalar_result(wave_rows(lanes, 0)[:, lane & 63]))
        ),
    )

    def _written(lanes: Array, lane: int = _lane, value: int = 0xC0DE) -> Array:
        out = low32(lanes[:, 3]).reshape(-1, LANES).copy()
        out[:, lane & 63] = value
        return words_of(lanes[:, 3], (0, "u32", out.ravel()))

    lane_case(
        f"v_writelane_b32 {_how} {_lane:x}",
        _setup
        + set_mask("exec", MASKS[1])
        + (
            f"s_mov_b32 s8, 0xc0de\nv_writelane_b32 v20, s8, {_how}\n"
            if _how != "s10"
            else f"s_nop 4\nv_writelane_b32 v20, 33, {_how}\n"
        ),
        lambda lanes, lane=_lane, how=_how: _written(lanes, lane, 0xC0DE if how != "s10" else 33),
    )


def _swapped(step: int, lanes: Array) -> Array:
    """v_permlane<step>_swap_b32 v20, v21: odd rows of v20 and even rows of v21 change places."""
    a, b = (low32(lanes[:, 3] >> U64(shift)).reshape(-1, LANES) for shift in (0, 32))
    first, second = a.copy(), b.copy()
    for lane in range(LANES):
        if not lane // step & 1:
            first[:, lane + step], second[:, lane] = b[:, lane], a[:, lane + step]
    words = np.zeros((len(lanes), 4), np.uint32)
    place(words, 0, "u32", first.ravel())
    place(words, 32, "u32", second.ravel())
    return words


for _step in (16, 32):
    for _suffix in ("_e32", "_e64"):
        lane_case(
            f"v_permlane{_step}_swap_b32{_suffix}",
            f"v_permlane{_step}_swap_b32{_suffix} v20, v21\n",
            lambda lanes, step=_step: _swapped(step, lanes),
        ).arch = "gfx950"

# In-place DPP sums of a wave, as compilers emit them: lane 63 ends with the total.
_REDUCTION = "".join(
    f"s_nop 4\nv_add_u32_dpp v20, v20, v20 {control} bound_ctrl:0\n"
    for control in ("row_shr:1", "row_shr:2", "row_shr:4", "row_shr:8")
) + (
    "s_nop 4\nv_add_u32_dpp v20, v20, v20 row_bcast:15 row_mask:0xa\n"
    "s_nop 4\nv_add_u32_dpp v20, v20, v20 row_bcast:31 row_mask:0xc\n"
    "s_nop 4\nv_readlane_b32 s8, v20, 63\nv_mov_b32 v20, s8\n"
)
lane_case(
    "reduction",
    _REDUCTION,
    lambda lanes: words_of(
        lanes[:, 3], (0, "u32", scalar_result(low32(wave_rows(lanes, 3).sum(axis=1, dtype=U64))))
    ),
)

# Ballot and rank of the lanes that a compare finds.
_RANK = (
    "v_cmp_lt_u32 vcc, v8, v10\nv_mbcnt_lo_u32_b32 v20, vcc_lo, 0\n"
    "v_mbcnt_hi_u32_b32 v20, vcc_hi, v20\n"
)


def _rank(lanes: Array) -> Array:
    hits = (wave_rows(lanes, 0) < wave_rows(lanes, 1)).astype(np.int64)
    return words_of(lanes[:, 3], (0, "u32", (hits.cumsum(axis=1) - hits).ravel().astype(U64)))


lane_case("ballot rank", _RANK, _rank)

# DPP of wide values: row_newbcast is the only control.
for _op in ops.VOP1 + ops.VOP2:
    if any(ref.width(k) == 64 for k in [*_op.srcs, _op.dst]):
        for _i, _mask in enumerate((ALL, MASKS[0])):
            _dpp = Dpp(f"row_newbcast:{5 * _i + 3}", (15, 10)[_i], 15, bool(_i))
            CASES.groups.setdefault("wide dpp", []).append(
                op_case(_op, Form("_dpp", dpp=_dpp, exec=_mask), SMALL, f"dpp {_i}")
            )


def test_exec_lanes_pattern() -> None:
    """The reference's own lane numbering: bit 0 of a mask is lane 0."""
    assert exec_lanes(5, LANES)[:4].tolist() == [True, False, True, False]


@pytest.fixture(scope="module", params=ARCHS)
def book(request: pytest.FixtureRequest) -> Book:
    return Book(CASES.all(), request.param)


@pytest.mark.parametrize("name", CASES.groups)
def test_group(book: Book, name: str) -> None:
    book.run(CASES.groups[name])
