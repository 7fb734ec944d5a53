"""`rfops debug`: sessions by script, with kernels of HIP, Triton and an op."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import signal
import subprocess
from pathlib import Path

import pytest

from support import hip_program
from support.command import COMMAND, rfops

HIP = """
#define wait_for_all() __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \\
  __builtin_amdgcn_s_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
__global__ void exchange(const float* __restrict__ x, float* y, int n) {
  __shared__ float room[128];
  const int i = __builtin_amdgcn_workitem_id_x();
  const int j = __builtin_amdgcn_workgroup_id_x() * 128 + i;
  room[i] = x[j];
  if (i < 10) {
    y[j] = -1;  // some lanes
  }
  wait_for_all();
  y[j] = room[127 - i] / (n - i);  // not finite at i = n
}
__global__ void halves(_Float16* h, float* f) {
  const int i = index();
  f[i] = 1.5f * i;
  h[i] = i == 5 ? __builtin_nanf("") : i;
}
__global__ void race(float* x) {  // a barrier is missing
  __shared__ float room[128];
  const int i = __builtin_amdgcn_workitem_id_x();
  room[i] = x[i];
  x[i] = room[(i + 64) % 128];
}
__global__ void endless(int* x) {
  while (*(volatile int*)x != 7) {}
}
int main(int count, char** words) {
  const char how = count > 1 ? words[1][0] : ' ';
  float host[256];
  for (int i = 0; i < 256; ++i) host[i] = i;
  void *x = 0, *y = 0;
  hipMalloc(&x, sizeof host);
  hipMalloc(&y, sizeof host);
  hipMemcpy(x, host, sizeof host, 1);
  if (how == ' ') exchange<<<2, 128>>>((float*)x, (float*)y, 100);
  if (how == 'h') halves<<<1, 64>>>((_Float16*)x, (float*)y);
  if (how == 'r') race<<<1, 128>>>((float*)x);
  if (how == 'f') exchange<<<1, 128>>>((float*)8, (float*)y, 1);
  if (how == 'e') endless<<<1, 64>>>((int*)x);
  if (how == 'c') {
    const int child = fork();
    halves<<<1, 64>>>((_Float16*)x, (float*)y);
    if (child) wait(0);
  }
  return hipGetLastError() ? 9 : 0;
}
"""
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def scale(x, y, factor, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, i < n)
    tl.store(y + i, value * factor, i < n)

@triton.jit
def sums(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    total = tl.sum(tl.load(x + row * N + tl.arange(0, N)).to(tl.float32), 0)
    tl.store(y + row, total / row)

@triton.jit
def beyond(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + N + i).to(tl.float32))

x = torch.arange(512, device="cuda", dtype=torch.bfloat16)
y = torch.empty(512, device="cuda")
scale[(2,)](x, y, 0.5, 500, BLOCK=256)
sums[(2,)](x, y, N=256)
print("sum", y[1].item())
beyond[(1,)](x, y, N=512)
"""


def line(text: str) -> int:
    """The number of the HIP source's line with this text."""
    return next(n for n, row in enumerate(HIP.splitlines(), 1) if text in row)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("debug")
    (folder / "kernels.hip").write_text(HIP)
    source = f'#line 1 "{folder}/kernels.hip"\n{HIP}'
    return hip_program.build(source, ["gfx942", "gfx950"], folder, "-gline-tables-only")


def answers(text: str, commands: tuple[str, ...]) -> list[str]:
    """What the prompt said to each command."""
    parts = re.split(r"^\(rfops\) (.*)\n", text, flags=re.M)
    assert tuple(parts[1::2]) == commands, text
    assert "Traceback" not in text
    return parts[2::2]


def debug(command: list[str], *commands: str, arch: str = "gfx950", cwd: Path) -> list[str]:
    """The answers to commands from standard input."""
    completed = subprocess.run(
        [*COMMAND, "debug", "--arch", arch, *command],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        cwd=cwd,
    )
    return answers(completed.stdout, commands)


def session(program: Path, *commands: str, how: str = "", arch: str = "gfx950") -> list[str]:
    """The same of the HIP program; `how` is what it is to do."""
    command = ["--", str(program), *filter(None, [how])]
    return debug(command, *commands, arch=arch, cwd=program.parent)


