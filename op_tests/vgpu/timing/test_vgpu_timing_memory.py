"""What memory does to time beyond its plain rates: rows of HBM, atomics that XCDs share, flags that
workgroups wait for, and what a launch before has left in the caches."""

from __future__ import annotations

import numpy as np
import pytest

from rfops.cli.timing.micro import Micro, Micros
from rfops.vgpu.timed import TimedLaunch

# 16 bytes a lane, each line of 128 bytes once: its number times an odd one.
LINES = """
  s_mul_i32 s9, s2, s9
  v_add_u32 v10, s9, v0
  v_lshrrev_b32 v11, 3, v10
  v_mul_u32_u24 v11, {factor}, v11
  v_and_b32 v11, 0x3fffff, v11
  v_and_b32 v10, 7, v10
  v_lshlrev_b32 v10, 4, v10
  v_lshl_add_u32 v10, v11, 7, v10
"""
FILL = "  global_store_dwordx4 v10, v[12:15], s[4:5]\n"
READ = "  global_load_dwordx4 v[12:15], v10, s[4:5]\n"
WAIT = "  s_waitcnt vmcnt(0)\n"
# A kilobyte of its own for a block; one for eight neighbours, which are of eight XCDs.
OWN = "  s_lshl_b32 s10, s2, 10\n  v_lshl_add_u32 v10, v0, 2, s10\n"
SHARED = "  s_lshr_b32 s11, s2, 3\n" + OWN.replace("s2", "s11")
ADD = "  global_atomic_add_f32 v10, v1, s[4:5]\n"
STORE = "  global_store_dword v10, v1, s[4:5]\n"
LONG = 127 * 64  # clk of this:
SLEEP = "  s_sleep 127\n"
LOOK = """
wait_{name}:
  global_load_dword v2, v1, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s10, v2
  s_cmp_lt_u32 s10, {value}
  s_cbranch_scc1 wait_{name}
"""
LANE_0 = "  s_mov_b64 exec, 1\n  v_mov_b32 v3, 1\n"
# The first block sets the flag late, unless it is set; who has seen it sleeps as long again.
FLAG = f"""
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 wait_flag
  global_load_dword v2, v1, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s10, v2
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 done
{SLEEP}
  global_store_dword v1, v3, s[4:5] sc0 sc1
  s_branch done
{LOOK.format(name="flag", value=1)}
{SLEEP}
done:
"""
# Each block counts itself, the first one late, and waits for all.
COUNTER = f"""
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 count
{SLEEP}
count:
  global_atomic_add v1, v3, s[4:5] sc1
  s_waitcnt vmcnt(0)
{LOOK.format(name="counter", value=64)}
{SLEEP}
"""
# Each block of XCD 0, the first one late, looks how many have come, and counts itself; the last one
# puts the count back to zero.
COMERS = f"""
  s_and_b32 s10, s2, 7
  s_cbranch_scc1 gone
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 come
{SLEEP}
come:
  global_load_dword v2, v1, s[4:5] sc1
  s_waitcnt vmcnt(0)
  global_atomic_add v2, v1, v3, s[4:5] sc0
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s10, v2
  s_cmp_lg_u32 s10, 7
  s_cbranch_scc1 gone
  global_store_dword v1, v1, s[4:5] sc1
gone:
"""
KERNELS = {
    "in_order": Micro(READ, LINES.format(factor=1), WAIT, 32),
    "scattered": Micro(READ, LINES.format(factor=0x278E13), WAIT, 32),
    "fill": Micro(FILL, LINES.format(factor=1), vgprs=32),
    "store": Micro(STORE, OWN, WAIT, 32),
    "add": Micro(ADD, OWN, WAIT, 32),
    "add_shared": Micro(ADD, SHARED, WAIT, 32),
    "flag": Micro(FLAG, LANE_0, vgprs=32),
    "counter": Micro(COUNTER, LANE_0, vgprs=32),
    "comers": Micro(COMERS, LANE_0, vgprs=32),
}
MB = 1 << 20
MOST = 512 * MB  # what LINES reach


@pytest.fixture(scope="module")
def micros() -> Micros:
    return Micros(KERNELS, "gfx950")


