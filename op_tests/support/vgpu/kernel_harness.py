"""Runs a kernel of vgpu/kernels/sources on the virtual GPU and compares every buffer with numpy.

A case is one or more launches; a launch says what each of its buffers must hold afterwards. Buffers
lie between guards of poison, buffers that are not named must be unchanged, and each case says which
source it needs: test_vgpu_kernels.py runs it on every build of that source.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from ctypes import Array as CArray
from ctypes import byref, c_char, c_size_t, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from rfops.dispatch.compare import assert_within
from rfops.jit.build.device import build_device
from rfops.jit.build.spec import ModuleSpec
from support import OP_TESTS
from support.vgpu import hip as vgpu_hip
from support.vgpu.hip import DEVICE_TO_HOST, HOST_TO_DEVICE, SUCCESS, Hip, pointer

Array = NDArray[Any]
Rng = np.random.Generator
GUARD = 256  # poisoned bytes on both sides of every buffer
KERNELS = OP_TESTS / "vgpu/kernels/sources"

# What is compiled with which flags beside the engine's own -O3; the last level wins.
LEVELS: Mapping[str, tuple[str, ...]] = {
    "O3": (),
    "O1": ("-O1",),
    "O0": ("-O0",),
    "Oz": ("-Oz", "-g"),
    # Kernel arguments that arrive in SGPRs, and the older code object.
    "preload": ("-mllvm", "-amdgpu-kernarg-preload-count=16", "-mcode-object-version=5"),
    "fast": ("-ffast-math", "-munsafe-fp-atomics", "-fgpu-flush-denormals-to-zero"),
}


def compile_kernels(source: str, arch: str, level: str) -> bytes:
    """The code object of one of the sources, from the engine's cache or built now."""
    spec = ModuleSpec(
        name=f"vgpu_kernels_{source}", srcs=(f"{source}.hip",), flags=LEVELS[level], root=KERNELS
    )
    return build_device(spec, arch, {}).file.read_bytes()


# ------------------------------------------------------------------------------ what is expected


@dataclass(frozen=True)
class Close:
    """Expected values with a bound: |actual - expected| <= absolute + relative * |expected|."""

    expected: Array
    relative: float = 0.0
    absolute: float | Array = 0.0


Check = Callable[[Array], None]  # asserts
Expectation = Array | Close | Check


def expect(actual: Array, expectation: Expectation) -> None:
    """Asserts; an array is compared bit by bit, except that any NaN is as good as another."""
    if callable(expectation):
        expectation(actual)
    elif isinstance(expectation, Close):
        exact = np.asarray(expectation.expected, np.float64).reshape(actual.shape)
        size = np.where(np.isfinite(exact), np.abs(exact), 0)
        bound = expectation.absolute + expectation.relative * size
        assert_within(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (actual, exact, bound)))
    else:
        _expect_bits(actual, np.asarray(expectation, actual.dtype).reshape(actual.shape))


def _expect_bits(actual: Array, expected: Array) -> None:
    raw = f"u{actual.dtype.itemsize}"
    wrong = np.ascontiguousarray(actual).view(raw) != np.ascontiguousarray(expected).view(raw)
    if actual.dtype.kind == "f":
        wrong &= ~(np.isnan(actual) & np.isnan(expected))
    if not wrong.any():
        return
    offset = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
    text = f"got {actual[offset]!r}, expected {expected[offset]!r}"
    if actual.dtype.kind in "iu":
        text += f" ({int(actual[offset]):#x}, {int(expected[offset]):#x})"
    count = np.count_nonzero(wrong)
    raise AssertionError(f"{count} of {wrong.size} values are wrong; first at {offset}: {text}")


# ------------------------------------------------------------------------------ cases