def offset(answer: str) -> int:
    """Of the instruction that is next."""
    match = re.search(r"^=> (0x[\da-f]+)\t", answer, re.M)
    assert match is not None, answer
    return int(match[1], 16)


def offsets(answer: str) -> list[int]:
    return [int(text, 16) for text in re.findall(r"^(?:=>|  ) (0x[\da-f]+)\t", answer, re.M)]


def stopped_at(answer: str) -> tuple[str, int, str]:
    """Workgroup, wave, file:line."""
    match = re.search(r"workgroup ([\d,]+) wave (\d+), 0x[\da-f]+(?: at (\S+))?", answer)
    assert match is not None, answer
    return match[1], int(match[2]), match[3]


EXITED = "[the program exited with status 0]\n"

# ---------------------------------------------------------------- where to stop


def test_a_kernel_by_pattern(program: Path) -> None:
    """Once a launch, at its first wave."""
    pending, stop, end, table = session(
        program, "break exch*", "run", "continue", "info breakpoints"
    )
    assert pending == "Breakpoint 1: exch*, pending\n"
    assert stop.startswith("Breakpoint 1\nexchange, workgroup 0,0,0 wave 0, ")
    assert end == EXITED
    assert re.search(r"1 +breakpoint +1 +exch\*", table)


def test_a_line_in_every_wave(program: Path) -> None:
    number = line("// not finite")
    _, *stops, end, table = session(
        program, f"b kernels.hip:{number}", "r", "c", "c", "c", "c", "i b"
    )
    where = [("0,0,0", 0), ("0,0,0", 1), ("1,0,0", 0), ("1,0,0", 1)]
    at_line = f"kernels.hip:{number}"
    assert sorted(map(stopped_at, stops)) == [(*wave, at_line) for wave in where]
    assert f"{number}\t  y[j] = room[127 - i] / (n - i);" in stops[0]
    assert end == EXITED and re.search(r"1 +breakpoint +4 ", table)


def test_a_line_of_one_wave(program: Path) -> None:
    number = line("room[i] = x[j]")
    _, stop, end = session(
        program, f"break kernels.hip:{number} workgroup 1 wave 1", "run", "continue"
    )
    assert stopped_at(stop) == ("1,0,0", 1, f"kernels.hip:{number}") and end == EXITED


def test_a_workgroup_and_a_wave(program: Path) -> None:
    """Without a place: their first instruction, of any kernel."""
    _, stop, here, again, end = session(
        program, "break workgroup 1", "run", "tbreak wave 1", "continue", "continue"
    )
    assert stopped_at(stop)[:2] == ("1,0,0", 0) and "Breakpoint 2: wave 1, 0x" in here
    assert stopped_at(again)[:2] == ("1,0,0", 1) and end == EXITED


def test_an_offset(program: Path) -> None:
    _, listing, *_ = session(program, "start", "disassemble 0 6")
    *_, third = offsets(listing)[:3]
    _, _, absolute, wrong, stop, relative, here, stop_again, cleared, end = session(
        program,
        "start",
        "p pc",
        f"b *{third:#x}",
        "b *0x2",
        "c",
        "delete",
        f"tbreak exchange+{third:#x} wave 1",
        "c",
        "i b",
        "c",
    )
    assert f"Breakpoint 1: *{third:#x}, {third:#x} at kernels.hip:" in absolute
    assert wrong == "0x2 is no instruction of exchange; one begins at 0x0\n"
    assert offset(stop) == offset(stop_again) == third
    assert stopped_at(stop)[1] == 0 and stopped_at(stop_again)[1] == 1
    assert relative == "" and "Breakpoint 2" in here
    assert cleared == "no breakpoints or catchpoints\n" and end == EXITED


def test_a_condition(program: Path) -> None:
    """v0 begins with the lane's number in its workgroup."""
    _, stop, lane, end = session(
        program, "b exchange+0 if v0[0] == 64 && scc == 0", "run", "p v0[0]", "c"
    )
    assert stopped_at(stop)[:2] == ("0,0,0", 1) and lane == "v0[0] = 64\n"
    assert stopped_at(end)[:2] == ("1,0,0", 1)


def test_a_condition_that_cannot_be_computed(program: Path) -> None:
    """It stops, and says why."""
    _, stop, _ = session(program, "b exchange if nothing > 1", "run", "delete 1")
    assert stop.startswith("condition of breakpoint 1: no name 'nothing'; registers are s0")
    assert stopped_at(stop)[:2] == ("0,0,0", 0)


