"""Random programs on the host and on the virtual GPU, compared bit for bit.

The wheel's clang compiles one source for both sides; the host's code runs on the host's own
arithmetic, so that no reading of the instruction set is shared.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import platform
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import ziglang

from support.vgpu import opcodes
from support.vgpu import random_programs as programs
from support.vgpu.asm import Module
from support.vgpu.cases import ARCHS
from support.vgpu.random_programs import LANES, SHARED_BYTES, SIZES, SLICE, VECTORS, Program
from support.vgpu.reference import Array

HEADER = Path(__file__).parents[2] / "vgpu" / "fuzz"
_ZIG = str(Path(ziglang.__file__).parent / "zig")
_COMMON = (
    "-std=c++20",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-w",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    f"-I{HEADER}",
)
_HOST_CPU = {"x86_64": ("-mf16c", "-mfma", "-mavx2")}
_HOST = ("-x", "c++", "-O0", "-fPIC")
_DEVICE = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-S")
LEVELS = {  # flags that change what clang selects
    "O0": ("-O0",),
    "O1": ("-O1",),
    "O2": ("-O2",),
    "O3": ("-O3",),
    "Os": ("-Os",),  # -Oz divides unsigned values with 9 sign bits in f32: wrong, clang's fault
    "global isel": (
        "-O2",
        "-mllvm",
        "-global-isel",
        "-mllvm",
        "-global-isel-abort=2",
        "-DGLOBAL_ISEL",
    ),
    "no SDWA": ("-O2", "-mllvm", "-amdgpu-sdwa-peephole=0"),
    "no DPP": ("-O3", "-mllvm", "-amdgpu-dpp-combine=0", "-fno-unroll-loops"),
    "memory atomics": ("-O2", "-munsafe-fp-atomics"),
    "aligned": ("-O2", "-Xclang", "-target-feature", "-Xclang", "-unaligned-access-mode"),
}
NUM_SLOW_PROGRAMS = (
    2  # programs of a batch at -O0, which gives 30 times the code and takes as much longer
)


def _run(*command: str | Path) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{' '.join(map(str, command))}\n{completed.stderr[:4000]}"


def build_host(source: Path, folder: Path) -> ctypes.CDLL:
    """The programs of `source` as functions of the host."""
    machine = platform.machine()
    obj = folder / f"{source.stem}.o"
    library = folder / f"{source.stem}_{random.getrandbits(48):x}.so"  # loaded once by its name
    _run(
        _ZIG,
        "clang",
        f"--target={machine}-linux-gnu",
        *_HOST_CPU.get(machine, ()),
        *_HOST,
        *_COMMON,
        "-c",
        source,
        "-o",
        obj,
    )
    _run(_ZIG, "ld.lld", "-shared", obj, "-o", library)
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    return loaded


def build_device(source: Path, folder: Path, arch: str, level: str) -> tuple[Module, str]:
    """The programs of `source` as kernels, and their assembly."""
    asm, obj, code = (folder / f"{source.stem}.{suffix}" for suffix in ("s", "gpu.o", "hsaco"))
    target = ("--target=amdgcn-amd-amdhsa", f"-mcpu={arch}")
    _run(
        _ZIG,
        "clang",
        *_DEVICE,
        f"--offload-arch={arch}",
        *_COMMON,
        *LEVELS[level],
        source,
        "-o",
        asm,
    )
    _run(_ZIG, "clang", *target, "-c", asm, "-o", obj)
    _run(_ZIG, "ld.lld", "-shared", obj, "-o", code)
    return Module(code.read_bytes(), arch), asm.read_text()


# ------------------------------------------------------------------------------ data

_SPECIAL = np.array(
    [0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x3F003F00, 0x3C003C00, 0x3F800000, 0xBF800000,
     0x10001, 0x7FFF8000, 0xFF00FF, 0x7F807F80, 0x3F000000, 0x7C00FC00, 0x7E007E00, 0x400040,
     0x03FF0400, 0x4000C000, 0x1F, 0x20, 0xFFFF, 0xFFFF0000, 0x00800000, 0x807FFFFF],
    np.uint32,
)  # fmt: skip


def _floats(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Ordinary numbers, denormals and whole numbers, as bytes [count, size]."""
    value = rng.normal(size=count) * 10.0 ** rng.integers(-2, 3, count)
    value = np.where(rng.random(count) < 0.3, np.round(value), value)
    small = {"f16": 2.0**-17, "bf16": 2.0**-130, "f32": 2.0**-130, "f64": 2.0**-1030}[kind]
    value = np.where(rng.random(count) < 0.1, value * small, value)
    if kind == "bf16":
        narrow = (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return narrow.view(np.uint8).reshape(count, 2)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    return value.astype(dtype).view(np.uint8).reshape(count, np.dtype(dtype).itemsize)


def _inputs(
    layout: list[tuple[str, str, int]], size: int, count: int, rng: np.random.Generator
) -> Array:
    """Random bits, special patterns and small integers (denormals, to a float) in lanes' bytes."""
    words = rng.integers(0, 1 << 32, (count, size // 4), dtype=np.uint32)
    chance = rng.random(words.shape)
    words[chance < 0.25] = rng.choice(_SPECIAL, int((chance < 0.25).sum()))
    small = (chance > 0.25) & (chance < 0.4)
    words[small] = rng.integers(0, 80, int(small.sum()))
    data = words.view(np.uint8).reshape(count, size)
    for kind, _, offset in layout:
        element, number = VECTORS.get(kind, (kind, 1))
        if element not in programs.FLOATS:
            continue
        width = programs.FLOATS[element]
        for i in range(number):
            selected = np.flatnonzero(rng.random(count) < 0.75)
            position = offset + width * i
            data[selected, position : position + width] = _floats(element, len(selected), rng)
    return np.ascontiguousarray(data)


class Data(NamedTuple):
    lanes: Array  # [256, bytes of a lane's variables]
    uniform: Array
    memory: Array  # [256, SLICE]

    @classmethod
    def of(cls, program: Program, seed: int) -> Data:
        rng = np.random.default_rng((program.seed, seed))
        return cls(
            _inputs(*program.layout(), LANES, rng),
            _inputs(*program.uniform_layout(), 1, rng),
            _inputs([], SLICE, LANES, rng),
        )


class Outcome(NamedTuple):
    variables: Array
    memory: Array
    shared: Array


def execute(program: Program, data: Data, target: ctypes.CDLL | Module) -> Outcome:
    width = data.lanes.shape[1] + data.uniform.shape[1]
    out = Outcome(
        np.zeros((LANES, width), np.uint8),
        data.memory.copy(),
        np.zeros((1, SHARED_BYTES), np.uint8),
    )
    pointers = [x.ctypes.data for x in (*data[:2], out.memory, out.shared, out.variables)]
    if isinstance(target, Module):
        target.launch(program.name, 1, LANES, np.array(pointers, np.uint64).tobytes())
    else:
        getattr(target, program.name)(*map(ctypes.c_void_p, pointers))
    return out


def differences(program: Program, want: Outcome, actual: Outcome) -> list[str]:
    """A line a variable that differs: how many lanes, and the first one's bytes as hexadecimal."""
    lanes, size = program.layout()
    positions = [(name, offset, SIZES[kind]) for kind, name, offset in lanes]
    positions += [
        (name, size + offset, SIZES[kind]) for kind, name, offset in program.uniform_layout()[0]
    ]
    compared_results = [
        (name, want.variables[:, offset : offset + n], actual.variables[:, offset : offset + n])
        for name, offset, n in positions
    ]
    compared_results += [
        ("memory", want.memory, actual.memory),
        ("shared", want.shared, actual.shared),
    ]
    out = []
    for name, right, result in compared_results:
        differing = (right != result).any(1)
        if differing.any():
            lane = int(np.argmax(differing))
            out.append(
                f"{name}: {int(differing.sum())} lanes, lane {lane} want "
                f"{right[lane][::-1].tobytes().hex()} got "
                f"{result[lane][::-1].tobytes().hex()}"
            )
    return out


# ------------------------------------------------------------------------------ batches


@dataclass
class Mismatch:
    program: Program
    data: int
    arch: str
    level: str
    lines: list[str]

    def names(self) -> list[str]:
        return [line.partition(":")[0] for line in self.lines]

    def __str__(self) -> str:
        head = f"seed {self.program.seed}, data {self.data}, {self.arch}, {self.level}"
        return "\n  ".join([head, *self.lines[:6]])


@dataclass
class Tally:
    programs: int = 0
    by_arch: collections.Counter[str] = field(default_factory=collections.Counter)  # runs
    instructions: int = 0
    names: collections.Counter[str] = field(default_factory=collections.Counter)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return self.by_arch.total()

    def add(self, addend: Tally) -> None:
        self.programs += addend.programs
        self.by_arch += addend.by_arch
        self.instructions += addend.instructions
        self.names += addend.names
        self.mismatches += addend.mismatches

    def __str__(self) -> str:
        runs = " + ".join(f"{n} {arch}" for arch, n in sorted(self.by_arch.items()))
        return (
            f"{self.programs} programs, {runs} runs of {LANES} lanes, {self.instructions} "
            f"static instructions, {len(rows_of(self.names))} of {len(_row_names())} opcode names, "
            f"{len(self.mismatches)} mismatches"
        )


@functools.cache
def _row_names() -> frozenset[str]:
    return frozenset(row.name for row in opcodes.rows())


def rows_of(names: collections.Counter[str]) -> set[str]:
    """The opcode names of the tables that mnemonics of assembly stand for."""
    return {re.sub(r"_(e32|e64|sdwa|dpp|e64_dpp)$", "", name) for name in names} & _row_names()


def _mnemonics(asm: str) -> collections.Counter[str]:
    return collections.Counter(
        re.findall(r"^\s+((?:v|s|ds|global|flat|scratch|buffer)_\w+)", asm, re.M)
    )


def sampled_levels(first_seed: int, count: int) -> dict[str, list[str]]:
    """`count` levels an architecture, other ones for other seeds; all of them come in turn."""
    names = list(LEVELS)
    return {
        arch: [names[(first_seed // 8 * count + 5 * a + i) % len(names)] for i in range(count)]
        for a, arch in enumerate(ARCHS)
    }


def run_batch(
    batch: list[Program], levels: dict[str, list[str]], folder: Path, datasets: int = 2
) -> Tally:
    """Compile `batch` once a level and compare each program's runs; `levels` by architecture."""
    source = folder / "programs.cpp"
    source.write_text(programs.source(batch))
    host = build_host(source, folder)
    data = {(p.seed, n): Data.of(p, n) for p in batch for n in range(datasets)}
    want = {(p.seed, n): execute(p, data[p.seed, n], host) for p in batch for n in range(datasets)}
    tally = Tally(programs=len(batch))
    for arch, level in [
        (target_arch, level) for target_arch, selected in levels.items() for level in selected
    ]:
        selected = batch[:NUM_SLOW_PROGRAMS] if level == "O0" else batch
        source.write_text(programs.source(selected))
        module, asm = build_device(source, folder, arch, level)
        mnemonic_counts = _mnemonics(asm)
        tally.names += mnemonic_counts
        tally.instructions += mnemonic_counts.total()
        for program in selected:
            for n in range(datasets):
                lines = _compare(program, data[program.seed, n], want[program.seed, n], module)
                tally.by_arch[arch] += 1
                if lines:
                    tally.mismatches.append(Mismatch(program, n, arch, level, lines))
    return tally


def _compare(program: Program, data: Data, want: Outcome, module: Module) -> list[str]:
    try:
        actual = execute(program, data, module)
    except AssertionError as fault:
        return [str(fault)]
    return differences(program, want, actual)


def batches(first_seed: int, count: int, size: int = 8) -> Iterator[list[Program]]:
    for start in range(first_seed, first_seed + count, size):
        yield [Program(seed) for seed in range(start, min(start + size, first_seed + count))]


def minimised(result: Mismatch, folder: Path) -> Mismatch:
    """The mismatch with as few statements as make the same variable differ."""
    best, name = result, result.names()[0]
    steps = len(result.program.steps)
    stride = max(1, steps // 2)
    while stride:
        offset = 0
        while offset < len(best.program.steps):
            shorter = Program(result.program.seed)
            shorter.steps = best.program.steps[:offset] + best.program.steps[offset + stride :]
            tally = run_batch([shorter], {result.arch: [result.level]}, folder, result.data + 1)
            same_data = [m for m in tally.mismatches if m.data == result.data and name in m.names()]
            if same_data:
                best = same_data[0]
            else:
                offset += stride
        stride //= 2
    return best
