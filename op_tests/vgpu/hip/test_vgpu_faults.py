"""Kernels that do wrong: an error code, a text that names kernel and instruction, no more harm.

After each fault the same process launches again and gets right results.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from ctypes import c_int, c_int64, c_uint, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from support import OP_TESTS
from support.process import python
from support.vgpu.hip import ILLEGAL_ADDRESS, INVALID_VALUE, LAUNCH_FAILURE, SUCCESS, Hip, pointer
from support.vgpu.kernel_harness import Array, compile_kernels

LAUNCH_TIMEOUT = 702
LANES = 64
FAR = 0x123456789000  # no host maps what lies there
NULL, WILD = c_void_p(0), c_void_p(FAR)
NOT_CANONICAL = c_void_p(1 << 60)
UNMAPPED = "accessed memory that is not mapped, address 0x"
OUT = "out"  # stands for a buffer of 64 zeros


class IndexOf(NamedTuple):
    """The index into `out` of what lies at an address, wherever this process has its heap."""

    address: int

    def into(self, out: Array) -> c_int64:
        return c_int64((self.address - out.ctypes.data) // out.itemsize)


class Fault(NamedTuple):
    """A launch by its arguments, the code it must give, and the words of its text in order."""

    kernel: str
    arguments: tuple[object, ...]
    status: int
    words: tuple[str, ...]
    grid: int = 1


FAULTS = {
    "store to null": Fault(
        "store_to", (NULL,), ILLEGAL_ADDRESS,
        ("global_store_dword at text offset 0x",
         "lane 3 accesses address 0x0, which is invalid")),
    "store to unmapped memory": Fault(
        "store_to", (WILD,), ILLEGAL_ADDRESS, ("global_store_dword", UNMAPPED + "123456789000")),
    "store to no address": Fault(
        "store_to", (NOT_CANONICAL,), ILLEGAL_ADDRESS,
        ("global_store_dword", "lane 3 accesses address 0x1000000000000000, which is invalid")),
    "load far outside": Fault(
        "load_from", (OUT, OUT, IndexOf(FAR)), ILLEGAL_ADDRESS,
        ("global_load_dword", UNMAPPED + "123456789000")),
    "load below address 0": Fault(
        "load_from", (OUT, OUT, IndexOf(-4096)), ILLEGAL_ADDRESS,
        ("global_load_dword", "lane 0 accesses address 0xfffffffffffff000, which is invalid")),
    "load across the last address": Fault(
        "load_from", (OUT, OUT, IndexOf(-128)), ILLEGAL_ADDRESS,
        ("global_load_dword", "lane 0 accesses address 0xffffffffffffff80, which is invalid")),
    "scalar load": Fault(
        "scalar_load_from", (OUT, WILD), ILLEGAL_ADDRESS, ("s_load_dword", UNMAPPED)),
    "atomic": Fault("atomic_at", (WILD,), ILLEGAL_ADDRESS, ("global_atomic_add", UNMAPPED)),
    "generic load": Fault(
        "flat_load_from", (OUT, WILD), ILLEGAL_ADDRESS, ("flat_load_dword", UNMAPPED)),
    "buffer load": Fault(
        "buffer_load_from", (OUT, WILD), ILLEGAL_ADDRESS, ("buffer_load_dword", UNMAPPED)),
    "one lane of many": Fault(
        "store_from_one", (OUT, WILD, c_uint(123), c_uint(7)), ILLEGAL_ADDRESS,
        ("123,0,0 wave 0]", "global_store_dword", UNMAPPED + "123456789000"), grid=500),
    "misaligned atomic": Fault(
        "misaligned_global", (OUT,), LAUNCH_FAILURE,
        ("global_atomic_add at text offset 0x", "misaligned atomic: lane 0, address 0x")),
    "misaligned wide atomic": Fault(
        "misaligned_wide", (OUT,), LAUNCH_FAILURE,
        ("global_atomic_add_x2", "misaligned atomic: lane 0, address 0x")),
    "misaligned atomic in LDS": Fault(
        "misaligned_lds", (OUT, c_uint(2)), LAUNCH_FAILURE,
        ("ds_add_u32", "misaligned atomic: lane 0, address 0x2")),
    "trap": Fault("trap", (OUT,), LAUNCH_FAILURE, ("s_trap at text offset 0x", "s_trap 2 (abort")),
    "halt": Fault("halt", (OUT,), LAUNCH_FAILURE, ("s_sethalt at text offset 0x", "never go on")),
    "unknown operation": Fault(
        "no_such_branch", (OUT,), LAUNCH_FAILURE,
        ("at text offset 0x", "unknown instruction 0xbfff0000")),
    "unknown family": Fault(
        "no_such_family", (OUT,), LAUNCH_FAILURE,
        ("at text offset 0x", "unknown instruction 0xf0000000 0x00000000 on gfx9")),
    "branch out of the text": Fault(
        "branch_out", (OUT,), LAUNCH_FAILURE,
        ("s_branch at text offset 0x", "jump outside the code object's text")),
    "call of null": Fault(
        "call_address", (OUT, NULL), LAUNCH_FAILURE,
        ("s_swappc_b64 at text offset 0x", "jump outside the code object's text")),
    "call of data": Fault(
        "call_address", (OUT, OUT), LAUNCH_FAILURE,
        ("s_swappc_b64 at text offset 0x", "jump outside the code object's text")),
    "stack overflow": Fault(
        "stack_overflow", (OUT,), LAUNCH_FAILURE,
        ("scratch_store_dword at text offset 0x", "stack overflow: lane 0 accesses 4 bytes at 0x")),
}  # fmt: skip


@pytest.fixture(name="module")
def module_fixture(hip: Hip, arch: str) -> Iterator[c_void_p]:
    module = hip.load(compile_kernels("faults", arch, "O3"))
    yield module
    hip.call("hipModuleUnload", module)


def buffer() -> Array:
    """For all that a kernel of LANES threads may write; host memory is as good as any."""
    return np.zeros(LANES + 1, np.int32)


def expect_works(hip: Hip, module: c_void_p) -> None:
    out = buffer()
    status = hip.launch(hip.function(module, "plain"), pointer(out), block=(LANES,))
    assert status == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, [3] * LANES + [0])


def _argument(value: object, out: Array) -> object:
    if value is OUT:
        return pointer(out)
    return value.into(out) if isinstance(value, IndexOf) else value


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_and_the_next_launch_works(
    hip: Hip, module: c_void_p, name: str
) -> None:
    fault, out = FAULTS[name], buffer()
    arguments = [_argument(a, out) for a in fault.arguments]
    function = hip.function(module, fault.kernel)
    for _ in range(2):  # the second launch finds its instructions decoded
        status = hip.launch(function, *arguments, grid=(fault.grid,), block=(LANES,))
        assert status == fault.status, hip.error()
        text = hip.error()
        for words in (f"kernel {fault.kernel} [workgroup ", *fault.words):
            before, found, text = text.partition(words)
            assert found, f"{words!r} is not in {before!r}, in {hip.error()!r}"
        assert hip.hipGetLastError() == fault.status and hip.hipGetLastError() == SUCCESS
        expect_works(hip, module)


def test_an_instruction_of_gfx950_is_unknown_on_gfx942(
    hip: Hip, module: c_void_p, arch: str
) -> None:
    out, function = buffer(), hip.function(module, "gfx950_instruction")
    status = hip.launch(function, pointer(out), block=(LANES,))
    if arch == "gfx950":
        assert status == SUCCESS and (out[:LANES] == 3).all(), hip.error()
    else:
        assert status == LAUNCH_FAILURE and (out == 0).all()
        assert "kernel gfx950_instruction" in hip.error()
        assert "unknown instruction 0x7e00b501" in hip.error() and "on gfx942" in hip.error()


def test_an_unknown_instruction_matters_only_when_it_runs(hip: Hip, module: c_void_p) -> None:
    out, function = buffer(), hip.function(module, "unknown_in_dead_code")
    assert hip.launch(function, pointer(out), c_int(0), block=(LANES,)) == SUCCESS, hip.error()
    assert (out[:LANES] == 3).all()
    assert hip.launch(function, pointer(out), c_int(1), block=(LANES,)) == LAUNCH_FAILURE
    assert "unknown instruction 0xbfff0000" in hip.error()


def test_too_much_lds_is_refused(hip: Hip, module: c_void_p, arch: str) -> None:
    out, function = buffer(), hip.function(module, "plain")
    assert hip.launch(function, pointer(out), block=(LANES,), lds=200 << 10) == INVALID_VALUE
    assert "launch of plain: needs 204800 bytes of LDS" in hip.error() and arch in hip.error()
    assert (out == 0).all()
    expect_works(hip, module)


def test_what_hardware_lets_pass(hip: Hip, module: c_void_p) -> None:
    """Beyond LDS, stores vanish and loads give 0; an integer division by zero gives some number."""
    out = buffer()
    lds_outside = hip.function(module, "lds_outside")
    status = hip.launch(lds_outside, pointer(out), c_int(1 << 20), block=(LANES,))
    assert status == SUCCESS, hip.error()
    np.testing.assert_array_equal(out, [14] * LANES + [0])
    assert hip.launch(hip.function(module, "divide_by_zero"), pointer(buffer())) == SUCCESS


def test_a_fault_in_one_thread_leaves_another_alone(hip: Hip, module: c_void_p) -> None:
    """Each thread gets the status and the text of its own launches."""
    wrong: list[str] = []
    start = threading.Barrier(2)

    def faulty() -> None:
        function = hip.function(module, "store_to")
        start.wait()
        for _ in range(50):
            if hip.launch(function, WILD, block=(LANES,)) != ILLEGAL_ADDRESS:
                wrong.append("a wild store passed")
            if "kernel store_to" not in hip.error():
                wrong.append(hip.error())

    def sound() -> None:
        function = hip.function(module, "plain")
        start.wait()
        for _ in range(50):
            out = buffer()
            if hip.launch(function, pointer(out), block=(LANES,)) or (out[:LANES] != 3).any():
                wrong.append(f"a sound launch failed: {hip.error()}")

    threads = [threading.Thread(target=faulty), threading.Thread(target=sound)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


# ------------------------------------------------------------------------------ no end

# Launches a kernel, then a sound one; prints what they gave.
_ALONE = """
import json, sys
from ctypes import c_uint64
from pathlib import Path

