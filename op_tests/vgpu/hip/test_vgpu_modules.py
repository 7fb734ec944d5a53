"""Loading code objects: the good, the wrong and the corrupt."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from ctypes import byref, c_uint, c_void_p
from pathlib import Path

import pytest

from support.vgpu.asm import assemble
from support.vgpu.hip import (
    ARCHS,
    FILE_NOT_FOUND,
    HOST_ENTRY,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_VALUE,
    NO_BINARY,
    NOT_FOUND,
    SUCCESS,
    Hip,
    bundle,
    compile_c,
    compressed,
    pointer,
    poisoned,
    zig,
)


@pytest.mark.parametrize("suffix", ["", ":sramecc+:xnack-", ":xnack-"])
@pytest.mark.parametrize("kind", ["hipv4", "hip"])
def test_the_right_image_of_a_bundle_is_run(
    hip: Hip, code_objects: dict[str, bytes], arch: str, kind: str, suffix: str
) -> None:
    name = f"{kind}-amdgcn-amd-amdhsa--"
    entries = [(f"{name}{other}{suffix}", code_objects[other]) for other in ARCHS]
    module = hip.load(bundle([HOST_ENTRY, *entries]))
    out = poisoned(4)
    assert hip.launch(hip.function(module, "sizes"), pointer(out), block=(64,)) == SUCCESS, (
        hip.error()
    )
    assert out[0] == 64
    hip.call("hipModuleUnload", module)


def _bundled(code_objects: dict[str, bytes]) -> bytes:
    names = {arch: f"hipv4-amdgcn-amd-amdhsa--{arch}" for arch in ARCHS}
    return bundle([HOST_ENTRY, *((name, code_objects[arch]) for arch, name in names.items())])


@pytest.mark.parametrize("version", [2, 3])
def test_compressed_bundles_are_run(
    hip: Hip, code_objects: dict[str, bytes], arch: str, version: int, tmp_path: Path
) -> None:
    """From memory, where the header alone says where the file ends, and from a file."""
    file = compressed(_bundled(code_objects), version)
    (tmp_path / "k.co").write_bytes(file)
    from_file = c_void_p()
    hip.call("hipModuleLoad", byref(from_file), os.fsencode(tmp_path / "k.co"))
    for module in (hip.load(file + b"\xa5" * 64), from_file):
        out = poisoned(4)
        status = hip.launch(hip.function(module, "sizes"), pointer(out), block=(64,))
        assert status == SUCCESS and out[0] == 64, hip.error()
        hip.call("hipModuleUnload", module)


def _zstd_frame(head: bytes, num_zeros: int, tail: bytes, log_window: int = 17) -> bytes:
    """A frame of blocks that are stored (type 0) or one byte repeated (type 1), 128 KiB each.

    It does not have the size of its contents.
    """
    block = 128 << 10
    frame = [struct.pack("<IBB", 0xFD2FB528, 0, (log_window - 10) << 3)]
    for data in (head, None, tail):
        count = num_zeros if data is None else len(data)
        for begin in range(0, count, block):
            length, kind = min(block, count - begin), 1 if data is None else 0
            is_last = data is tail and begin + length == count
            frame.append(struct.pack("<I", length << 3 | kind << 1 | is_last)[:3])
            frame.append(b"\0" if data is None else data[begin : begin + length])
    return b"".join(frame)


def _far_image(image: bytes, arch: str, num_zeros: int, log_window: int = 17) -> bytes:
    """A compressed bundle of one image behind many zeros; 64 other bytes follow it."""
    name = f"hipv4-amdgcn-amd-amdhsa--{arch}".encode()
    head = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1)
    offset = len(head) + 24 + len(name) + num_zeros
    head += struct.pack("<QQQ", offset, len(image), len(name)) + name
    frame = _zstd_frame(head, num_zeros, image + b"\xa5" * 64, log_window)
    sizes = struct.pack("<QQ", 32 + len(frame), offset + len(image) + 64)
    return b"CCOB" + struct.pack("<HH", 3, 1) + sizes + bytes(8) + frame


@pytest.mark.parametrize(
    ("num_zeros", "log_window"),
    [
        (0, 17),
        (200_000, 17),
        (200_000, 30),  # beyond 2**27 zstd wants to be asked
        ((2 << 30) + (64 << 20), 17),
    ],
)
def test_an_image_far_behind_in_compressed_contents_is_run(
    hip: Hip, code_objects: dict[str, bytes], arch: str, num_zeros: int, log_window: int
) -> None:
    """As librocprim-tests has: the file is small, the images of all architectures are not."""
    module = hip.load(_far_image(code_objects[arch], arch, num_zeros, log_window))
    out = poisoned(4)
    status = hip.launch(hip.function(module, "sizes"), pointer(out), block=(64,))
    assert status == SUCCESS and out[0] == 64, hip.error()
    hip.call("hipModuleUnload", module)


def test_only_the_image_of_compressed_contents_is_kept(
    vgpu_path: Path, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    """In a new process: the peak of this one may be larger already."""
    (tmp_path / "k.co").write_bytes(_far_image(code_objects["gfx950"], "gfx950", 256 << 20))
    program = (
        "import ctypes, re, sys; hip = ctypes.CDLL(sys.argv[1]); module = ctypes.c_void_p(); "
        "peak = lambda: int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]); "
        "before = peak(); "
        "assert not hip.hipModuleLoad(ctypes.byref(module), sys.argv[2].encode()); "
        "print(peak() - before)"
    )
    command = [sys.executable, "-S", "-c", program, str(vgpu_path), str(tmp_path / "k.co")]
    environment = {**os.environ, "RFOPS_VGPU_ARCH": "gfx950"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    grown = int(output.stdout)  # KiB
    assert grown < 64 << 10, f"{grown} KiB for an image of {len(code_objects['gfx950'])} bytes"


def test_another_zstd_of_the_process_is_not_called(
    vgpu_path: Path, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    """FlyDSL makes 1.4.4 global, whose functions ours called with its own structures."""
    names = ("DCtx_reset", "decompressStream", "freeDCtx", "getFrameHeader_advanced")
    source = "".join(f"void ZSTD_{name}(void) {{ __builtin_trap(); }}\n" for name in names)
    other = tmp_path / "libother.so"
    compile_c(source, other, "-shared", "-fPIC")
    (tmp_path / "k.co").write_bytes(compressed(_bundled(code_objects)))
    program = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL); "
        "hip = ctypes.CDLL(sys.argv[2]); module = ctypes.c_void_p(); "
        "sys.exit(hip.hipModuleLoad(ctypes.byref(module), sys.argv[3].encode()))"
    )
    paths = [str(path) for path in (other, vgpu_path, tmp_path / "k.co")]
    result = subprocess.run([sys.executable, "-S", "-c", program, *paths], check=False)
    assert result.returncode == SUCCESS


def test_compressed_contents_that_end_early_are_named(
    hip: Hip, code_objects: dict[str, bytes]
) -> None:
    file = _far_image(code_objects["gfx950"], "gfx950", 200_000)
    frame = _zstd_frame(b"__CLANG_OFFLOAD_BUNDLE__", 0, b"")
    module = c_void_p()
    short = file[:8] + struct.pack("<Q", 32 + len(frame)) + file[16:32] + frame
    assert hip.hipModuleLoadData(byref(module), short) == INVALID_IMAGE
    assert "its contents end after 24 bytes" in hip.error()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[:4] + b"\x01" + b[5:], "version 1, expected 2 or 3"),
        (lambda b: b[:6] + b"\x00" + b[7:], "compressed with zlib"),
        (lambda b: b[:6] + b"\x07" + b[7:], "method 7"),
        (lambda b: b[:6], "truncated: a header of 6 bytes"),
        (lambda b: b[:-1], "truncated: a file of"),
        (lambda b: b[:8] + struct.pack("<Q", 32) + b[16:], "truncated: a file of 32 bytes"),
        (lambda b: b[:16] + bytes(8) + b[24:], "contents of 0 bytes"),
        (lambda b: b[:16] + struct.pack("<Q", 1 << 62) + b[24:], "expected 1 to 68719476736"),
        (lambda b: b[:16] + struct.pack("<Q", 4096) + b[24:], "contents of 4096 bytes"),
        (lambda b: b[:32] + b"\0" + b[33:], "zstd: "),
        (lambda b: b[:60] + bytes(len(b) - 60), "zstd: "),
        (lambda _: compressed(b"no bundle at all"), "its contents are no offload bundle"),
    ],
)
def test_bad_compressed_bundles_are_named(
    hip: Hip,
    code_objects: dict[str, bytes],
    change: Callable[[bytes], bytes],
    words: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "k.co").write_bytes(change(compressed(_bundled(code_objects))))
    module = c_void_p()
    status = hip.hipModuleLoad(byref(module), os.fsencode(tmp_path / "k.co"))
    assert status == INVALID_IMAGE and not module.value
    assert "(CCOB)" in hip.error() and words in hip.error()


def test_compressed_code_without_zstd_is_explained(
    vgpu_path: Path, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    """A file of that name that is no library, first on the path, hides the real one."""
    (tmp_path / "libzstd.so.1").write_text("none")
    (tmp_path / "k.co").write_bytes(compressed(_bundled(code_objects)))
    program = (
        "import ctypes, sys; hip = ctypes.CDLL(sys.argv[1]); module = ctypes.c_void_p(); "
        "sys.exit(hip.hipModuleLoad(ctypes.byref(module), sys.argv[2].encode()))"
    )
    command = [sys.executable, "-S", "-c", program, str(vgpu_path), str(tmp_path / "k.co")]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == INVALID_IMAGE, result.stderr
    assert "package libzstd1" in result.stderr and "--no-offload-compress" in result.stderr


def test_wrong_architecture_is_refused_by_both_names(
    hip: Hip, code_objects: dict[str, bytes]
) -> None:
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), code_objects["gfx942"]) == NO_BINARY
    assert re.search("built for gfx942, but the virtual GPU is gfx950", hip.error())
    foreign = bundle([HOST_ENTRY, ("hipv4-amdgcn-amd-amdhsa--gfx942", code_objects["gfx942"])])
    assert hip.hipModuleLoadData(byref(module), foreign) == NO_BINARY
    assert "amdhsa--gfx942" in hip.error() and "no image for gfx950" in hip.error()
    xnack = bundle([("hipv4-amdgcn-amd-amdhsa--gfx950:xnack+", code_objects["gfx950"])])
    assert hip.hipModuleLoadData(byref(module), xnack) == NO_BINARY
    assert not module.value


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda b: b"\0" + b[1:], INVALID_IMAGE, "neither an ELF"),
        (lambda b: b[:4] + b"\x01" + b[5:], INVALID_IMAGE, "64-bit ELF"),
        (lambda b: b[:18] + struct.pack("<H", 62) + b[20:], INVALID_IMAGE, "machine 62"),
        (lambda b: b[:8] + b"\x01" + b[9:], INVALID_IMAGE, "OS ABI 64 version 1"),
        (lambda b: b[:16] + b"\x01" + b[17:], INVALID_IMAGE, "ld.lld -shared"),
        (lambda b: b[:48] + struct.pack("<I", 0x741) + b[52:], NO_BINARY, "built for gfx1100"),
        (lambda b: b[:48] + struct.pack("<I", 0x74F) + b[52:], NO_BINARY, "gfx950:xnack+"),
    ],
)
def test_bad_images_are_named(
    hip: Hip,
    code_objects: dict[str, bytes],
    change: Callable[[bytes], bytes],
    status: int,
    words: str,
) -> None:
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), change(code_objects["gfx950"])) == status
    assert words in hip.error()


def test_modules_load_from_files(hip: Hip, code_objects: dict[str, bytes], tmp_path: Path) -> None:
    file, module = tmp_path / "k.hsaco", c_void_p()
    file.write_bytes(code_objects["gfx950"])
    hip.call("hipModuleLoad", byref(module), os.fsencode(file))
    hip.function(module, "empty")
    hip.call("hipModuleUnload", module)
    assert hip.hipModuleLoad(byref(module), os.fsencode(tmp_path / "none")) == FILE_NOT_FOUND
    file.write_bytes(code_objects["gfx950"][:200])
    assert hip.hipModuleLoad(byref(module), os.fsencode(file)) == INVALID_IMAGE
    assert "truncated" in hip.error()


# Hand-written: the last explicit arguments are padding behind the segment, so is a hidden one.
_PADDED = """.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl padded
.p2align 8
.type padded,@function
padded:
  s_load_dwordx2 s[2:3], s[0:1], 0
  s_load_dword s4, s[0:1], 8
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v0, 0
  v_mov_b32 v1, s4
  global_store_dword v0, v1, s[2:3]
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel padded
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 12
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: padded
    .symbol: padded.kd
    .kernarg_segment_size: 12
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 4, .value_kind: by_value}}
      - {{.name: pad, .offset: 12, .size: 4, .value_kind: by_value}}
      - {{.offset: 4294967288, .size: 16, .value_kind: by_value}}
      - {{.offset: 16, .size: 8, .value_kind: hidden_queue_ptr}}
