"""The virtual GPU's counters against launches whose counts are known by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import rfops
from rfops.vgpu.counting import LaunchRecord, table
from support.calls import default_config
from support.vgpu.asm import Snippets, library

LDS_STRIDE = """
  v_and_b32 v30, 63, v0
  v_mul_u32_u24 v30, {stride}, v30
  ds_write_b32 v30, v8
  s_waitcnt lgkmcnt(0)
"""
SNIPPETS = {
    "fma": "v_fma_f32 v20, v8, v10, v12\n v_pk_fma_f32 v[20:21], v[8:9], v[8:9], v[10:11]\n",
    "stride4": LDS_STRIDE.format(stride=4),
    "stride8": LDS_STRIDE.format(stride=8),
    "stride64": LDS_STRIDE.format(stride=64),
    "same": LDS_STRIDE.format(stride=0),
    "split": "v_cmp_gt_u32 vcc, 32, v0\n s_and_saveexec_b64 s[10:11], vcc\n v_mov_b32 v20, 1\n",
    "mfma": "v_mfma_f32_16x16x32_f16 v[20:23], v[8:11], v[8:11], 0\n",
    "rates": "v_exp_f32 v20, v8\n v_mul_lo_u32 v21, v8, v9\n"
    " v_pk_mov_b32 v[22:23], v[8:9], v[8:9]\n",
    "float_atomics": "v_mov_b32 v30, 0\n ds_add_f32 v30, v8\n"
    " global_atomic_add_f32 v2, v8, s[6:7]\n buffer_inv sc1\n"
    " s_sleep 1\n s_nop 1\n s_setprio 0\n s_dcache_inv\n s_waitcnt 0\n",
    "reread": "global_load_dwordx4 v[24:27], v1, s[4:5]\n s_waitcnt vmcnt(0)\n" * 3,
}


@pytest.fixture(scope="module")
def batch() -> Snippets:
    return Snippets(list(SNIPPETS.values()), "gfx950")


@contextmanager
def counted() -> Iterator[list[LaunchRecord]]:
    with rfops.vgpu.profile() as profile:
        records: list[LaunchRecord] = []
        yield records
    records.extend(profile.launches)


def launch(batch: Snippets, name: str, waves: int = 1) -> LaunchRecord:
    with counted() as records:
        batch.run(list(SNIPPETS).index(name), np.zeros((64 * waves, 4), np.uint64))
    assert len(records) == 1
    return records[0]


def test_instructions_and_flops(batch: Snippets) -> None:
    record = launch(batch, "fma", waves=3)
    assert record.waves == record.workgroups == 3
    assert record.instructions["v_fma_f32"] == record.instructions["v_pk_fma_f32"] == 3
    assert record.instructions["s_endpgm"] == 3
    assert record.wave_instructions == sum(record.instructions.values())
    assert record.wave_instructions == sum(record.classes.values())
    assert record.valu_flops == 3 * 64 * (2 + 4)
    assert record.kernel == "k0" and record.arch == "gfx950"


def test_classes_and_what_is_no_vector_alu(batch: Snippets) -> None:
    """Other rates are classes of their own for the model of time, not here; atomics add in LDS and
    in the cache, which is no work of the vector ALU."""
    plain, rates, atomics = (launch(batch, name) for name in ("reread", "rates", "float_atomics"))

    def more(record: LaunchRecord) -> dict[str, int]:
        return {
            key: record.classes.get(key, 0) - plain.classes.get(key, 0)
            for key in ("valu", "trans", "lds", "vmem", "wait", "other", "smem")
        }

    reread = {"vmem": -3, "wait": -3}
    none = dict.fromkeys(("valu", "trans", "lds", "vmem", "wait", "other", "smem"), 0)
    assert more(rates) == none | reread | {"valu": 2, "trans": 1}
    counts = {"valu": 1, "lds": 1, "vmem": -3 + 2, "wait": -3 + 3, "other": 1, "smem": 1}
    assert more(atomics) == none | counts
    assert rates.valu_flops == 64 and atomics.valu_flops == 0


def test_global_traffic(batch: Snippets) -> None:
    record = launch(batch, "fma", waves=4)  # 32 bytes in and 16 bytes out a lane
    assert record.global_read["bytes"] == 4 * 64 * 32
    assert record.global_write["bytes"] == 4 * 64 * 16
    lines = 4 * 64 * 32 // 64
    assert lines <= record.global_read["lines_64B"] <= lines + 1  # numpy's array may start anywhere
    assert record.scalar_read["bytes"] == 4 * 16


def test_a_reread_shows_in_requests_and_not_in_lines(batch: Snippets) -> None:
    once, repeated = launch(batch, "fma"), launch(batch, "reread")
    apart = repeated.global_read["lines_64B"] - once.global_read["lines_64B"]
    assert abs(apart) <= 1  # the two launches' arrays may start at different places in a line
    assert repeated.global_read["requests_64B"] > 2 * once.global_read["requests_64B"]


@pytest.mark.parametrize(
    ("name", "conflicts"),
    [("stride4", 0), ("stride8", 2), ("stride64", 30), ("same", 0)],
)
def test_bank_conflicts(batch: Snippets, name: str, conflicts: int) -> None:
    """ds_write_b32, 32 banks and two phases of 32 lanes: a stride of two dwords meets twice, one
    of sixteen dwords sixteen times."""
    record = launch(batch, name)
    assert record.lds_conflict_cycles == conflicts
    assert record.lds_cycles == conflicts + 2
    assert record.lds_write_bytes == 64 * 4


def test_a_split_of_exec(batch: Snippets) -> None:
    assert launch(batch, "split").exec_splits == 1
    assert launch(batch, "fma").exec_splits == 0


def test_matrix_instructions(batch: Snippets) -> None:
    record = launch(batch, "mfma", waves=2)
    assert record.mfma == {"v_mfma_f32_16x16x32_f16": 2}
    assert record.mfma_flops == 2 * 2 * 16 * 16 * 32
    assert record.mfma_cycles == 2 * 16


def test_nothing_is_counted_outside_the_block(batch: Snippets) -> None:
    batch.run(0, np.zeros((64, 4), np.uint64))
    with counted() as records:
        pass
    assert records == []
    take = library().rfops_vgpu_profile_take
    take.restype = ctypes.c_char_p
    batch.run(0, np.zeros((64, 4), np.uint64))
    assert take() == b"[]"


def test_nested_blocks_each_see_their_launches(batch: Snippets) -> None:
    inputs = np.zeros((64, 4), np.uint64)
    with rfops.vgpu.profile() as outer:
        batch.run(0, inputs)
        with rfops.vgpu.profile() as inner:
            batch.run(1, inputs)
        with rfops.vgpu.profile() as same:  # equal to `inner` when it ends
            batch.run(1, inputs)
        batch.run(2, inputs)
    assert [record.kernel for record in inner.launches] == ["k1"]
    assert [record.kernel for record in same.launches] == ["k1"]
    assert [record.kernel for record in outer.launches] == ["k0", "k1", "k1", "k2"]


def test_an_error_ends_the_counting(batch: Snippets) -> None:
    with pytest.raises(ZeroDivisionError), rfops.vgpu.profile():
        batch.run(0, np.zeros((64 // (1 - 1), 4), np.uint64))
    assert library().rfops_vgpu_profile(0) == 0


def test_the_estimate_is_timing_modes(batch: Snippets) -> None:
    """Alone the usual one, within a timing() that one's; and the clock is their sum."""
    inputs = np.zeros((64, 4), np.uint64)
    with rfops.vgpu.timing() as t:
        batch.run(1, inputs)
    previous = rfops.vgpu.modelled_ms()
    batch.run(0, inputs)  # not timed
    assert rfops.vgpu.modelled_ms() == previous
    with rfops.vgpu.profile() as p:
        for name in (1, 0, 7):
            batch.run(name, inputs)
    estimates = [record.estimate() for record in p.launches]
    assert [e.kernel for e in estimates] == ["k1", "k0", "k7"]
    # Another array, at another place in its page.
    assert estimates[0].us == pytest.approx(t.launches[0].us, abs=0.05)
    assert all(e.low < e.us < e.high and e.us > e.floor_us and e.bound for e in estimates)
    ms = sum(e.us for e in estimates) / 1e3
    assert rfops.vgpu.modelled_ms() - previous == pytest.approx(
        ms, abs=1e-8
    )  # of whole picoseconds
    with rfops.vgpu.timing("MI350X", kind="event") as t, rfops.vgpu.profile() as p:
        batch.run(1, inputs)
    assert p.launches[0].estimate() is t.launches[0]
    assert (t.launches[0].part, t.launches[0].kind) == ("MI350X", "event")
    assert f"{t.launches[0].us:.2f} us" in table(p.launches[0])


@pytest.mark.requires_gfx950
@pytest.mark.parametrize("m", [1, 5, 16])
def test_gemv_reads_each_byte_once_from_memory(m: int) -> None:
    """The floor in bytes: each line of x, w and their scales comes from memory once, for any M."""
    n, k = 256, 2048
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, k))
    w, w_scale = rfops.quant_mxfp8(torch.randn(n, k))
    with counted() as records:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale, config=default_config("gemv", m, n, k))
    (record,) = records
    floor = (m + n) * (k + k // 32)
    read = record.global_read["lines_64B"] * 64
    assert floor <= read <= floor + 4 * 2 * 64, "more lines than the tensors have"
    loads = record.instructions["buffer_load_dwordx4"] * 64 * 16
    assert loads >= (m + n) * k
    assert record.vgpr_spills == record.sgpr_spills == record.scratch_bytes_per_lane == 0
    assert record.mfma == {}
    assert f"{read} B)" in table(record)
