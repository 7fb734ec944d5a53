"""Timing mode: what it takes down, what it says, and that it changes nothing else."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import rfops
from rfops.cli.timing.micro import Micro, Micros
from rfops.jit import settings
from rfops.vgpu import timed_text
from rfops.vgpu.timed import TimedLaunch
from support.a8w8_problems import random_problem
from support.process import python, run
from support.vgpu.asm import library

LDS_TRIP = """
  ds_write_b32 v10, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v11, v10
  global_load_dword v12, v1, s[4:5]
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_u32 v11, v11, v12
"""
# The first workgroup sets a flag when all of it is done; the others wait for it.
FLAG = """
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 wait
  s_nop 7
  v_mov_b32 v2, 1
  global_store_dword v1, v2, s[4:5] sc0 sc1
  s_branch done
wait:
  global_load_dword v2, v1, s[4:5] sc0 sc1
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s10, v2
  s_cmp_eq_u32 s10, 0
  s_cbranch_scc1 wait
done:
  s_nop 0
"""
KERNELS = {
    "lds": Micro(LDS_TRIP, "  v_lshlrev_b32 v10, 2, v0\n", lds=4096),
    "flag": Micro(FLAG, vgprs=16),
    "early_out": Micro("  s_nop 7\n" * 16, "  s_cmp_gt_u32 s2, 3000\n  s_cselect_b32 s8, 1, s8\n"),
}


@pytest.fixture(scope="module")
def micros() -> Micros:
    return Micros(KERNELS, "gfx942")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test set RFOPS_VGPU_TIMING_SET, which the library reads at each launch."""
    yield monkeypatch


@functools.cache
def operands() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    x, x_scale = rfops.quant_mxfp8(torch.randn(16, 1024))
    w, w_scale = rfops.quant_mxfp8(torch.randn(512, 1024))
    return x, w, x_scale, w_scale


OUT = torch.empty(16, 512, dtype=torch.bfloat16)


def gemm() -> torch.Tensor:
    return rfops.gemm_mxfp8(*operands(), out=OUT.fill_(torch.nan))


def timed_gemm(**options: object) -> TimedLaunch:
    operands()
    with rfops.vgpu.timing(**options) as t:  # type: ignore[arg-type]
        gemm()
    return t.launches[-1]


def test_replayed_instructions_are_those_counted(
    micros: Micros, changed: pytest.MonkeyPatch
) -> None:
    """With one XCD for all, the sample is the launch."""
    changed.setenv("RFOPS_VGPU_TIMING_SET", "xccs=1 cus=38")
    with rfops.vgpu.profile() as p:
        launch = micros.run("lds", "MI300X", 5, np.zeros(64, np.uint64), 40, 256)
    assert launch.sampled["workgroups"] == launch.sampled["of"] == 40
    assert launch.sampled["wave_instructions"] == p.launches[0].wave_instructions
    with rfops.vgpu.profile() as p:
        record = timed_gemm()
    counted = p.launches[-1]
    assert record.sampled["wave_instructions"] == counted.wave_instructions
    issued: dict[str, int] = {}
    for row in record.pcs:
        name = row["text"].split()[0]
        issued[name] = issued.get(name, 0) + row["issued"]
    assert issued["buffer_load_dwordx4"] == counted.instructions["buffer_load_dwordx4"]
    assert sum(issued.values()) == counted.wave_instructions


def test_results_stay_what_they_are() -> None:
    expected = gemm().clone()
    operands()
    with rfops.vgpu.timing() as t:
        assert torch.equal(gemm(), expected)
    assert len(t.launches) == 1