.end_amdgpu_metadata
"""


def test_padding_may_lie_behind_the_argument_segment(hip: Hip, arch: str, tmp_path: Path) -> None:
    module = hip.load(assemble(_PADDED.format(arch=arch), arch, tmp_path))
    function = hip.function(module, "padded")
    for form in ("params", "extra"):
        out = poisoned(64)
        if form == "extra":
            buffer = struct.pack("<QII", out.ctypes.data, 77, 0xFFFFFFFF)
            assert hip.launch_extra(function, buffer) == SUCCESS, hip.error()
        else:
            pads = (c_uint(0xFFFFFFFF), (c_uint * 4)(*[0xFFFFFFFF] * 4))
            status = hip.launch(function, pointer(out), c_uint(77), *pads)
            assert status == SUCCESS, hip.error()
        assert out[0] == 77 and (out[1:] == poisoned(63)).all(), form
    hip.call("hipModuleUnload", module)


def test_every_metadata_note_is_read(hip: Hip, arch: str, tmp_path: Path) -> None:
    """As in Tensile's code objects: a note for each kernel, descriptors without a size."""
    objects = []
    for name in ("first", "second", "third"):
        source = _PADDED.format(arch=arch).replace("padded", name)
        file = tmp_path / f"{name}.s"
        file.write_text(source.replace(".amdhsa_kernarg_size 12", ".amdhsa_kernarg_size 0"))
        objects.append(tmp_path / f"{name}.o")
        zig("clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", file, "-o", objects[-1])
    zig("ld.lld", "-shared", *objects, "-o", tmp_path / "k.hsaco")
    code = (tmp_path / "k.hsaco").read_bytes()
    assert code.count(b"amdhsa.kernels") == 3
    module = hip.load(code)
    for value, name in enumerate(("first", "second", "third")):
        out = poisoned(1)
        buffer = struct.pack("<QI", out.ctypes.data, value)
        assert hip.launch_extra(hip.function(module, name), buffer) == SUCCESS, hip.error()
        assert out[0] == value, name
    hip.call("hipModuleUnload", module)


