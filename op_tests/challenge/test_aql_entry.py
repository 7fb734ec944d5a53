"""An entry that launches by packets of its own in a queue of the HSA runtime (AQL), not by HIP."""

from __future__ import annotations

import base64
import ctypes
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfops.challenge import problem
from rfops.challenge.inline import uses_hsa
from rfops.challenge.problem import case_of
from rfops.challenge.submit import generate
from rfops.jit import settings, vgpu_hsa_folder
from support.entries import CASE, fp8_mm, judged, judged_cases
from support.vgpu import hsa as h
from support.vgpu.hip import compile_hip

_KERNEL = (
    fp8_mm("0")
    + """
extern "C" __attribute__((global)) void narrow(const float* wide, unsigned short* c, int count) {
  const int at = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (at >= count) return;
  const unsigned bits = __builtin_bit_cast(unsigned, wide[at]);
  c[at] = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
"""
)

# Two packets and one ring for both: the second waits for the first by its barrier bit. The sums lie
# in memory of the HSA runtime's.
_ENTRY = """
import base64, ctypes, struct
from ctypes import byref, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

hsa = ctypes.CDLL("libhsa-runtime64.so.1")
hsa.hsa_queue_add_write_index_screlease.restype = c_uint64
hsa.hsa_signal_wait_scacquire.restype = c_int64
CODE = base64.b64decode({code!r})
GPU, KERNARG = 1, 1  # a device's type; a flag of a pool
Visit = ctypes.CFUNCTYPE(c_uint32, c_uint64, c_void_p)


def call(name, *arguments):
    status = getattr(hsa, name)(*arguments)
    assert status == 0, (name, hex(status))


def visited(name, *arguments):
    found = []
    call(name, *arguments, Visit(lambda handle, _: found.append(handle) or 0), None)
    return found


def info(name, handle, attribute):
    value = c_uint64()
    call(name, c_uint64(handle), attribute, byref(value))
    return value.value


def allocate(pool, size):
    memory = c_void_p()
    call("hsa_amd_memory_pool_allocate", c_uint64(pool), c_size_t(size), 0, byref(memory))
    return memory.value


def start():
    global kernarg, queue, base, size, doorbell, kernels, device_pool, done
    call("hsa_init")
    agents = visited("hsa_iterate_agents")
    (gpu,) = (a for a in agents if info("hsa_agent_get_info", a, 17) & 0xffffffff == GPU)
    cpu = next(a for a in agents if a != gpu)
    pools = visited("hsa_amd_agent_iterate_memory_pools", c_uint64(cpu))
    pool = next(p for p in pools if info("hsa_amd_memory_pool_get_info", p, 1) & KERNARG)
    kernarg = allocate(pool, 4096)
    device_pool = visited("hsa_amd_agent_iterate_memory_pools", c_uint64(gpu))[0]
    handle = c_void_p()
    call("hsa_queue_create", c_uint64(gpu), 64, 1, None, None, 0, 0, byref(handle))
    queue = handle
    _, _, base, doorbell, size, _, _ = struct.unpack("<IIQQIIQ", ctypes.string_at(queue.value, 40))
    reader, program, agent = c_uint64(), c_uint64(), c_uint64(gpu)
    call("hsa_code_object_reader_create_from_memory", CODE, c_size_t(len(CODE)), byref(reader))
    call("hsa_executable_create_alt", 0, 0, None, byref(program))
    call("hsa_executable_load_agent_code_object", program, agent, reader, None, None)
    call("hsa_executable_freeze", program, None)
    kernels = {{}}
    for name in ("mm", "narrow"):
        symbol = c_uint64()
        get = "hsa_executable_get_symbol_by_name"
        call(get, program, f"{{name}}.kd".encode(), byref(agent), byref(symbol))
        kernels[name] = info("hsa_executable_symbol_get_info", symbol.value, 22)
    done = c_uint64()
    call("hsa_signal_create", c_int64(0), 0, None, byref(done))


def packet(name, place, lanes, arguments, completion):
    ctypes.memmove(kernarg + place, arguments, len(arguments))
    index = hsa.hsa_queue_add_write_index_screlease(queue, c_uint64(1))
    body = struct.pack("<6H5I4Q", 0, 1, 64, 1, 1, 0, lanes, 1, 1, 0, 0, kernels[name],
                       kernarg + place, 0, completion)
    slot = base + index % size * 64
    ctypes.memmove(slot + 4, body[4:], 60)
    header = 2 | 1 << 8 | 2 << 9 | 2 << 11  # dispatch, barrier, fences of system scope
    c_uint32.from_address(slot).value = header | 1 << 16
    return index


start()


def custom_kernel(data):
    a, b, sa, sb, c = data
    (m, k), n = a.shape, b.shape[0]
    count, wide = m * n, allocate(device_pool, 4 * m * n)
    hsa.hsa_signal_store_screlease(done, c_int64(1))
    pointers = [t.data_ptr() for t in (a, b, sa, sb)]
    lanes = -(-count // 64) * 64
    packet("mm", 0, lanes, struct.pack("<5Q3i", *pointers, wide, m, n, k), 0)
    index = packet("narrow", 64, lanes, struct.pack("<2Qi", wide, c.data_ptr(), count), done.value)
    hsa.hsa_signal_store_screlease(c_uint64(doorbell), c_int64(index))
    {wait}
    return c
"""
_WAIT = "hsa.hsa_signal_wait_scacquire(done, 2, c_int64(1), c_uint64(2**64 - 1), 0)"