@dataclass
class Launch:
    """Arrays are buffers (uploaded, compared); numpy scalars and records travel by value, None is
    a null pointer, a callable is asked for its value when the buffers' addresses are known.

    `expect` says by argument index what a buffer holds afterwards; a buffer without an entry must
    be unchanged. `variables` are written before the launch, `expect_variables` read after it.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: list[Any]
    expect: dict[int, Expectation]
    lds: int = 0
    variables: dict[str, Array] = field(default_factory=dict)
    expect_variables: dict[str, Array] = field(default_factory=dict)


Made = Launch | list[Launch]


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    make: Callable[[Rng, str], Made]

    def launches(self, arch: str) -> list[Launch]:
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        result = self.make(rng, arch)
        return result if isinstance(result, list) else [result]


CASES: dict[str, Case] = {}


def arch_case(source: str, name: str = "") -> Callable[[Callable[[Rng, str], Made]], Any]:
    """Registers a function of (rng, arch) as a case, by its own name if none is given."""

    def register(make: Callable[[Rng, str], Made]) -> Callable[[Rng, str], Made]:
        key = name or make.__name__
        assert key not in CASES, f"two cases are called {key}"
        CASES[key] = Case(key, source, make)
        return make

    return register


def case(source: str, name: str = "") -> Callable[[Callable[[Rng], Made]], Any]:
    """As arch_case, of a function of (rng): the same on both architectures."""

    def register(make: Callable[[Rng], Made]) -> Callable[[Rng], Made]:
        arch_case(source, name or make.__name__)(lambda rng, _arch: make(rng))
        return make

    return register


def poisoned(shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
    count = shape if isinstance(shape, int) else math.prod(shape)
    return vgpu_hip.poisoned(count, np.dtype(dtype)).reshape(shape)


def blocks(count: int, size: int) -> int:
    return -(-count // size)


# ------------------------------------------------------------------------------ running


class Buffer:
    """A device copy of an array between two guards."""

    def __init__(self, hip: Hip, array: Array) -> None:
        self.hip, self.array, self.initial = hip, array, array.copy()
        base = c_void_p()
        hip.call("hipMalloc", byref(base), c_size_t(array.nbytes + 2 * GUARD))
        self.base = base
        self.upload()

    @property
    def address(self) -> Array:
        return np.array((self.base.value or 0) + GUARD, np.uint64)

    def upload(self) -> None:
        guarded = poisoned(self.array.nbytes + 2 * GUARD, np.uint8)
        guarded[GUARD : GUARD + self.array.nbytes] = np.frombuffer(self.array.tobytes(), np.uint8)
        copy = (pointer(guarded), c_size_t(guarded.nbytes), HOST_TO_DEVICE)
        self.hip.call("hipMemcpy", self.base, *copy)

    def read(self) -> None:
        """Reads back into the array; asserts that no guard was overwritten."""
        guarded = np.empty(self.array.nbytes + 2 * GUARD, np.uint8)
        copy = (self.base, c_size_t(guarded.nbytes), DEVICE_TO_HOST)
        self.hip.call("hipMemcpy", pointer(guarded), *copy)
        body = guarded[GUARD : GUARD + self.array.nbytes]
        self.array[...] = np.frombuffer(body.tobytes(), self.array.dtype).reshape(self.array.shape)
        for side, guard in (("before", guarded[:GUARD]), ("behind", guarded[-GUARD:])):
            is_changed = guard != poisoned(GUARD, np.uint8)
            assert not is_changed.any(), (
                f"wrote {side} the buffer, guard byte {np.argmax(is_changed)}"
            )


class Runner:
    """Runs the launches of one case on one code object; its buffers live until close()."""

    def __init__(self, hip: Hip, image: bytes) -> None:
        self.hip = hip
        self.module = hip.load(image)
        self.buffers: dict[int, Buffer] = {}

    def close(self) -> None:
        for buffer in self.buffers.values():
            self.hip.call("hipFree", buffer.base)
        self.hip.call("hipModuleUnload", self.module)

    def value_of(self, argument: Any) -> Array:
        """The bytes of an argument; a buffer's is its address."""
        if callable(argument):
            argument = argument(self)
        if argument is None:
            return np.array(0, np.uint64)
        if isinstance(argument, np.ndarray) and argument.ndim > 0:
            if id(argument) not in self.buffers:
                self.buffers[id(argument)] = Buffer(self.hip, argument)
            return self.buffers[id(argument)].address
        assert isinstance(argument, np.generic | np.ndarray), f"{argument!r} has no machine type"
        return np.asarray(argument)

    def run(self, launch: Launch, *, packed: bool) -> None:
        """By kernelParams, or (`packed`) by one buffer of arguments; asserts what is expected."""
        for name, value in launch.variables.items():
            offset, size = self.variable(name, value), c_size_t(value.nbytes)
            self.hip.call("hipMemcpyHtoD", offset, pointer(value), size)
        function = self.hip.function(self.module, launch.kernel)
        values = [self.value_of(argument) for argument in launch.args]
        shape = {"grid": launch.grid, "block": launch.block, "lds": launch.lds}
        if packed:
            status = self.hip.launch_extra(function, pack_arguments(values), **shape)
        else:
            status = self.hip.launch(function, *map(_raw, values), **shape)
        assert status == SUCCESS, self.hip.error()
        self.hip.call("hipDeviceSynchronize")
        self.check(launch)

    def variable(self, name: str, like: Array) -> c_void_p:
        offset, size = c_void_p(), c_size_t()
        self.hip.call("hipModuleGetGlobal", byref(offset), byref(size), self.module, name.encode())
        assert size.value == like.nbytes, f"{name} has {size.value} bytes, expected {like.nbytes}"
        return offset

    def check(self, launch: Launch) -> None:
        for index, argument in enumerate(launch.args):
            if not isinstance(argument, np.ndarray) or argument.ndim == 0:
                continue
            buffer = self.buffers[id(argument)]
            buffer.read()
            unchanged = "" if index in launch.expect else ", which must be unchanged"
            try:
                expect(argument, launch.expect.get(index, buffer.initial))
            except AssertionError as error:
                location = f"{launch.kernel}: argument {index}{unchanged}"
                raise AssertionError(f"{location}: {error}") from None
            buffer.initial = argument.copy()
        for name, expected in launch.expect_variables.items():
            actual = np.empty_like(expected)
            offset = self.variable(name, expected)
            self.hip.call("hipMemcpyDtoH", pointer(actual), offset, c_size_t(actual.nbytes))
            expect(actual, expected)


def _raw(value: Array) -> CArray[c_char]:
    return (c_char * value.nbytes).from_buffer_copy(value.tobytes())


def pack_arguments(values: Iterable[Array]) -> bytes:
    """Arguments as a C compiler lays them out: each at a multiple of its type's alignment."""
    out = bytearray()
    for value in values:
        out += bytes(-len(out) % value.dtype.alignment)
        out += value.tobytes()
    return bytes(out)