def test_handles_end_with_their_module(hip: Hip, code_objects: dict[str, bytes]) -> None:
    module = hip.load(code_objects["gfx950"])
    function = hip.function(module, "empty")
    assert hip.launch(function) == SUCCESS
    missing = c_void_p()
    assert hip.hipModuleGetFunction(byref(missing), module, b"emptyy") == NOT_FOUND
    assert "emptyy" in hip.error() and "arguments" in hip.error(), "names what there is"
    hip.call("hipModuleUnload", module)
    assert hip.hipModuleUnload(module) == INVALID_HANDLE
    assert hip.launch(function) == INVALID_HANDLE
    assert hip.hipModuleGetFunction(byref(missing), module, b"empty") == INVALID_HANDLE


# Runs in a process of its own, so that a crash is a failed test. The image ends where readable
# memory ends: reading past it would be a crash too. Exit 0 and a count of images that loaded.
_HOSTILE = r"""
import ctypes, mmap, random, sys
hip = ctypes.CDLL(sys.argv[1])
hip.rfops_vgpu_last_error.restype = ctypes.c_char_p
good = open(sys.argv[2], "rb").read()
mode, count = sys.argv[3], int(sys.argv[4])
page = mmap.PAGESIZE
area = mmap.mmap(-1, (len(good) // page + 3) * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None)
end = base + len(area) - page
assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
loaded, module, function = 0, ctypes.c_void_p(), ctypes.c_void_p()
def load(image):
    ctypes.memmove(end - len(image), image, len(image))
    status = hip.hipModuleLoadData(ctypes.byref(module), ctypes.c_void_p(end - len(image)))
    if status:
        assert status in (200, 209), status
        assert hip.rfops_vgpu_last_error(), "an error has a text"
        return 0
    for name in (b"empty", b"arguments", b"globals"):
        hip.hipModuleGetFunction(ctypes.byref(function), module, name)
    assert hip.hipModuleUnload(module) == 0
    return 1
assert load(good)
if mode == "truncate":
    needed = int(sys.argv[5])
    for size in range(0, len(good), count):
        got = load(good[:size])
        assert got == (size >= needed), (size, needed, hip.rfops_vgpu_last_error())
        loaded += got
else:
    rng = random.Random(20261121)
    hot = min(len(good), 4096)  # headers, notes, symbols and descriptors
    for _ in range(count):
        image = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(hot) if rng.random() < 0.8 else rng.randrange(len(image))
            image[at] ^= 1 << rng.randrange(8)
        loaded += load(bytes(image))
print(loaded)
"""