@pytest.fixture(name="code", scope="module")
def code_fixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    arch = problem("fp8-mm").arch
    built = compile_hip(_KERNEL, arch, tmp_path_factory.mktemp("aql"))
    return base64.b64encode(built).decode()


@pytest.mark.sweep
def test_packets_by_hand_are_judged_and_timed(code: str, tmp_path: Path) -> None:
    """Case after case in one process; tails; times from both packets, in the evaluator's replay."""
    cases = [CASE, "m: 37; n: 128; k: 256; seed: 3"]
    for record in judged_cases(tmp_path, _ENTRY.format(code=code, wait=_WAIT), cases):
        assert record.passes and not record.strict and not record.named, record
        assert len(record.us) == 2 and not record.untimed, record
        assert all(1 < us < 200 for us in record.us), record.us


@pytest.mark.sweep
def test_a_doorbell_without_a_call_has_no_time(code: str, tmp_path: Path) -> None:
    """The result counts; launches that nobody has seen give none."""
    text = _ENTRY.format(code=code, wait=_WAIT).replace(
        "hsa.hsa_signal_store_screlease(c_uint64(doorbell), c_int64(index))",
        "c_int64.from_address(c_uint64.from_address(doorbell + 8).value).value = index",
    )
    record = judged(tmp_path, text)
    assert record.passes and not record.us and record.untimed, record


@pytest.mark.sweep
def test_a_fault_in_a_queue(code: str, tmp_path: Path) -> None:
    """Its signal never comes: the entry waits a while and returns what it has not computed."""
    text = _ENTRY.format(code=code, wait=_WAIT.replace("2**64 - 1", "10**9"))
    text = text.replace("kernarg + place, 0, completion)", "0, 0, completion)")
    record = judged(tmp_path, text)
    assert not record.passes and not record.us, record


def test_which_entries_name_the_hsa_runtime() -> None:
    assert uses_hsa("#include <hsa/hsa.h>") and uses_hsa("hsa_init()")
    assert uses_hsa('CDLL("libhsa-runtime64.so.1")')
    assert not uses_hsa("# AQL is of hsa, amdgcn-amd-amdhsa--gfx942, amdhsa_kernel")


# ---------------------------------------------------------------- an entry of rfops' kernels


def test_an_rfops_kernel_by_packets_is_judged_and_timed(tmp_path: Path) -> None:
    """What `rfops submit --form packets` writes."""
    case = "m: 96; n: 192; k: 512; seed: 7"
    text = generate(problem("fp8-mm"), "packets", [case_of(case)], "a test")
    (record,) = judged_cases(tmp_path, text, [case])
    assert record.passes and not record.strict and not record.named, record
    assert record.us and not record.untimed and all(2 < us < 20 for us in record.us), record


@pytest.fixture(scope="module", name="packets")
def packets_fixture(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The entry's part that launches, and `function_of` kernels of the HSA runtime's tests."""
    ctypes.CDLL(str(vgpu_hsa_folder() / "libhsa-runtime64.so.1"))  # found by its name from now on
    from rfops.challenge.entry import packets

    folder = tmp_path_factory.mktemp("packets")
    built = compile_hip(h.SOURCE, settings.text("RFOPS_VGPU_ARCH"), folder)
    code = {"all": base64.b64encode(built).decode()}
    kernels = {name: {"code": "all", "symbol": name} for name in ("append", "axpy", "stray")}
    kernels["bounded"] = {"code": "all", "symbol": "bounded", "lds": 4}
    return packets, lambda: packets.loader(kernels, code)


def test_more_packets_than_the_queue_has_slots(packets: Any) -> None:
    """In order: each reads what the one before has written. A second call finds the same queue."""
    module, loaded = packets
    function_of, count = loaded(), module.QUEUE.size + 45
    word, expected = np.zeros(1, np.uint32), 0
    for _ in range(2):
        for index in range(count):
            function_of("append")((1, 1, 1), (1, 1, 1), struct.pack("<QI", word.ctypes.data, index))
            expected = (10 * expected + index) % 2**32
        module.QUEUE.finish()
        assert word[0] == expected
    module.QUEUE.finish()  # of nothing


def test_grids_and_lds_of_packets(packets: Any) -> None:
    """Workgroups become lanes; LDS is the kernel's own and the launch's."""
    module, loaded = packets
    n, function_of = 700, loaded()
    out, x = np.full(n + 8, np.nan, np.float32), np.arange(n, dtype=np.float32)
    pointers = out.ctypes.data, x.ctypes.data, x.ctypes.data
    function_of("axpy")((3, 1, 1), (256, 1, 1), struct.pack("<QQQfI", *pointers, 2.0, n))
    total = np.full(1, 77, np.uint32)
    function_of("bounded")((1, 1, 1), (64, 1, 1), struct.pack("<Q", total.ctypes.data))
    module.QUEUE.finish()
    assert (out[:n] == 3 * x).all() and np.isnan(out[n:]).all()
    assert total[0] == 64


def test_what_packets_refuse(
    packets: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, loaded = packets
    monkeypatch.setattr(module, "QUEUE", module.Queue())  # it does not outlive a fault
    function_of = loaded()
    with pytest.raises(RuntimeError, match="append: 12 bytes of arguments, got 8"):
        function_of("append")((1, 1, 1), (1, 1, 1), bytes(8))
    function_of("stray")((1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(RuntimeError, match=f"queue has failed: status {h.MEMORY_FAULT:#x}"):
        module.QUEUE.finish()
    assert "packet 0: " in capfd.readouterr().err
