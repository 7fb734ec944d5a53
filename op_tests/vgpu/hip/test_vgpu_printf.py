"""printf from kernels: the host's side of ROCm's hostcall protocol.

The device's side stands below in HIP, since ROCm's device library is not there to link with; a
kernel sends messages that Python has laid out, and Python's own % says how they must read.
(Triton's device_print brings the device library: test_triton_kernels.py.)
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from support.vgpu.asm import Module
from support.vgpu.hip import compile_hip

SOURCE = r"""
#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static __attribute__((device))
using u32 = unsigned;
using u64 = unsigned long long;
struct Header { u64 next, active; u32 service, control; };
struct Signal { u64 kind, value; u64* mailbox; u32 event; };
struct Buffer {
  Header* headers;
  u64 (*payloads)[64][8];
  Signal* doorbell;
  u64 free_stack, ready_stack, index_mask;
};

DEVICE u64 load(u64* at) {
  return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE bool swap(u64* at, u64* seen, u64 wanted) {
  return __hip_atomic_compare_exchange_strong(at, seen, wanted, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE,
                                              __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE u64 pop(Buffer* b) {
  u64 top = load(&b->free_stack);
  while (!swap(&b->free_stack, &top, load(&b->headers[top & b->index_mask].next))) {}
  return top;
}
DEVICE void push(Buffer* b, u64* stack, u64 packet) {
  u64 top = load(stack);
  do b->headers[packet & b->index_mask].next = top;
  while (!swap(stack, &top, packet));
}
DEVICE u64 call(Buffer* b, u32 service, u64* slots) {
  const u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  const bool first = lane == __builtin_amdgcn_readfirstlane(lane);
  const u64 active = __builtin_amdgcn_ballot_w64(true);
  u64 packet = first ? pop(b) : 0;
  packet = (u64)__builtin_amdgcn_readfirstlane(packet >> 32) << 32 |
           (u32)__builtin_amdgcn_readfirstlane((u32)packet);
  Header* header = b->headers + (packet & b->index_mask);
  u64* mine = b->payloads[packet & b->index_mask][lane];
  for (int i = 0; i < 8; ++i) mine[i] = slots[i];
  if (first) {
    header->active = active;
    header->service = service;
    header->control = 1;
    push(b, &b->ready_stack, packet);
    __hip_atomic_fetch_add(&b->doorbell->value, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
    if (b->doorbell->mailbox) {
      *b->doorbell->mailbox = b->doorbell->event;
      __builtin_amdgcn_s_sendmsg(1, b->doorbell->event);
    }
  }
  while (__hip_atomic_load(&header->control, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) & 1) {
    __builtin_amdgcn_s_sleep(1);
  }
  const u64 result = load(mine);
  if (first) push(b, &b->free_stack, packet + b->index_mask + 1);
  return result;
}

// Each lane sends its row of `words`, seven of them at a time.
KERNEL send(u64* returned, const u64* words, u64 count, u64 messages, u64 service) {
  const u64 me = __builtin_amdgcn_workgroup_id_x() * 96 + __builtin_amdgcn_workitem_id_x();
  if (me >= messages) return;
  const char* hidden = (const char*)__builtin_amdgcn_implicitarg_ptr();
  Buffer* b = *(Buffer* const*)(hidden + 80);
  u64 descriptor = 1;
  for (u64 at = 0; at < count; at += 7) {
    const u64 here = count - at < 7 ? count - at : 7;
    u64 slots[8] = {};
    for (u64 i = 0; i < here; ++i) slots[1 + i] = words[me * count + at + i];
    slots[0] = (descriptor & ~0xfeull) | here << 5 | (at + here == count ? 2 : 0);
    descriptor = call(b, service, slots);
  }
  returned[me] = descriptor;
}
"""
ARCHS = ("gfx942", "gfx950")
STDOUT, STDERR = 0, 1
PRINTF = 2


@cache
def module(arch: str) -> Module:
    with TemporaryDirectory() as folder:
        return Module(compile_hip(SOURCE, arch, Path(folder)), arch)


def message(text: str, *arguments: int | float | str, stream: int = STDOUT) -> list[int]:
    words = [stream, *string(text)]
    for argument in arguments:
        if isinstance(argument, str):
            words += string(argument)
        elif isinstance(argument, float):
            words += struct.unpack("<Q", struct.pack("<d", argument))
        else:
            words.append(argument % 2**64)
    return words


def string(text: str) -> tuple[int, ...]:
    raw = text.encode() + b"\0"
    raw += bytes(-len(raw) % 8)
    return struct.unpack(f"<{len(raw) // 8}Q", raw)


def send(arch: str, messages: list[list[int]], service: int = PRINTF) -> np.ndarray:
    """One message a lane, all as long as the longest; the lengths that printf returned."""
    count = max(map(len, messages))
    words = np.array([m + [0] * (count - len(m)) for m in messages], np.uint64)
    returned = np.full(len(messages), 0xDEAD, np.uint64)
    arguments = np.array(
        [returned.ctypes.data, words.ctypes.data, count, len(messages), service], np.uint64
    )
    module(arch).launch("send", -(-len(messages) // 96), 96, arguments.tobytes())
    return returned


CASES = [
    ("plain text\n", ()),
    ("100%% of %d\n", (7,)),
    ("%d %i %5d|%-6d|%06d|%+d|% d\n", (-1, 2**31 - 1, 42, -42, -42, 42, 42)),
    ("%x %X %#x %08x %o\n", (255, 0xABCDEF, 16, 48879, 8)),
    ("%ld %lld %lx\n", (-(2**62), 2**62, 2**63 + 5)),
    ("%c%c%3c|\n", (72, 105, 33)),
    ("%f %.3f %10.2f|%-10.1f|\n", (1.5, -2.25, 3.14159, 2.5)),
    ("%e %.2E %g %G\n", (1e-10, 12345.678, 1e20, 0.5)),
    ("%s and %s|%8s|%-8s|%.3s\n", ("words", "", "right", "left", "truncated")),
    ("eight by%s\n", ("12345678",)),
    ("%*d|%-*d|%.*f\n", (6, 42, 6, 42, 2, 1.005)),
    ("%s=%d, %s=%f, %s=%x; %s\n", ("a", 1, "b", 2.0, "c", 3, "text of several calls")),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("text", "arguments"), CASES, ids=[repr(text) for text, _ in CASES])
def test_format(
    arch: str,
    text: str,
    arguments: tuple[int | float | str, ...],
    capfd: pytest.CaptureFixture[str],
) -> None:
    returned = send(arch, [message(text, *arguments)])
    want = text.replace("ll", "l") % arguments
    assert capfd.readouterr().out == want
    assert returned.tolist() == [len(want)]


def test_narrow_integers(capfd: pytest.CaptureFixture[str]) -> None:
    """What has no length modifier is an int, even where the word has more."""
    send("gfx950", [message("%d %u %hd %hhu %x %lu\n", *[2**40 - 2] * 6)])
    want = f"-2 {2**32 - 2} -2 254 fffffffe {2**40 - 2}\n"
    assert capfd.readouterr().out == want


def test_pointers_and_unknown_conversions(capfd: pytest.CaptureFixture[str]) -> None:
    send("gfx950", [message("%p %y %n%d%", 0x1234, 99, 5)])
    assert capfd.readouterr().out == "0x1234 y 5%"


def test_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    send("gfx950", [message("to stderr %d\n", 1, stream=STDERR)])
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "to stderr 1\n")


@pytest.mark.parametrize("arch", ARCHS)
def test_many_lanes(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Waves of full and part width, several workgroups, messages of several calls each: every line
    comes once and whole."""
    lines = [f"lane {i} of many says {'x' * (i % 50)}\n" for i in range(1000)]
    returned = send(
        arch, [message("lane %d of many says %s\n", i, "x" * (i % 50)) for i in range(1000)]
    )
    assert sorted(capfd.readouterr().out.splitlines(keepends=True)) == sorted(lines)
    assert returned.tolist() == [len(line) for line in lines]


def test_a_message_that_ends_early(capfd: pytest.CaptureFixture[str]) -> None:
    """Missing arguments read as 0 and as empty strings; a string without an end ends there."""
    send("gfx950", [message("%d %s %f|")])
    assert capfd.readouterr().out == "0  0.000000|"
    send("gfx950", [[STDOUT, int.from_bytes(b"endless!", "little")]])
    assert capfd.readouterr().out == "endless!"


def test_other_services_are_refused() -> None:
    with pytest.raises(Exception, match=r"calls host service 1; the virtual GPU has printf"):
        send("gfx950", [message("no")], service=1)
    assert send("gfx950", [message("")]).tolist() == [0]
