"""Which builds of a kernel of vgpu/kernels/sources there are, and a fixture that makes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from support.vgpu.hip import ARCHS
from support.vgpu.kernel_harness import LEVELS, compile_kernels


class Build(NamedTuple):
    source: str
    arch: str
    level: str


DEFAULT = {("gfx950", "O3"), ("gfx942", "O3"), ("gfx950", "O0")}
ONLY_ARCH = {"gfx950": "gfx950"}  # by source
_SCALAR_OPERANDS = {"asm_scalar", "asm_masks", "asm_memory"}
NOT_AT = {
    "O0": _SCALAR_OPERANDS,  # they want values in SGPRs; -O0 keeps every variable in scratch
    # These check bits that fast math gives up: rounding, denormals, NaN, infinities, MODE.
    "fast": {"asm_masks", "clocks", "doubles", "floats", "halfs", "reduce", "softmax"},
}


def builds(source: str) -> Iterator[Build]:
    for level in LEVELS:
        for arch in ARCHS:
            if ONLY_ARCH.get(source, arch) == arch and source not in NOT_AT.get(level, ()):
                yield Build(source, arch, level)


@pytest.fixture(scope="session")
def kernel_builds() -> Callable[[Build], bytes]:
    """Makes a build once, for the test that asks: threads that build ahead would meet the cache of
    whatever test runs then.

    They lie in the engine's cache by content: only the first run compiles.
    """
    return functools.cache(lambda build: compile_kernels(*build))