def read(micros: Micros, kernel: str, size: int, cold: bool = True) -> TimedLaunch:
    data = np.zeros(MOST // 8 + 64, np.uint64)  # untouched pages cost the host nothing
    return micros.run(kernel, "MI350X", 1, data, size // 16384, 1024, cold=cold)


@pytest.mark.parametrize("arch, part", [("gfx942", "MI308X"), ("gfx950", "MI355X")])
def test_a_load_to_lds_takes_it_as_a_store_does(arch: str, part: str) -> None:
    """c20, c21: 256 bytes take LDS 4 clk, not the 2 of its width, whoever writes them."""
    lines = {
        "loads": "  global_load_lds_dword v10, s[4:5]\n" * 16 + WAIT,
        "stores": "  ds_write_b32 v10, v11\n" * 16 + "  s_waitcnt lgkmcnt(0)\n",
    }
    start = "  s_mov_b32 m0, 0\n  v_lshlrev_b32 v10, 2, v0\n"
    micros = Micros({name: Micro(text, start, lds=256) for name, text in lines.items()}, arch)
    launches = (micros.run(name, part, 8, np.zeros(64, np.uint64), 64, 64) for name in lines)
    loads, stores = (item.busy["lds"] * item.clocks for item in launches)
    assert stores > 0 and loads == pytest.approx(stores, rel=1e-6)


def tb_s(micros: Micros, kernel: str) -> float:
    short, long = (read(micros, kernel, size).us for size in (64 * MB, 192 * MB))
    return 128 * MB / (long - short) / 1e6


def test_a_line_of_another_row_costs_more(micros: Micros) -> None:
    """c67: 6.91 TB/s of HBM in order, where many lines of a row come one after another."""
    in_order = tb_s(micros, "in_order")
    assert in_order == pytest.approx(6.91, rel=0.10)
    assert tb_s(micros, "scattered") < 0.9 * in_order


def test_atomics_fetch_what_they_add_to(micros: Micros) -> None:
    """And a line that another XCD has had since crosses between them each time."""
    data = np.zeros(4 * MB, np.uint8).view(np.uint64)
    store, add, shared = (
        micros.run(kernel, "MI355X", 16, data, 4096, 256)
        for kernel in ("store", "add", "add_shared")
    )
    assert store.taken == add.taken == 0 and shared.taken > 0.8
    assert store.memory["mall"]["bytes"] == 0
    assert add.memory["mall"]["bytes"] == 4 * MB / 8
    assert add.us > 1.1 * store.us and shared.us > 1.5 * add.us
    assert shared.busy["fabric"] > 0.6


def test_writes_take_the_time_of_memory(micros: Micros) -> None:
    """As much as the path to memory carries, however many of them there are; what a launch before
    has left in the Infinity Cache is written there."""
    assert tb_s(micros, "fill") == pytest.approx(5.0, rel=0.05)
    cold, warm = (read(micros, "fill", 64 * MB, cold=c) for c in (True, False))
    assert cold.busy["hbm"] > 0.4 and warm.busy["hbm"] == 0
    more_than_it_holds = read(micros, "fill", 320 * MB, cold=False)
    assert more_than_it_holds.footprint_bytes == pytest.approx(320 * MB, rel=0.05)
    assert more_than_it_holds.busy["hbm"] > 0.4


@pytest.mark.parametrize("kernel", ["flag", "counter"])
def test_waiting_for_a_flag_takes_time(micros: Micros, kernel: str) -> None:
    """However the host runs them: who waits goes on when the flag has been set, in model time."""
    launches = [micros.run(kernel, "MI355X", 1, np.zeros(64, np.uint64), 64, 64) for _ in range(3)]
    launch = launches[0]
    assert 2 * LONG < launch.clocks < 2.5 * LONG
    assert 0.9 < launch.stalls["flag"] / (7 * LONG) < 1.2  # of XCD 0's eight blocks, but one
    assert all(item.figures == launch.figures for item in launches)


def test_a_look_at_a_count_waits_for_nobody(micros: Micros) -> None:
    """Neither for those who come later nor for the zero that the last one stores."""
    launch = micros.run("comers", "MI355X", 1, np.zeros(64, np.uint64), 64, 64)
    assert LONG < launch.clocks < 1.5 * LONG
    assert "flag" not in launch.stalls, launch.stalls


def test_a_flag_that_nobody_sets_in_the_sample(micros: Micros) -> None:
    """Nobody of XCD 0 stores to it: the wait is as long as the load."""
    data = np.ones(64, np.uint64)
    set_before = micros.run("flag", "MI355X", 1, data, 64, 64)
    assert set_before.clocks < 2.5 * LONG


def test_a_warm_launch_finds_what_fits(micros: Micros) -> None:
    """What an earlier launch has left: in L2 4 MiB of an XCD, in the Infinity Cache 256 MiB."""
    cold, warm = (read(micros, "in_order", 8 * MB, cold=c) for c in (True, False))
    assert cold.memory["l2"]["hit_rate"] == 0 and warm.memory["l2"]["hit_rate"] == 1
    assert warm.us < cold.us - 0.2
    cold, warm = (read(micros, "in_order", 128 * MB, cold=c) for c in (True, False))
    assert warm.memory["l2"]["hit_rate"] < 0.1 and warm.memory["hbm_read_bytes"] == 0
    assert warm.memory["hbm_rows_opened"] == 0 < cold.memory["hbm_rows_opened"]
    cold, warm = (read(micros, "in_order", MOST, cold=c) for c in (True, False))
    assert warm.us == cold.us