def test_a_nan_that_is_stored(program: Path) -> None:
    """Of an argument's memory, in the argument's type or the one asked for."""
    _, stop, exec_mask, value, again, end = session(
        program, "catch nan y", "run", "p exec", "x/3f32 y+0x18c", "c", "c"
    )
    assert stop.startswith("Catchpoint 1: lane 36 stored inf (f32 0x7f800000) to y+0x190\n")
    assert stopped_at(stop) == ("0,0,0", 1, f"kernels.hip:{line('// not finite')}")
    assert "global_store_dword" in stop and exec_mask.endswith("lanes 0-63\n")
    assert re.search(r"y\+0x18c: +28 +inf +-26$", value.strip()), value
    assert "to y+0x390\n" in again and stopped_at(again)[0] == "1,0,0" and end == EXITED
    _, of_half, _ = session(program, "catch nan h", "run", "kill", how="h")
    assert "lane 5 stored nan (f16 0x7e00) to h+0xa" in of_half
    _, unwatched, _ = session(program, "catch nan f16 nowhere", "run", "info b", how="h")
    assert unwatched == EXITED


def test_a_finding(program: Path) -> None:
    _, stop, _, end = session(program, "catch finding", "run", "where", "continue 9", how="r")
    assert re.match(r"Catchpoint 1: (LDS race|uninitialised): .*, lane \d+", stop), stop
    assert stopped_at(stop)[2] == f"kernels.hip:{line('room[(i + 64)')}"
    assert end.endswith(EXITED)


def test_a_fault(program: Path) -> None:
    """The launch stops where it fails, with its registers."""
    commands = ("run", "print v0[63]", "info args", "continue")
    stop, lane, args, end = session(program, *commands, how="f")
    assert stop.startswith("The launch fails: kernel _Z8exchange")
    assert "lane 0 accesses address 0x8, which is invalid" in stop
    assert stopped_at(stop) == ("0,0,0", 0, f"kernels.hip:{line('room[i] = x[j]')}")
    assert lane == "v0[63] = 63\n" and args.startswith("0  x = 0x8, pointer to f32\n")
    assert end == "[exchange has failed]\n[the program exited with status 9]\n"