def hostile(vgpu_path: Path, file: Path, *arguments: object) -> int:
    completed = subprocess.run(
        [sys.executable, "-c", _HOSTILE, str(vgpu_path), str(file), *map(str, arguments)],
        env={**os.environ, "RFOPS_VGPU_LOG": "0", "RFOPS_VGPU_ARCH": "gfx950"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert completed.returncode == 0, f"exit {completed.returncode}: {completed.stderr[-2000:]}"
    assert completed.stderr == "", "RFOPS_VGPU_LOG=0 is silent"
    return int(completed.stdout)


def last_segment_end(image: bytes) -> int:
    """Where the bytes end that a loader needs: the last segment, not the sections behind it."""
    offset, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    rows = (struct.unpack_from("<IIQQQQ", image, offset + 56 * i) for i in range(count))
    return max(row[2] + row[5] for row in rows)


def test_truncated_images_are_errors(
    vgpu_path: Path, code_objects: dict[str, bytes], tmp_path: Path
) -> None:
    image, file = code_objects["gfx950"], tmp_path / "k.hsaco"
    file.write_bytes(image)
    loaded = hostile(vgpu_path, file, "truncate", 64, last_segment_end(image))
    assert loaded < len(image) // 64


@pytest.mark.parametrize("form", ["elf", "bundle"])
def test_flipped_bits_never_crash(
    vgpu_path: Path, code_objects: dict[str, bytes], tmp_path: Path, form: str
) -> None:
    image, file = code_objects["gfx950"], tmp_path / "k.hsaco"
    names = ((f"hipv4-amdgcn-amd-amdhsa--{arch}", code_objects[arch]) for arch in ARCHS)
    file.write_bytes(image if form == "elf" else bundle([HOST_ENTRY, *names]))
    loaded = hostile(vgpu_path, file, "flip", 4000)
    assert 0 < loaded < 4000, "some flips hit nothing that matters, some do"


def test_memory_that_is_not_readable_is_no_image(hip: Hip) -> None:
    """A bare pointer near the end of its mapping, and one to nothing."""
    module = c_void_p()
    assert hip.hipModuleLoadData(byref(module), c_void_p(0x10000)) == INVALID_IMAGE
    assert "not readable" in hip.error()
    area = mmap.mmap(-1, mmap.PAGESIZE)
    area[-4:] = b"\x7fELF"
    last = ctypes.addressof(ctypes.c_char.from_buffer(area)) + mmap.PAGESIZE - 4
    assert hip.hipModuleLoadData(byref(module), c_void_p(last)) == INVALID_IMAGE
    assert hip.hipModuleLoadData(byref(module), None) == INVALID_VALUE