def test_a_record_says_all() -> None:
    record = timed_gemm(part="MI350X", events=100)
    assert (record.part, record.arch, record.kind, record.error) == (
        "MI350X",
        "gfx950",
        "profiler",
        "",
    )
    assert 0 < record.low < record.us < record.high
    assert 0 < record.clock_ghz <= 2.2
    assert {"valu", "mfma", "lds", "vmem", "l2", "fabric", "hbm"} <= set(record.busy)
    assert all(0 <= share <= 1 for share in record.busy.values())
    assert record.memory["l2"]["bytes"] > 0 and 0 <= record.memory["l1"]["hit_rate"] <= 1
    by_pc: dict[str, int] = {}
    for row in record.pcs:
        for reason, clk in row["stalls"].items():
            by_pc[reason] = by_pc.get(reason, 0) + clk
    assert by_pc == record.stalls and by_pc["vmcnt"] > 0
    assert len(record.events) == 100
    assert [event[0] for event in record.events] == sorted(event[0] for event in record.events)
    assert '"us"' in record.json()
    with pytest.raises(AttributeError, match="no figure 'colour'"):
        _ = record.colour


def test_cold_costs_more_and_kinds_differ(micros: Micros) -> None:
    data = np.zeros(64, np.uint64)
    cold, warm = (micros.run("lds", "MI300X", 1, data, cold=c).us for c in (True, False))
    assert cold > warm
    event, profiler = (
        micros.run("lds", "MI300X", 1, data, kind=k).us for k in ("event", "profiler")
    )
    assert event - profiler == pytest.approx(5.65 - 2.0)


def test_a_first_launch_waits_for_its_code() -> None:
    first, later = timed_gemm(cold_code=True), timed_gemm()
    assert first.us > later.us
    assert first.stalls["instruction_cache"] > 0 and "instruction_cache" not in later.stalls


def test_blocks_nest() -> None:
    operands()
    with rfops.vgpu.timing() as outer:
        gemm()
        with rfops.vgpu.timing(kind="event") as inner:
            gemm()
        gemm()
    gemm()
    assert [launch.kind for launch in outer.launches] == ["profiler", "event", "profiler"]
    assert [launch.kind for launch in inner.launches] == ["event"]
    assert outer.launches[0].figures == outer.launches[2].figures


def test_long_launches_are_sampled(micros: Micros) -> None:
    """Of 128 rounds four are replayed; the time grows with the rounds all the same."""
    short, long = (
        micros.run("lds", "MI300X", 2, np.zeros(64, np.uint64), n * 304 * 8, 256) for n in (32, 128)
    )
    assert short.sampled["workgroups"] == long.sampled["workgroups"] < 38 * 8 * 6
    assert long.sampled["left_out_of_xcd"] == 38 * 8 * 124
    assert (long.us - 2) / (short.us - 2) == pytest.approx(4, rel=0.05)


def test_a_trace_has_an_end(micros: Micros, changed: pytest.MonkeyPatch) -> None:
    """A kernel that goes on for as long as there is work: what its traces have no room for is
    counted, and goes on as before."""
    data = np.zeros(64, np.uint64)
    whole = micros.run("lds", "MI300X", 2000, data, 64, 256)
    changed.setenv("RFOPS_VGPU_TIMING_SET", f"trace_words={64 * 4 * 800}")
    cut = micros.run("lds", "MI300X", 2000, data, 64, 256)
    assert whole.sampled["left_out_instructions"] == 0
    # Of other XCDs too, which are looked at for the lines that they share.
    looked_at = (cut.sampled["workgroups"] + cut.sampled["looked_at_for_sharing"]) / 8
    instructions = whole.sampled["wave_instructions"]
    left_out = instructions - cut.sampled["wave_instructions"]
    assert cut.sampled["left_out_instructions"] == left_out * looked_at > 0.5 * instructions
    assert cut.us - cut.floor_us == pytest.approx(whole.us - whole.floor_us, rel=0.05)
    narrow, wide = ((launch.high - launch.us) / launch.us for launch in (whole, cut))
    assert wide == pytest.approx(2 * narrow, rel=0.01), "a wider band"
    assert "instructions at their ends too" in timed_text.table(cut)
    assert "cycles in the replayed part of XCD 0 of 8" in timed_text.table(cut)


