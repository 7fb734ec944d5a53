"""The kernels of sources/ as compilers emit them, on the virtual GPU, against numpy.

Each case runs on every build of its source: both architectures at -O3, and gfx950 at -O0, where
nothing is inlined and every variable lives in scratch. The other levels are sweeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support.vgpu import kernel_cases
from support.vgpu.hip import Hip
from support.vgpu.kernel_builds import DEFAULT, Build, builds
from support.vgpu.kernel_cases import CASES
from support.vgpu.kernel_harness import (
    KERNELS,
    Case,
    Close,
    Expectation,
    Launch,
    Runner,
    compile_kernels,
    poisoned,
)


def _parameters() -> Iterator[object]:
    for case in CASES.values():
        for build in builds(case.source):
            marks = () if (build.arch, build.level) in DEFAULT else (pytest.mark.sweep,)
            name = f"{case.source}-{case.name}-{build.arch}-{build.level}"
            yield pytest.param(case, build, marks=marks, id=name)


@pytest.mark.parametrize(("case", "build"), list(_parameters()))
def test_kernel(
    hip: Hip, kernel_builds: Callable[[Build], bytes], case: Case, build: Build
) -> None:
    """Both forms of handing over arguments, by kernelParams and in one buffer."""
    image = kernel_builds(build)
    hip.select(build.arch)
    for packed in (False, True):
        runner = Runner(hip, image)
        for launch in case.launches(build.arch):
            runner.run(launch, packed=packed)
        runner.close()


def test_every_source_has_cases() -> None:
    """And every module of cases has been imported."""
    (folder,) = kernel_cases.__path__
    modules = {path.stem for path in Path(folder).glob("[a-z]*.py")} - {"inputs", "words"}
    assert {*modules, "CASES"} == set(kernel_cases.__all__)
    sources = {path.stem for path in KERNELS.glob("*.hip")} - {"faults"}
    assert sources == {case.source for case in CASES.values()}


@pytest.mark.parametrize(
    ("size", "expected", "words"),
    [
        (
            64,
            {0: np.arange(64, dtype=np.int32)},
            "argument 0: 63 of 64 values are wrong; first at ",
        ),
        (64, {0: Close(np.full(64, 3.5), 0.1)}, "64 of 64 elements"),
        (64, {}, "argument 0, which must be unchanged: 64 of 64"),
        (60, {0: np.full(60, 3, np.int32)}, "wrote behind the buffer, guard byte 0"),
    ],
)
def test_the_harness_sees_what_is_wrong(
    hip: Hip, size: int, expected: dict[int, Expectation], words: str
) -> None:
    """64 threads store 3."""
    runner = Runner(hip, compile_kernels("faults", "gfx950", "O3"))
    launch = Launch("plain", (1,), (64,), [poisoned(size, np.int32)], expected)
    with pytest.raises(AssertionError, match=re.escape(words)):
        runner.run(launch, packed=False)
    runner.close()