import numpy as np
from support.vgpu.hip import Hip, pointer

library, image, kernel, grid, block = sys.argv[1:]
hip = Hip(Path(library))
module = hip.load(Path(image).read_bytes())
out, after = np.zeros(64, np.int32), np.zeros(64, np.int32)
function = hip.function(module, kernel)
status = hip.launch(function, pointer(out), grid=(int(grid),), block=(int(block),))
text = hip.error() if status else ""
hip.lib.rfops_vgpu_instructions.restype = c_uint64
executed = hip.lib.rfops_vgpu_instructions()
again = hip.launch(hip.function(module, "plain"), pointer(after), block=(64,))
print(json.dumps([status, text, again == 0 and bool((after == 3).all()), executed]))
"""


class Alone(NamedTuple):
    """Launches in processes of their own: an endless one cannot take the tests along."""

    library: Path
    image: Path
    arch: str

    def launch(self, kernel: str, grid: int, block: int, steps: int) -> tuple[int, str, bool]:
        """Status and text, whether the next launch worked; asserts that the budget was kept."""
        settings = {"RFOPS_VGPU_MAX_STEPS": str(steps), "RFOPS_VGPU_ARCH": self.arch}
        words = self.library, self.image, kernel, grid, block
        try:
            done = python(_ALONE, *words, cwd=OP_TESTS, timeout=300, RFOPS_VGPU_LOG="0", **settings)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{kernel}: no end within 5 minutes", pytrace=False)
        assert done.returncode == 0, done.stderr[-2000:]
        status, text, works, executed = json.loads(done.stdout)
        # Each thread may be in a slice of the budget's size, of waves that take 20,000 in turn.
        most = ((os.cpu_count() or 1) + 1) * (steps + min(steps, 20000) * -(-block // 64))
        assert not steps or executed <= most, f"{executed} instructions with a budget of {steps}"
        return status, text, works


@pytest.fixture(name="alone")
def alone_fixture(vgpu_path: Path, arch: str, tmp_path: Path) -> Alone:
    image = tmp_path / "faults.hsaco"
    image.write_bytes(compile_kernels("faults", arch, "O3"))
    return Alone(vgpu_path, image, arch)


@pytest.mark.thin(3)
@pytest.mark.parametrize("steps", [3000, 200000])
@pytest.mark.parametrize(
    ("kernel", "grid", "block"),
    [
        ("endless_loop", 1, 64),
        ("endless_barriers", 1, 256),
        ("deadlock", 1, 128),
        ("wait_in_circle", 16, 1),
    ],
)
def test_a_launch_without_end_is_stopped_by_the_step_budget(
    alone: Alone, kernel: str, grid: int, block: int, steps: int
) -> None:
    status, text, works = alone.launch(kernel, grid, block, steps)
    assert status == LAUNCH_TIMEOUT, text
    assert f"kernel {kernel}" in text and f"{steps} instructions (RFOPS_VGPU_MAX_STEPS)" in text
    assert works, "the next launch failed"


def test_workgroups_that_wait_at_barriers_take_turns(alone: Alone) -> None:
    """More of them than the host has threads, each waiting for all."""
    status, text, works = alone.launch("meet_at_barriers", (os.cpu_count() or 1) + 3, 256, 0)
    assert status == SUCCESS, text
    assert works, "the next launch failed"


@pytest.mark.parametrize("block", [64, 256])
def test_workgroups_that_sleep_let_others_go_on(alone: Alone, block: int) -> None:
    """A kernel that waits for a while, and then does without, finds others as on hardware."""
    status, text, works = alone.launch("look_a_few_times", (os.cpu_count() or 1) * 3 + 1, block, 0)
    assert status == SUCCESS, text
    assert works, "the next launch failed"