def interrupted(command: list[str], then: str, times: int) -> list[str]:
    """What the prompt says after `run` and that many times Ctrl-C, and to what is typed then."""
    with subprocess.Popen(
        [*COMMAND, "debug", "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("run\n")
        process.stdin.flush()
        text = process.stdout.readline()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            while not text.endswith("ends the program]\n"):
                text += process.stdout.readline()
        process.stdin.write(then)
        process.stdin.close()
        text += process.stdout.read()
    assert process.returncode == 0
    return answers(text, ("run", *then.splitlines()))


def test_ctrl_c_stops_an_endless_kernel(program: Path) -> None:
    stop, waves, step, killed = interrupted([str(program), "e"], "info waves\nstepi\nkill\n", 1)
    assert "\n[stops at the next instruction of a kernel; Ctrl-C again ends" in stop
    assert "running" in waves and stopped_at(step)[:2] == ("0,0,0", 0)
    assert killed == "[killed]\n"


def test_ctrl_c_twice_ends_the_program() -> None:
    """One whose host code waits."""
    stop, none = interrupted(["sleep", "1000"], "kill\n", 2)
    assert stop.endswith("[the program was ended by SIGKILL]\n") and none == "no program runs\n"


def test_each_process_stops(program: Path) -> None:
    """Parent and child of a fork, one after the other at the prompt."""
    _, first, second, end = session(program, "b halves", "run", "c", "c", how="c")
    assert first == second != end and end == EXITED


# ---------------------------------------------------------------- stepping


def test_step_by_instruction(program: Path) -> None:
    start, listing, one, three, _ = session(
        program, "start", "disassemble 0 8", "si", "stepi 3", "kill"
    )
    expected = offsets(listing)
    assert [offset(answer) for answer in (start, one, three)] == [expected[i] for i in (0, 1, 4)]


def test_step_by_line(program: Path) -> None:
    """`next` passes over what is inlined in a line, `step` does not."""
    _, first, *steps = session(program, "b halves", "run", *["step"] * 4, how="h")
    stepped = [stopped_at(answer)[2] for answer in (first, *steps)]
    assert any(place.startswith("header:") for place in stepped), stepped
    assert all(a != b for a, b in itertools.pairwise(stepped)), stepped
    _, _, *nexts = session(program, "b halves", "run", *["next"] * 3, how="h")
    passed = re.findall(r"(?: at| in) (kernels\.hip:\d+)$", "".join(nexts), re.M)
    assert len(passed) == 3, nexts
    assert all(a != b for a, b in itertools.pairwise(passed)), passed


def test_until_a_barrier_and_a_line(program: Path) -> None:
    place = f"kernels.hip:{line('room[i] = x[j]')}"
    _, at_line, barrier, waves, past, end = session(
        program, "start", f"until {place}", "until barrier", "info waves", "until barrier", "c"
    )
    assert stopped_at(at_line) == ("0,0,0", 0, place)
    assert "s_barrier" in barrier and stopped_at(barrier)[1] == 0
    assert re.search(r"^\* +0 +running", waves, re.M) and re.search(r"^ +1 ", waves, re.M)
    assert "s_endpgm" in past and end == EXITED


def test_finish_and_the_end_of_a_launch(program: Path) -> None:
    _, finish, ended, _, _, done, none, end = session(
        program, "start", "finish", "stepi", "workgroup 1", "finish", "finish", "finish", "c"
    )
    assert "s_endpgm" in finish and stopped_at(finish)[1] == 0
    assert ended.startswith("[the wave has ended]\n") and stopped_at(ended)[:2] == ("0,0,0", 1)
    assert "[the wave has ended]" in done
    assert none == "[exchange has ended]\n" or "s_endpgm" in none
    assert end == EXITED


def test_two_waves(program: Path) -> None:
    """Another wave of the workgroup is stepped and inspected by its number."""
    _, switch, waves, lane, step, lanes, wrong = session(
        program, "start", "wave 1", "info waves", "p v0[1]", "si 2", "p v0[63]", "wave 9"
    )
    assert stopped_at(switch)[1] == stopped_at(step)[1] == 1
    assert re.search(r"^\* +1 +running", waves, re.M)
    assert lane == "v0[1] = 65\n" and lanes == "v0[63] = 127\n"
    assert wrong == "the workgroup has waves 0 to 1, got '9'\n"


def test_a_later_workgroup(program: Path) -> None:
    _, which, stop, past, outside = session(
        program, "start", "workgroup", "workgroup 1 0 0", "workgroup 0", "workgroup 2,0,0"
    )
    assert which == "workgroup 0,0,0\n" and stopped_at(stop)[:2] == ("1,0,0", 0)
    assert past == "workgroup 0,0,0 has run; `break workgroup X Y Z`, then `run`\n"
    assert outside == "the grid is 2,1,1, got 2,0,0\n"


def test_run_again(program: Path) -> None:
    """Breakpoints stay, the program begins anew."""
    _, first, again, end = session(program, "tbreak exchange", "run", "run", "c")
    assert first.startswith("Breakpoint 1\n")
    assert again == f"the program is started again\n{EXITED}"
    assert end == "no program runs; `run` or `start` it\n"


# ---------------------------------------------------------------- looking


def test_registers(program: Path) -> None:
    _, registers, several, pair, special, wrong = session(
        program,
        "start",
        "info registers",
        "info registers s0 s1 exec",
        "p/x s[0:1]",
        "p vcc_lo, m0, mode, pc, scc",
        "p v200",
    )
    assert re.search(r"^s0 +[\da-f]{8} ", registers, re.M) and "lanes 0-63" in registers
    assert re.match(r"s0 = 0x[\da-f]{8}\ns1 = 0x[\da-f]{8}\nexec = 0xf{16}  lanes 0-63\n", several)
    low, high = re.findall(r"s\d = 0x([\da-f]{8})", several)
    assert pair == f"s[0:1] = 0x{low} 0x{high}\n"
    assert "mode = 0x000003f0" in special and "pc = 0x00000000" in special
    assert re.match(r"the kernel has v0 to v\d+, got v\[200:200\]\n", wrong)


def test_lanes_where_waves_diverge(program: Path) -> None:
    """Inactive lanes are in parentheses."""
    place = f"kernels.hip:{line('// some lanes')}"
    _, stop, mask, table, _ = session(program, f"tbreak {place}", "run", "p exec", "p/d v0", "kill")
    assert stopped_at(stop) == ("0,0,0", 0, place)
    assert mask == "exec = 0x00000000000003ff  lanes 0-9\n"
    rows = table.splitlines()
    assert rows[0] == "v0 = i32" and len(rows) == 2 + 64 // 8
    assert rows[3].split() == ["8", "8", "9", *(f"({lane})" for lane in range(10, 16))]


def test_lds(program: Path) -> None:
    _, _, _, lds, memory, wrong, far = session(
        program,
        f"tbreak kernels.hip:{line('// not finite')}",
        "run",
        "wave 1",
        "info lds 16 32 f32",
        "x/4f32 lds+0x100",
        "info lds 512",
        "x/4f32 lds+0x1f8",
    )
    assert lds.startswith("512 bytes of LDS\nlds+0x10: ")
    assert lds.split()[-8:] == [str(n) for n in range(4, 12)]
    assert memory.split() == ["lds+0x100:", "64", "65", "66", "67"]
    assert wrong == "the workgroup has 512 bytes of LDS, got an offset of 512\n"
    assert far == "the workgroup has 512 bytes of LDS; asked for 504 to 520\n"


def test_memory_by_argument(program: Path) -> None:
    """By name, index and address, in a type; names come from the source."""
    _, args, named, indexed, value, kernel, wrong, code = session(
        program,
        "start",
        "info args",
        "x/3 x+4",
        "x/2xw arg0+8",
        "p n * 2",
        "info kernel",
        "x/4f32 0x10",
        "x/2i pc",
    )
    base = re.match(r"0  x = (0x[\da-f]+), pointer to f32, 1024 bytes\n", args)
    assert base is not None and "2  n = 100 (i32)\n" in args
    assert named.split() == ["x+0x4:", "1", "2", "3"]
    assert indexed.split() == ["x+0x8:", "0x40000000", "0x40400000"]
    assert value == "n * 2 = 200\n" and "2x1x1 workgroups of 128x1x1 lanes" in kernel
    assert wrong == "cannot access memory at 0x10\n" and offsets(code)[0] == 0
    _, absolute = session(program, "start", "x/1f32 x + 12 - 4")
    assert absolute.split() == ["x+0x8:", "2"]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_types(program: Path, arch: str) -> None:
    """Bits as each type. FP8 differs by architecture."""
    _, *shown = session(
        program,
        "start",
        "p/f16x2 0x38003c00",
        "p/bf16x2 0x3f003f80",
        "p/f32 0x3fc00000",
        "p/fp8x4 0x00c04038",
        "p/bf8x4 0x0000c03c",
        "p/u8x4 0xff01",
        "p/i32 0xffffffff",
        "p/f64 0x3ff8000000000000",
        "p/fh 0x3c00",
        "p/q7 1",
        arch=arch,
    )
    fp8 = "0.5 1 -1 0" if arch == "gfx942" else "1 2 -2 0"
    bf8 = "0.5 -1 0 0" if arch == "gfx942" else "1 -2 0 0"
    expected = ["1 0.5", "1 0.5", "1.5", fp8, bf8, "1 255 0 0", "-1", "1.5", "1 0"]
    assert [text.partition(" = ")[2].strip() for text in shown[:-1]] == expected
    assert shown[-1].startswith("no type 'q7'; there are hex, u32, i32, f32, f16x2")


def test_source_and_disassembly(program: Path) -> None:
    number = line("room[i] = x[j]")
    _, _, listed, code, of_line = session(
        program, f"tb kernels.hip:{number}", "run", "list", "disassemble", "list 1"
    )
    assert f"> {number}\t  room[i] = x[j];" in listed.splitlines()
    assert len(offsets(code)) == 10 and f"; kernels.hip:{number}  room[i] = x[j];" in code
    assert "__global__ void exchange" in of_line


# ---------------------------------------------------------------- mistakes and input

BAD = {
    "foo": "no command 'foo': run, start, continue, ",
    "st": "ambiguous command 'st': start, step",
    "=1": "'=1' is no command; `help` lists them",
    "break": "break: expected KERNEL, FILE:LINE, LINE, *OFFSET or KERNEL+OFFSET",
    "stepi": "no program runs; `run` or `start` it",
    "kill": "no program runs",
    "start": "exchange, workgroup 0,0,0 wave 0, ",
    "stepi -1": "expected a count of 1 to 65536, got '-1'",
    "break kernels.hip:999": "kernels.hip:999: no code at or after this line",
    "break exchange wave x": "expected wave N, got 'x'",
    "break exchange workgroup 1 2 3 4": "expected workgroup X Y Z, got '1 2 3 4'",
    "break !": "break: cannot read the place '!'",
    "catch": "catch: expected `finding`, or `nan [TYPE] [ARG]`",
    "catch nan f17": "f17 is neither a type (f16, bf16, f32, f64) nor an argument (x, y, n)",
    "delete 7": "no breakpoint 7; there are: none",
    "info": "info: expected one of breakpoints, waves, registers, ",
    "info x": "no info 'x': breakpoints, waves, ",
    "until": "until: expected `barrier`, or a place as for `break`",
    "print": "print: expected an expression, as `p/f32 v3`",
    "p 1 +": "cannot read the expression '1 +'",
    "p 1 / 0": "1 / 0: division by zero",
    "p 1 << 999": "a shift by 999 exceeds 64 bits",
    "p v0 + 1": "a vector register has 64 lanes; v3[5] is lane 5 of v3",
    "p v0[64]": "lane 64: a wave has lanes 0 to 63",
    "p s0[1]": "s0 is no vector register",
    "p open(x)": "no type 'open'; there are hex, u32, ",
    "p x.y": "x.y: expected registers, arguments, arithmetic",
    "p/f64 v0": "f64 takes two registers, as v[4:5]; v0 is one",
    "p a200": "the kernel has ",
    "x": "x: expected an address, as `x/8f32 out+16`",
    "x v0": "v0 must be one integer; v3[5] is lane 5 of v3",
    "x/0 x": "expected a count of 1 to 65536, got '0'",
    "list x": "expected a count of 1 to 65536, got 'x'",
    "workgroup 0": "workgroup 0,0,0 is the one that has stopped",
}


def test_mistakes(program: Path) -> None:
    """Each answer says what there is; none ends the session."""
    said = session(program, *BAD)
    wrong = {
        command: answer
        for (command, start), answer in zip(BAD.items(), said, strict=True)
        if not answer.startswith(start)
    }
    assert not wrong


def test_help(program: Path) -> None:
    known, one, _ = session(program, "help", "help x", "# a comment")
    assert "stepi [N]: go on by N instructions" in known and len(known.splitlines()) > 20
    assert one.startswith("x/NFU ADDRESS: memory, as x/8f32 out+16")


def test_a_file_of_commands(program: Path, tmp_path: Path) -> None:
    """The first that fails ends the file and, with --batch, makes the exit status 1."""
    file = tmp_path / "commands"
    file.write_text("start\nfoo\ninfo waves\n")
    failed = rfops("debug", "-x", str(file), "--batch", "--", str(program))
    assert failed.returncode == 1 and "info waves" not in failed.stdout
    assert failed.stdout.endswith(f"{file}:2: the rest of the file is not done\n")
    good = rfops("debug", "-ex", "run", "--batch", "--", str(program))
    assert (good.returncode, good.stdout) == (0, f"(rfops) run\n{EXITED}")


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "expected an op, or -- and a command; got nothing"),
        (("--",), "expected a command behind --"),
        (("python", "x.py"), "expected an op, or -- and a command; got python; ops are "),
        (("--arch", "gfx90a", "--", "x"), "--arch gfx90a: the virtual GPU is gfx942 or gfx950"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], message: str) -> None:
    completed = rfops("debug", *words)
    assert completed.returncode == 1 and message in completed.stderr


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    (said,) = debug(["--", "./nothing"], "run", cwd=tmp_path)
    assert said == "cannot run ./nothing: No such file or directory\n"


