"""Replays a fuzzing corpus, and mutations of it, on the virtual GPU as it is built for everybody:

    fuzz_replay.py <libamdhip64.so> <target> <mutations of each input> [<run: code objects>...]

In a process of its own, as what it looks for are crashes. Prints how many inputs ran, and how many
of them went well; anything that is neither accepted nor refused with a text is an AssertionError.
Imports the standard library alone, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

ARCHS = ("gfx942", "gfx950")
INVALID_IMAGE, NO_BINARY, LAUNCH_TIMEOUT, LAUNCH_FAILURE = 200, 209, 702, 719
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
BIG = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFFFFFFFFFF, 1 << 63, (1 << 46) + 1)


def inputs(target: str) -> dict[str, bytes]:
    with tarfile.open(Path(__file__).parents[2] / "vgpu/fuzz" / f"{target}.tar.xz") as packed:
        return {entry.name: packed.extractfile(entry).read() for entry in packed}


def mutate(data: bytes, rng: random.Random, pool: list[bytes]) -> bytes:
    """One to four changes: bits, bytes, numbers, a piece lost, doubled, or taken from another."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        offset = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and offset < len(out):
            out[offset] ^= 1 << rng.randrange(8)
        elif kind == 1 and offset < len(out):
            out[offset] = rng.choice(INTERESTING)
        elif kind == 2:
            out[offset : offset + 4] = rng.randbytes(4)
        elif kind == 3:
            value, width = rng.choice(BIG), rng.choice((4, 8))
            out[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
        elif kind == 4:
            del out[offset : offset + rng.choice((1, 4, 16, 64))]
        elif kind == 5:
            out[offset:offset] = out[offset : offset + rng.choice((4, 8, 24))]
        else:
            donor = rng.choice(pool)
            start = rng.randrange(len(donor))
            piece = donor[start : start + rng.choice((4, 8, 24, 64))]
            out[offset : offset + len(piece)] = piece
    return bytes(out)


def cases(target: str, mutations: int) -> Iterator[bytes]:
    corpus = inputs(target)
    pool = list(corpus.values())
    for name, data in corpus.items():
        yield data
        rng = random.Random(name)
        for _ in range(mutations):
            yield mutate(data, rng, pool)


class Gpu:
    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.rfops_vgpu_last_error.restype = ctypes.c_char_p

    def select(self, arch: str) -> None:
        assert self.lib.rfops_vgpu_set_arch(arch.encode()) == 0

    def refused(self, status: int, expected: tuple[int, ...]) -> None:
        text = self.lib.rfops_vgpu_last_error()
        assert status in expected, (status, text)
        assert text, f"error {status} has no text"


# ---------------------------------------------------------------------------------- loader


def loader(gpu: Gpu) -> Callable[[bytes], int]:
    """hipModuleLoadData of bytes that end where readable memory ends."""
    page, size = mmap.PAGESIZE, 1 << 20
    area = gpu.area = mmap.mmap(-1, size + page)  # mapped for as long as the loader is in use
    end = ctypes.addressof(ctypes.c_char.from_buffer(area)) + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0

    def load(data: bytes) -> int:
        loaded, module = 0, ctypes.c_void_p()
        ctypes.memmove(end - len(data), data, len(data))
        for arch in ARCHS:
            gpu.select(arch)
            image = ctypes.c_void_p(end - len(data))
            status = gpu.lib.hipModuleLoadData(ctypes.byref(module), image)
            if status:
                gpu.refused(status, (INVALID_IMAGE, NO_BINARY))
            else:
                assert gpu.lib.hipModuleUnload(module) == 0
                loaded = 1
        return loaded

    return load


# ---------------------------------------------------------------------------------- decoder


def decoder(gpu: Gpu) -> Callable[[bytes], int]:
    """Every dword as the start of an instruction."""
    text = ctypes.create_string_buffer(256)

    def decode(data: bytes) -> int:
        count, num_known = len(data) // 4, 0
        words = (ctypes.c_uint32 * count).from_buffer_copy(data[: 4 * count])
        for gfx in (942, 950):
            for i in range(count):
                remaining = count - i
                size = gpu.lib.rfops_vgpu_disassemble(
                    gfx, ctypes.byref(words, 4 * i), remaining, text, len(text)
                )
                assert size <= remaining and text.value, (gfx, data.hex())
                num_known += size > 0
        return int(num_known > 0)

    return decode


# ---------------------------------------------------------------------------------- run

VALUES, MOST_WORDS = 8, 512
NOP, END, SET_MODE = 0xBF800000, 0xBF810000, 0xBA004801
MOVE_SCALAR, MOVE_VECTOR, XOR_LANE = 0xBE8000FF, 0x7E0002FF, 0x2A000100
TEXT_WORDS = 4096  # of the code object that the programs are put into
LEFT_OUT = (
    "global_",
    "flat_",
    "buffer_",
    "tbuffer_",
    "s_load",
    "s_store",
    "s_buffer",
    "s_scratch",
    "s_atomic",
    "s_atc",
    "s_set_gpr_idx",
)


def program(gpu: Gpu, gfx: int, data: bytes) -> list[int]:
    """What fuzz_run.cpp makes of an input, without the instructions that it leaves out."""
    mode, values = data[1] | (data[0] >> 4 & 3) << 8, struct.unpack_from(f"<{VALUES}I", data, 2)
    head = [SET_MODE, mode]
    for i, value in enumerate(values):
        head += [MOVE_SCALAR | (16 + i) << 16, value, MOVE_VECTOR | (1 + i) << 17, value]
        head += [XOR_LANE | (1 + i) << 17 | (1 + i) << 9] if i % 2 else []
    code = data[2 + 4 * VALUES :]
    count = min(len(code) // 4, MOST_WORDS)
    words = [*head, *struct.unpack_from(f"<{count}I", code), END]
    text, changed = ctypes.create_string_buffer(256), True
    while changed:  # a word that goes may have been what hid another instruction
        changed = False
        snapshot = (ctypes.c_uint32 * len(words))(*words)
        for i in range(len(words)):
            remaining = len(words) - i
            size = gpu.lib.rfops_vgpu_disassemble(
                gfx, ctypes.byref(snapshot, 4 * i), remaining, text, 256
            )
            if size and text.value.decode().startswith(LEFT_OUT):
                words[i], changed = NOP, True
    return words


def runner(gpu: Gpu, code_objects: dict[str, bytes]) -> Callable[[bytes], int]:
    """Launches `code_objects[arch]` with its text replaced by the program."""

    def run(data: bytes) -> int:
        if len(data) < 2 + 4 * VALUES + 4:
            return 0
        arch = ARCHS[data[0] & 1]
        words = program(gpu, 950 if data[0] & 1 else 942, data)
        words += [END] * (TEXT_WORDS - len(words))
        marker = struct.pack("<I", NOP) * TEXT_WORDS
        assert code_objects[arch].count(marker) == 1
        image = code_objects[arch].replace(marker, struct.pack(f"<{TEXT_WORDS}I", *words))
        gpu.select(arch)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        assert gpu.lib.hipModuleLoadData(ctypes.byref(module), image) == 0
        assert gpu.lib.hipModuleGetFunction(ctypes.byref(function), module, b"k0") == 0
        block = 64 * (1 + (data[0] >> 1 & 3))
        shape = (1, 1, 1, block, 1, 1, 0, None, None, None)
        status = gpu.lib.hipModuleLaunchKernel(function, *shape)
        if status:
            gpu.refused(status, (LAUNCH_TIMEOUT, LAUNCH_FAILURE))
        assert gpu.lib.hipModuleUnload(module) == 0
        return int(status == 0)

    return run


def main(library: str, target: str, mutations: str, *code_objects: str) -> None:
    gpu = Gpu(library)
    if target == "run":
        images = (Path(name).read_bytes() for name in code_objects)
        replay = runner(gpu, dict(zip(ARCHS, images, strict=True)))
    else:
        replay = {"loader": loader, "decoder": decoder}[target](gpu)
    results = [replay(data) for data in cases(target, int(mutations))]
    print(len(results), sum(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
