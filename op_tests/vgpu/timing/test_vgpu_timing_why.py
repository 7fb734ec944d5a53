"""What timing mode shows: the annotated listing, and the timeline that Perfetto opens."""

from __future__ import annotations

import ctypes
import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from elftools.elf.elffile import ELFFile

import rfops
from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig
from rfops.jit import compile_ops
from rfops.jit.paths import CSRC
from rfops.vgpu import source, timed_text, timeline
from rfops.vgpu.timed import TimedLaunch
from support.vgpu.hip import Hip, compile_hip

Slices = list[dict[str, Any]]
KERNEL = """
extern "C" __attribute__((global)) void chase(void** at, int trips) {
  void** p = at;
  for (int i = 0; i < trips; ++i)
    p = (void**)*p;  // here
  at[1] = p;
}
"""


@functools.cache
def launches() -> tuple[TimedLaunch, ...]:
    """Two, the second of more workgroups than the compute unit has at once."""
    torch.manual_seed(1)
    results = []
    for m, n in ((16, 512), (16, 65536)):
        x, x_scale = rfops.quant_mxfp8(torch.randn(m, 256))
        w = torch.randint(0, 100, (n, 256), dtype=torch.uint8).view(torch.float8_e4m3fn)
        w_scale = torch.full((n, 8), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        with rfops.vgpu.timing("MI355X", events=1_000_000) as t:
            rfops.gemm_mxfp8(x, w, x_scale, w_scale)
        results += t.launches
    return tuple(results)


def ps(us: float) -> int:
    """Picoseconds, in which slices that meet do so exactly."""
    return round(us * 1e6)


def check_well_formed(trace: dict[str, Any]) -> Slices:
    """As Perfetto's and chrome://tracing's readers want it."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    slices: Slices = trace["traceEvents"]
    named = [s for s in slices if s["ph"] == "M"]
    assert slices[: len(named)] == named, "names come first"
    remaining = slices[len(named) :]
    assert {s["ph"] for s in remaining} == {"X", "C"}
    stamps = [s["ts"] for s in remaining]
    assert stamps == sorted(stamps) and stamps[0] >= 0
    of = {
        kind: {(s["pid"], s.get("tid")) for s in named if s["name"] == f"{kind}_name"}
        for kind in ("process", "thread")
    }
    assert {(s["pid"], None) for s in remaining} == of["process"]
    assert {(s["pid"], s["tid"]) for s in remaining if s["ph"] == "X"} == of["thread"]
    for offset in of["thread"]:
        open_ends: list[int] = []
        for s in remaining:
            if s["ph"] != "X" or (s["pid"], s["tid"]) != offset:
                continue
            start, end = ps(s["ts"]), ps(s["ts"]) + ps(s["dur"])
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert start < end, s
            assert not open_ends or end <= open_ends[-1], f"{s} goes on after what it is in"
            open_ends.append(end)
        assert len(open_ends) <= 2
    for s in remaining:
        if s["ph"] == "C":
            assert s["args"] and all(value >= 0 for value in s["args"].values()), s
    return slices


def of_category(slices: Slices, cat: str, index: int) -> Slices:
    pids = range(index * 10 + 1, index * 10 + 11)
    return [s for s in slices if s.get("cat") == cat and s["pid"] in pids]


def test_a_timeline_is_well_formed_and_has_all() -> None:
    trace = timeline.trace(launches(), max_issues=1_000_000)
    slices = check_well_formed(trace)
    start = 0.0
    for index, launch in enumerate(launches()):
        waves = {event[3] for event in launch.events}
        assert len(of_category(slices, "wave", index)) == len(waves)
        issues = of_category(slices, "issue", index)
        assert sum(s["args"]["issued"] for s in issues) == len(launch.events)
        assert len(issues) < len(launch.events), "merged"
        units = of_category(slices, "unit", index)
        assert sum(s["args"]["instructions"] for s in units) == len(launch.events)
        waited: dict[str, int] = {}
        for s in of_category(slices, "stall", index):
            waited[s["name"]] = waited.get(s["name"], 0) + ps(s["dur"])
        message = sum(e[4] for e in launch.events if e[5] == "vmcnt" and e[4] > 4)
        assert waited["vmcnt"] == pytest.approx(message / launch.clock_ghz * 1e3, rel=1e-3)
        (whole,) = of_category(slices, "launch", index)
        assert whole["name"] == launch.kernel and whole["ts"] == pytest.approx(start)
        inside = [s for s in slices if s["pid"] // 10 == index and s["ph"] == "X"]
        assert max(s["ts"] + s["dur"] for s in inside) <= start + launch.us + 1e-3
        start += launch.us
        counted = [
            s["args"]["waves"]
            for s in slices
            if s["ph"] == "C" and s["name"] == "waves" and s["pid"] == index * 10 + 1
        ]
        assert max(counted) > 0 and counted[-1] == 0
    told_of = trace["otherData"]["launches"]
    assert [launch["capped"] for launch in told_of] == [False, False]
    assert "estimated" in trace["otherData"]["what"]


def test_matrix_units_are_busy_as_long_as_they_work() -> None:
    trace = timeline.trace(launches()[:1])
    mfma = [s for s in of_category(trace["traceEvents"], "unit", 0) if s["name"] == "mfma"]
    rows = {row["offset"]: row for row in launches()[0].pcs}
    issued = [e for e in launches()[0].events if rows[e[1]]["unit"] == "mfma"]
    assert sum(s["args"]["instructions"] for s in mfma) == len(issued) > 0
    longest = max(rows[event[1]]["unit_clk"] for event in issued)
    assert longest >= 8 and longest / 2.4e3 <= max(s["dur"] for s in mfma) + 1e-6


def test_a_timeline_is_capped() -> None:
    trace = timeline.trace(launches(), max_issues=50)
    issues = of_category(check_well_formed(trace), "issue", 1)
    assert sum(s["args"]["issued"] for s in issues) == 50
    assert [launch["capped"] for launch in trace["otherData"]["launches"]] == [True, True]
    assert timeline.trace([])["traceEvents"] == []


def test_a_timeline_needs_events() -> None:
    x, x_scale = rfops.quant_mxfp8(torch.randn(1, 256))
    w, w_scale = rfops.quant_mxfp8(torch.randn(64, 256))
    config = MfmaConfig(m_tiles=1, n_tiles=1, steps=1, waves=2, split=1)
    with rfops.vgpu.timing() as t:
        rfops.gemm_mxfp8(x, w, x_scale, w_scale, config=config)
    with pytest.raises(ValueError, match=r"launch 0, mxfp8_mfma, has no events; time it with"):
        timeline.trace(t.launches)


def test_a_listing_marks_what_waits_most() -> None:
    launch = launches()[0]
    head, _, *lines = timed_text.annotate(launch).splitlines()
    rows = [line for line in lines if not line.startswith("  ; ")]
    total = sum(launch.stalls.values())
    assert f"{total} clk" in head and len(rows) == len(launch.pcs)
    marked = [row for row in rows if row.startswith("  >")]
    assert len(marked) == timed_text.NUM_MARKED
    worst = max(launch.pcs, key=lambda row: sum(row["stalls"].values()))
    (line,) = [row for row in marked if f"{worst['offset']:#x} " in row]
    clk = sum(worst["stalls"].values())
    assert line.split()[2:5] == [str(worst["issued"]), str(clk), f"{clk / total:.1%}"]
    reason, most = max(worst["stalls"].items(), key=lambda item: item[1])
    assert f"{reason} {most}" in line
    assert worst["text"] in line or line.split()[5] == "s_waitcnt"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("s_waitcnt 0xf70", "s_waitcnt vmcnt(0)"),
        ("s_waitcnt 0xc07f", "s_waitcnt lgkmcnt(0)"),
        ("s_waitcnt 0x4171", "s_waitcnt vmcnt(17) lgkmcnt(1)"),
        ("s_waitcnt 0x0", "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)"),
        ("s_waitcnt 0xcf7f", "s_waitcnt 0xcf7f"),
        ("v_mov_b32_e32 v1, 0xf70", "v_mov_b32_e32 v1, 0xf70"),
    ],
)
def test_waits_are_readable(text: str, expected: str) -> None:
    launch = launches()[0]
    row = {"offset": 256, "text": text, "issued": 1, "stalls": {"vmcnt": 4}}
    one = TimedLaunch({**launch.figures, "pcs": [row]})
    assert f"  {expected}  " in timed_text.annotate(one)


@pytest.mark.parametrize("flags, has", [(("-gline-tables-only",), True), ((), False)])
def test_source_lines(vgpu_path: Path, tmp_path: Path, flags: tuple[str, ...], has: bool) -> None:
    """The load that is waited for, by its line; where there are no debug lines, none are told."""
    hip = Hip(vgpu_path)
    hip.select("gfx942")
    module = hip.load(compile_hip(KERNEL, "gfx942", tmp_path, *flags))
    memory = (ctypes.c_void_p * 2)()
    memory[0] = ctypes.addressof(memory)
    with rfops.vgpu.timing("MI300X") as t:
        hip.launch(
            hip.function(module, "chase"),
            ctypes.c_void_p(ctypes.addressof(memory)),
            ctypes.c_int(8),
            block=(64,),
        )
    text = timed_text.annotate(t.launches[0])
    assert any("source" in row for row in t.launches[0].pcs) == has
    assert ("; " in text) == ("p = (void**)*p;  // here" in text) == has


CALLS = """
__attribute__((device)) inline void rest() {
  __builtin_amdgcn_s_sleep(1);  // sleep
}
__attribute__((device)) inline void twice() {
  rest();  // first
  rest();  // second
}
extern "C" __attribute__((global)) void chase(int trips) {
  for (int i = 0; i < trips; ++i)
    twice();  // kernel
}
"""


@pytest.mark.parametrize("dwarf", [4, 5])
def test_lines_that_an_inlined_call_is_from(vgpu_path: Path, tmp_path: Path, dwarf: int) -> None:
    """Each sleep has its own line, then the calls around it up to the kernel's; of DWARF 4, which
    clang does not write by default, the line alone."""
    hip = Hip(vgpu_path)
    hip.select("gfx942")
    flags = ("-gline-tables-only", f"-gdwarf-{dwarf}")
    module = hip.load(compile_hip(CALLS, "gfx942", tmp_path, *flags))
    with rfops.vgpu.timing("MI300X") as t:
        hip.launch(hip.function(module, "chase"), ctypes.c_int(8), block=(64,))
    lines = CALLS.splitlines()

    def marks(row: dict[str, Any]) -> list[str]:
        places = source.locations(row, "chase")
        return [lines[source.line_of(place) - 1].rpartition("// ")[2] for place in places]

    sleeps = [row for row in t.launches[0].pcs if row["text"].startswith("s_sleep")]
    chains = {tuple(marks(row)) for row in sleeps}
    if dwarf == 4:
        assert chains == {("sleep",)}
        return
    assert chains == {("sleep", "first", "kernel"), ("sleep", "second", "kernel")}
    own = source.own_location(sleeps[0], "chase")
    assert own == source.locations(sleeps[0], "chase")[0], "all is in the kernel's own file"


def debug_sections(elf: bytes) -> list[range]:
    """Where an ELF file's debug sections are."""
    file = ELFFile(io.BytesIO(elf))
    return [
        range(s["sh_offset"], s["sh_offset"] + s["sh_size"])
        for s in file.iter_sections()
        if s.name.startswith(".debug_") and s.name not in (".debug_frame", ".debug_str")
    ]


def test_corrupt_debug_sections_cost_lines_alone(vgpu_path: Path, tmp_path: Path) -> None:
    """Whatever bytes are changed: the launch is timed as before, and ends."""
    hip = Hip(vgpu_path)
    hip.select("gfx942")
    elf = compile_hip(CALLS, "gfx942", tmp_path, "-gline-tables-only")
    places = [at for section in debug_sections(elf) for at in section]
    draw = random.Random(7)
    times = set()
    for count in (0, *(1 + i % 5 for i in range(150))):
        changed = bytearray(elf)
        for at in draw.sample(places, count):
            changed[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        module = hip.load(bytes(changed))
        with rfops.vgpu.timing("MI300X") as t:
            hip.launch(hip.function(module, "chase"), ctypes.c_int(2), block=(64,))
        times.add(t.launches[0].us)
    assert len(times) == 1


def test_source_lines_of_the_engines_code(tmp_path: Path) -> None:
    """Debug lines name a folder that is gone; the sources of the kernel are where its config is."""
    (tmp_path / "config.json").write_text('{"m": {"srcs": ["deep/m.hip"], "archs": ["gfx950"]}}')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/m.hip").write_text("line one\nline two\n")
    config = tmp_path / "config.json"
    kept = compile_ops("m", kernel="lines_kernel", config=config)(lambda: None)
    assert kept.kernel == "lines_kernel"  # which is forgotten with the last that holds it
    header = next(CSRC.glob("include/rfops/**/*.h")).relative_to(CSRC)
    stage = "/cache/v1/gfx950/m/.stage-1a2b-3c4d/"
    for name, message in (
        (f"{stage}root/deep/m.hip:2", f"{tmp_path}/deep/m.hip:2"),
        ("root/deep/m.hip:2", f"{tmp_path}/deep/m.hip:2"),
        (f"{stage}root/gone.hip:2", "root/gone.hip:2"),
        (f"rfops/{header}:1", f"{CSRC}/{header}:1"),
        ("/home/a/b.py:3", "/home/a/b.py:3"),
    ):
        assert timed_text.source_path(name, "lines_kernel") == message
    row = {
        "offset": 256,
        "text": "s_nop 0",
        "issued": 1,
        "stalls": {"vmcnt": 4},
        "source": f"{stage}root/deep/m.hip:2",
    }
    one = TimedLaunch({**launches()[0].figures, "kernel": "lines_kernel", "pcs": [row]})
    assert f"  ; {tmp_path}/deep/m.hip:2  line two" in timed_text.annotate(one)


def test_a_timeline_is_of_the_unit_that_is_done_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One workgroup has work; the others of its XCD, on units of their own, are done early."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    q, kv = torch.randn(1, 16, 576).bfloat16(), torch.randn(64, 1, 1, 576).bfloat16()
    ends, pages = torch.tensor([0, 64], dtype=torch.int32), torch.arange(64, dtype=torch.int32)
    with rfops.vgpu.timing("MI355X", events=100_000) as t:
        rfops.mla_decode(q, kv, ends, pages, 1.0)
    (launch,) = t.launches
    rows = {row["offset"]: row for row in launch.pcs}
    assert max(event[0] for event in launch.events) > 0.8 * launch.clocks
    assert any(rows[event[1]]["unit"] == "mfma" for event in launch.events)
    (name,) = [
        s["args"]["name"]
        for s in timeline.trace([launch])["traceEvents"]
        if s["name"] == "process_name" and "launch 0: mla" in s["args"]["name"]
    ]
    assert name.endswith(f"CU {launch.events_cu}")
