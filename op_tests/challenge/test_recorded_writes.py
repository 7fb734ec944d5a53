"""What an entry's host copies into memory between two launches of a call, and what it fills there:
recorded, and part of what the evaluator replays."""

from __future__ import annotations

import base64
import ctypes
import struct
from collections.abc import Iterator
from ctypes import c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest
import torch

from rfops.challenge import problem
from rfops.challenge.channel import Record
from rfops.challenge.recorder import Recorder
from rfops.jit import settings, vgpu_hsa_folder
from support.entries import CASE, fp8_mm, judged
from support.vgpu import hsa as h
from support.vgpu.hip import Hip, compile_hip

_TO_DEVICE, _TO_HOST = 1, 2


@pytest.fixture(scope="module", name="code")
def code_fixture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("writes")
    return compile_hip(h.SOURCE, settings.text("RFOPS_VGPU_ARCH"), folder)


@pytest.fixture(name="recorder")
def recorder_fixture(vgpu_path: Path) -> Iterator[Recorder]:
    library = vgpu_hsa_folder() / "libhsa-runtime64.so.1"
    yield Recorder(vgpu_path, str(library))
    for name in (vgpu_path, library):
        ctypes.CDLL(str(name)).rfops_vgpu_observe_launches(None)
        ctypes.CDLL(str(name)).rfops_vgpu_observe_writes(None)


def writes_of(record: Record, blobs: list[bytes]) -> list[tuple[int, int, bytes]]:
    """Launch, address and bytes, where they are few."""
    texts = iter(blobs[len(record.codes) :])
    found = [(w.launch, w.address, next(texts) if w.blob else bytes(w.size)) for w in record.writes]
    assert not record.flaw
    return [write for write in found if len(write[2]) <= 256]


def test_copies_and_fills_of_hip(vgpu_path: Path, code: bytes, recorder: Recorder) -> None:
    """Before a launch that reads them, once each. What no kernel can reach is left out."""
    hip = Hip(vgpu_path)
    append = hip.function(hip.load(code), "append")
    memory, host, storage = c_void_p(), (ctypes.c_uint32 * 3)(5, 6, 7), torch.ones(16)
    hip.call("hipMalloc", ctypes.byref(memory), c_size_t(256))
    hip.call("hipMemset", memory, 1, c_size_t(256))
    base = memory.value or 0
    recorder.begin([storage.untyped_storage()])

    def launch(digit: int) -> None:
        assert hip.launch_extra(append, struct.pack("<QI", base, digit)) == 0

    launch(1)
    hip.call("hipMemsetAsync", memory, 0, c_size_t(4), None)
    launch(2)
    launch(3)
    hip.call("hipMemcpy", c_void_p(base + 8), host, c_size_t(12), _TO_DEVICE)
    hip.call("hipMemcpy", host, memory, c_size_t(12), _TO_HOST)
    hip.call("hipMemset", c_void_p(storage.data_ptr() + 8), 0, c_size_t(8))
    launch(4)
    record, blobs = recorder.end()
    assert len(record.launches) == 4
    assert writes_of(record, blobs) == [
        (0, base, b"\1" * 256),
        (1, base, bytes(4)),
        (3, base + 8, struct.pack("<3I", 5, 6, 7)),
        (3, storage.data_ptr() + 8, bytes(8)),
    ]
    hip.call("hipFree", memory)