def read_until(terminal: int, wanted: str | None, text: str = "") -> str:
    """What a terminal shows up to a text, or up to its end."""
    while wanted is None or wanted not in text:
        assert select.select([terminal], [], [], 100)[0], text
        try:
            text += os.read(terminal, 4096).decode()
        except OSError:  # the end of a terminal
            assert wanted is None, text
            break
    return text.replace("\r", "")


def type_keys(terminal: int, keys: str) -> None:
    """Typed again if not even their echo shows: started by pytest on a busy machine, one session
    in five loses its first line. Cause unknown; of 63 that a plain script started none did."""
    for _ in range(3):
        os.write(terminal, keys.encode())
        if select.select([terminal], [], [], 10)[0]:
            return


def test_a_terminal(program: Path) -> None:
    """Enter repeats a step, Ctrl-C at the prompt gives a new line, Ctrl-D leaves."""
    process, terminal = pty.fork()
    if not process:
        os.execve(
            COMMAND[0], [*COMMAND, "debug", "--", str(program)], {**os.environ, "TERM": "dumb"}
        )
    shown = [read_until(terminal, "(rfops) ")]
    for keys in ("start\r", "stepi\r", "\r", "info wa\x03", "p pc\r"):
        type_keys(terminal, keys)
        shown.append(read_until(terminal, "(rfops) "))
    os.write(terminal, b"\x04")
    read_until(terminal, None)
    os.close(terminal)
    assert os.waitpid(process, 0)[1] == 0
    hint, start, step, repeated, interrupted, pc = shown
    assert hint.startswith("`help` lists the commands")
    places = [offset(answer) for answer in (start, step, repeated)]
    assert places == sorted(set(places)), places
    assert "running" not in interrupted and f"pc = 0x{places[2]:08x}\n" in pc