def test_waiting_for_a_flag_counts_once(micros: Micros) -> None:
    """However often the host lets them look; and where only the sample runs, the rest follows."""
    counts = set()
    for _ in range(3):
        launch = micros.run("flag", "MI300X", 1, np.zeros(64, np.uint64), 64, 64)
        counts.add(launch.sampled["wave_instructions"])
    assert counts == {launch.sampled["wave_instructions"]}
    assert launch.us < 20


def test_events_of_a_program_measure_modelled_time(micros: Micros) -> None:
    """hipEventElapsedTime; a pair of which one lies outside measures the host's, as always."""
    lib, milliseconds = library(), ctypes.c_float()
    outside, first, last = (ctypes.c_void_p() for _ in range(3))
    for event in (outside, first, last):
        assert lib.hipEventCreate(ctypes.byref(event)) == 0
    assert lib.hipEventRecord(outside, None) == 0
    with rfops.vgpu.timing() as t:
        assert lib.hipEventRecord(first, None) == 0
        for _ in range(3):
            micros.run("lds", "MI300X", 50, np.zeros(64, np.uint64), 64)
        assert lib.hipEventRecord(last, None) == 0
    assert lib.hipEventElapsedTime(ctypes.byref(milliseconds), first, last) == 0
    assert milliseconds.value == pytest.approx(sum(r.us for r in t.launches) / 1e3, rel=1e-6)
    assert lib.hipEventElapsedTime(ctypes.byref(milliseconds), last, first) == 0
    assert milliseconds.value == pytest.approx(-sum(r.us for r in t.launches) / 1e3, rel=1e-6)
    assert lib.hipEventElapsedTime(ctypes.byref(milliseconds), outside, last) == 0
    assert milliseconds.value > 0
    for event in (outside, first, last):
        assert lib.hipEventDestroy(event) == 0


PAGES = """
import torch, rfops
def page(t):
    room = torch.empty(t.nbytes + 4096, dtype=torch.uint8)
    at = -room.data_ptr() % 4096
    return room[at : at + t.nbytes].view(t.dtype).view(t.shape).copy_(t)
torch.manual_seed(1)
x, xs = map(page, rfops.quant_mxfp8(torch.randn(16, 1024)))
w, ws = map(page, rfops.quant_mxfp8(torch.randn(512, 1024)))
out = page(torch.empty(16, 512, dtype=torch.bfloat16))
with rfops.vgpu.timing() as t:
    rfops.gemm_mxfp8(x, w, xs, ws, out=out)
print(t.launches[0].json())
"""


def test_the_same_for_any_number_of_threads() -> None:
    """And in every process: of where the host put memory only the place in a page matters."""
    texts = set()
    for threads in "1", "3":
        env = os.environ | {"RFOPS_VGPU_THREADS": threads, "MALLOC_MMAP_THRESHOLD_": "1024"}
        completed = subprocess.run(
            [sys.executable, "-c", PAGES], env=env, capture_output=True, text=True, check=True
        )
        texts.add(completed.stdout)
    assert len(texts) == 1


SPLIT = """
import torch
from rfops import vgpu
from rfops.cli.common import with_ops
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, call_on
with_ops()
CASES = (
    ("gemm_a8w8_blockscale", {"M": 1, "N": 512, "K": 7168}, "stream",
     "m_tiles=1 n_tiles=1 steps=4 waves=1 split=8 lines=0 x_first=0"),
    ("gemm_a8w8_blockscale", {"M": 64, "N": 256, "K": 2048}, "staged",
     "m=64 n=64 split=4 group_m=4"),
    ("gemm_afp4wfp4", {"M": 32, "N": 512, "K": 7168}, "stream",
     "m_tiles=2 n_tiles=2 steps=4 waves=2 split=4"),
    ("mla_decode", {"B": 4, "H": 16, "S": 4096}, "flow", "workers=256 least=32"),
)
for name, sizes, kernel, config in CASES:
    op = ops()[name]
    problem = Problem(op, call_on(op, sizes, torch.device("cpu")))
    launch = problem.launch_by(problem.prepare(kernel, op.parse_config(op.kernels[kernel], config)))
    with vgpu.timing(detail=False) as timed:
        for _ in range(5):
            launch()
    print(name, kernel, *sorted({launch.us for launch in timed.launches}))
"""