def test_copies_of_the_hsa_runtime(code: bytes, recorder: Recorder) -> None:
    """In the thread that asks for them: the engine's may not have Python's lock."""
    hsa = h.Hsa(vgpu_hsa_folder() / "libhsa-runtime64.so.1")
    queue, kernel = h.Queue(hsa), hsa.kernel_object(hsa.load(code), "append")
    base, done = hsa.allocate(128), hsa.signal()
    ctypes.memset(base, 2, 128)
    source = np.arange(16, dtype=np.uint8)
    recorder.begin([])
    for digit in (1, 2):
        hsa.set(done, 1)
        arguments = np.array([base, digit], np.uint64)
        queue.submit(h.dispatch(kernel, arguments, (1,), (1,), done))
        assert hsa.wait(done) == 0
        hsa.set(done, 1)
        ends = c_void_p(base + 64), hsa.gpu, c_void_p(source.ctypes.data), hsa.cpu
        hsa.call("hsa_amd_memory_async_copy", *ends, c_size_t(16), 0, None, done)
        hsa.lib.hsa_signal_wait_scacquire(done, h.LESS, c_int64(1), ctypes.c_uint64(h.FOREVER), 0)
    record, blobs = recorder.end()
    assert len(record.launches) == 2
    first = struct.pack("<I", (10 * 0x02020202 + 1) % 2**32)
    assert ctypes.string_at(base, 4) != first, "the second launch has run"
    assert writes_of(record, blobs) == [(0, base, b"\2" * 128), (1, base + 64, source.tobytes())]
    queue.destroy()


_KERNEL = (
    fp8_mm("wide[at]")
    + """
extern "C" __attribute__((global)) void narrow(const float* wide, const float* factor,
                                               unsigned short* c, int count) {
  const int at = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (at >= count) return;
  const unsigned bits = __builtin_bit_cast(unsigned, wide[at] * *factor);
  c[at] = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
"""
)
# The sums are filled with zeros a second time, between two launches, and a factor is copied there.
_ENTRY = """
import base64, ctypes, struct
hip = ctypes.CDLL("libamdhip64.so")
module, memory = ctypes.c_void_p(), ctypes.c_void_p()
assert hip.hipModuleLoadData(ctypes.byref(module), base64.b64decode({code!r})) == 0
assert hip.hipMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0


def launch(name, lanes, arguments):
    function, size = ctypes.c_void_p(), ctypes.c_size_t(len(arguments))
    assert hip.hipModuleGetFunction(ctypes.byref(function), module, name) == 0
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    shape = (-(-lanes // 64), 1, 1, 64, 1, 1, 0)
    assert hip.hipModuleLaunchKernel(function, *shape, None, None, extra) == 0


def custom_kernel(data):
    a, b, sa, sb, c = data
    (m, k), n = a.shape, b.shape[0]
    factor, wide = memory.value, memory.value + 256
    pointers = [t.data_ptr() for t in (a, b, sa, sb)]
    for turn in range(2):
        value = ctypes.c_float(turn)
        hip.hipMemset(ctypes.c_void_p(wide), 0, ctypes.c_size_t(4 * m * n))
        launch(b"mm", m * n, struct.pack("<5Q3i", *pointers, wide, m, n, k))
        hip.hipMemcpy(memory, ctypes.byref(value), ctypes.c_size_t(4), 1)
        {more}
        launch(b"narrow", m * n, struct.pack("<3Qi", wide, factor, c.data_ptr(), m * n))
    return c
"""


@pytest.mark.sweep
def test_the_evaluator_replays_them(tmp_path: Path) -> None:
    """And a result that the host copies is one of other inputs there: it has no time."""
    built = compile_hip(_KERNEL, problem("fp8-mm").arch, tmp_path)
    code = base64.b64encode(built).decode()
    record = judged(tmp_path, _ENTRY.format(code=code, more=""), case=CASE)
    assert record.passes and record.us and not record.untimed, record
    copied = (
        "host = (ctypes.c_float * (m * n))(); size = ctypes.c_size_t(4 * m * n)\n"
        "        hip.hipMemcpy(host, ctypes.c_void_p(wide), size, 2)\n"
        "        hip.hipMemcpy(ctypes.c_void_p(wide), host, size, 1)"
    )
    record = judged(tmp_path, _ENTRY.format(code=code, more=copied), case=CASE)
    assert record.passes and not record.us and record.untimed, record