# ---------------------------------------------------------------- Triton, ops


def test_triton_kernels(tmp_path: Path) -> None:
    """Names and types of arguments, lines of the script, two kernels and a NaN."""
    (tmp_path / "script.py").write_text(TRITON)
    rows = TRITON.splitlines()
    load = next(n for n, row in enumerate(rows, 1) if "tl.load(x + i" in row)
    store = next(n for n, row in enumerate(rows, 1) if "total / row" in row)
    said = debug(
        ["--", "python", "script.py"],
        f"b script.py:{load} wave 1",
        "catch nan y",
        "run",
        "info args",
        "x/4 x+8",
        "p factor",
        "x/2f32 y",
        "next",
        "p n + 1",
        "list",
        "delete 1",
        "continue",
        "info kernel",
        "delete",
        "catch finding",
        "run",
        "kill",
        cwd=tmp_path,
    )
    stop, args, memory, factor, _, following, computed, listed, _, nan, kernel, *finding = said[2:]
    assert stop.startswith("Breakpoint 1\nscale, workgroup 0,0,0 wave 1, ")
    assert stopped_at(stop)[2] == f"script.py:{load}" and rows[load - 1].strip() in stop
    assert re.search(r"^0  x = 0x[\da-f]+, pointer to bf16$", args, re.M)
    assert len(args.splitlines()) == 4 and "3  n = 500 (i32)" in args
    assert memory.split() == ["x+0x8:", "4", "5", "6", "7"] and factor == "factor = 0.5\n"
    assert stopped_at(following)[2] != f"script.py:{load}" and computed == "n + 1 = 501\n"
    assert "@triton.jit" in listed
    assert nan.startswith("Catchpoint 2: lane 0 stored inf (f32 0x7f800000) to y+0x0\n")
    assert stopped_at(nan) == ("0,0,0", 0, f"script.py:{store}")
    assert kernel.startswith("kernel    sums\n")
    _, _, found, killed = finding
    assert "Catchpoint 3: out of bounds: " in found and "beyond, workgroup 0,0,0" in found
    assert "sum 98176.0\n" in found and killed == "[killed]\n"


def test_a_call_of_an_op(tmp_path: Path) -> None:
    """Its kernel's source lines and arguments; what is wrong in the call is said by the program."""
    start, args, step, end = debug(
        ["topk_softmax", "--m", "4", "--e", "64", "--k", "8"],
        "start",
        "info args",
        "next",
        "continue",
        cwd=tmp_path,
    )
    assert re.search(r"^moe_topk, workgroup 0,0,0 wave 0, 0x\d+ at moe_topk.hip:\d+$", start, re.M)
    assert re.search(r"^0  weights = 0x[\da-f]+, pointer to f32$", args, re.M)
    assert "4  m = 4 (u32)" in args and re.search(r" (at|in) moe_topk.hip:\d+$", step, re.M)
    assert end.endswith(f"has returned\n{EXITED}")
