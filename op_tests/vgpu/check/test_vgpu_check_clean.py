"""The checking mode has nothing to say of kernels that are right.

The corpus of vgpu/kernels/sources and gemm_mxfp8; what Triton compiles has its part of this in
triton/test_triton_*.py. By default a part of it; as a sweep all of their test suites, with findings
as errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

import rfops
from support import OP_TESTS, ROOT
from support.vgpu.checks import nothing_found
from support.vgpu.hip import Hip
from support.vgpu.kernel_builds import Build, builds
from support.vgpu.kernel_cases import CASES
from support.vgpu.kernel_harness import Case, Runner

# Waves of it return in front of a barrier: hardware takes them for arrived, and the check objects.
DIVERGENT = "early_return"
CLEAN = [case for case in CASES.values() if case.name != DIVERGENT]
SUITES = [
    "gemm/test_gemm_mxfp8.py",
    "triton/test_triton_dot.py",
    "triton/test_triton_dot_scaled.py",
    "triton/test_triton_kernels.py",
    "vgpu/kernels/test_vgpu_kernels.py",
    "vgpu/kernels/test_vgpu_memory_kernels.py",
]


def run_case(hip: Hip, image: bytes, case: Case, arch: str) -> None:
    runner = Runner(hip, image)
    for launch in case.launches(arch):
        runner.run(launch, packed=False)
    runner.close()


def _builds() -> Iterator[object]:
    """One of each case, in turn for one architecture and the other, optimised or not."""
    expected = [("gfx950", "O3"), ("gfx942", "O3"), ("gfx950", "O0")]
    for index, case in enumerate(CLEAN):
        choice = [expected[(index + turn) % len(expected)] for turn in range(len(expected))]
        able = {(build.arch, build.level): build for build in builds(case.source)}
        build = next(able[pick] for pick in choice if pick in able)
        yield pytest.param(case, build, id=f"{case.source}-{case.name}-{build.arch}-{build.level}")


@pytest.mark.parametrize(("case", "build"), list(_builds()))
def test_kernel(
    hip: Hip, kernel_builds: Callable[[Build], bytes], case: Case, build: Build
) -> None:
    hip.select(build.arch)
    with nothing_found():
        run_case(hip, kernel_builds(build), case, build.arch)


@pytest.mark.parametrize(
    "build", [Build("loops", "gfx950", "O3"), Build("loops", "gfx942", "O3")], ids=str
)
def test_a_return_in_front_of_a_barrier_is_divergence(
    hip: Hip, kernel_builds: Callable[[Build], bytes], build: Build
) -> None:
    """150 of 256 work-items: the last wave ends while the others wait."""
    hip.select(build.arch)
    (case,) = (case for case in CASES.values() if case.name == DIVERGENT)
    with rfops.vgpu.check() as check:
        run_case(hip, kernel_builds(build), case, build.arch)
    (finding,) = check.findings
    assert finding.kind == "barrier divergence" and "wave 3 has ended" in finding.detail


@pytest.mark.parametrize("m", [1, 4, 16])
def test_gemm_mxfp8(m: int) -> None:
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, 2048))
    w, w_scale = rfops.quant_mxfp8(torch.randn(256, 2048))
    with nothing_found():
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)


@pytest.mark.sweep
@pytest.mark.parametrize("suite", SUITES)
def test_suite(suite: str) -> None:
    """Its sweeps as well."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--tb=short", "--no-header"]
    command += [
        "-m",
        "sweep or not sweep",
        "-k",
        f"not {DIVERGENT} and not checks",
        str(OP_TESTS / suite),
    ]
    completed = subprocess.run(
        command,
        env={**os.environ, "RFOPS_VGPU_CHECK": "error"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-8000:] + completed.stderr[-2000:]