def test_a_split_launch_takes_the_same_every_time() -> None:
    """Who is last to arrive, and so adds up, does not depend on how fast the host's threads are."""
    texts = set()
    for threads in "1", "2", "4":
        env = {"RFOPS_VGPU_THREADS": threads, "RFOPS_VGPU_ARCH": "gfx950"}
        texts.add(python(SPLIT, check=True, **env).stdout)
    assert len(texts) == 1, texts


def test_refusals(changed: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kind must be one of profiler, event, graph, got 'wall'"):
        rfops.vgpu.timing(kind="wall")
    expected = pytest.raises(ValueError, match=r"part 'MI999X', expected one of MI355X, MI300X")
    with expected, rfops.vgpu.timing(part="MI999X"):
        pass
    changed.setenv("RFOPS_VGPU_PART", "MI308X")
    assert settings.text("RFOPS_VGPU_ARCH") == "gfx942"
    changed.setenv("RFOPS_VGPU_ARCH", "gfx950")
    assert settings.text("RFOPS_VGPU_ARCH") == "gfx950"


SETTING = """
import ctypes, rfops, torch
from rfops.vgpu import library_path
lib = ctypes.CDLL(str(library_path()))
count = ctypes.c_int()
status = lib.hipDeviceGetAttribute(ctypes.byref(count), 63, 0)
lib.rfops_vgpu_last_error.restype = ctypes.c_char_p
print(status, count.value, lib.rfops_vgpu_last_error().decode())
"""


def run_setting(**variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "RFOPS_VGPU_ARCH"}
    return run(SETTING, ["-c"], env | variables)


def test_properties_follow_the_part() -> None:
    assert run_setting(RFOPS_VGPU_PART="MI308X").stdout.split()[:2] == ["0", "80"]
    assert run_setting().stdout.split()[:2] == ["0", "256"]
    wrong = run_setting(RFOPS_VGPU_PART="MI1")
    assert "part 'MI1' is not modelled: expected one of MI355X" in wrong.stdout + wrong.stderr


def test_a_process_that_only_tells() -> None:
    script = (
        "import torch, rfops\n"
        "x, xs = rfops.quant_mxfp8(torch.randn(1, 256))\n"
        "w, ws = rfops.quant_mxfp8(torch.randn(64, 256))\n"
        "rfops.gemm_mxfp8(x, w, xs, ws)\n"
    )
    env = {"RFOPS_VGPU_TIMING": "1", "RFOPS_VGPU_LOG": "1"}
    completed = python(script, **env)
    assert completed.returncode == 0
    lines = [line for line in completed.stderr.splitlines() if "estimated" in line]
    assert len(lines) == 3 and sum("quant_mxfp8" in line for line in lines) == 2
    line = lines[-1]
    assert " us (" in line and "on MI355X at 2.40 GHz" in line
    within = script.replace("rfops.gemm", "with rfops.vgpu.timing() as t: rfops.gemm")
    within += "print(len(t.launches))\n"
    completed = python(within, **env)
    assert completed.stdout == "1\n" and completed.stderr.count("estimated") == 3, (
        "and to the block"
    )


def test_calls_after_one_without_results_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workgroups that did not run left counts of those that come last to a sum."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    case = random_problem(64, 576, 2048, "gfx950")
    args = case.x, case.w, case.x_scale, case.w_scale
    expected = rfops.gemm_a8w8_blockscale(*args)
    with rfops.vgpu.timing(results=False):
        rfops.gemm_a8w8_blockscale(case.x, case.w, 2 * case.x_scale, case.w_scale)
    assert torch.equal(rfops.gemm_a8w8_blockscale(*args), expected)
