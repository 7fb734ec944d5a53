"""The checking mode has nothing to say of kernels that are right.

The corpus of vgpu_kernels/, gemm_mxfp8, and what Triton compiles for both architectures. By default
a part of it; as a sweep all of their test suites, with findings as errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from kernel_harness import CASES, Case, Runner
from test_vgpu_kernels import Build, builds, code_objects
from vgpu_hip import ARCHS, Hip, hip_fixture, library_path_fixture

import rfops

__all__ = ["code_objects", "hip_fixture", "library_path_fixture"]  # fixtures

# Waves of it return in front of a barrier: hardware takes them for arrived, and the check objects.
DIVERGENT = "early_return"
CLEAN = [case for case in CASES.values() if case.name != DIVERGENT]
SUITES = [
    "test_gemm_mxfp8.py",
    "test_triton_dot.py",
    "test_triton_dot_scaled.py",
    "test_triton_kernels.py",
    "test_vgpu_kernels.py",
    "test_vgpu_memory_kernels.py",
]


@contextmanager
def nothing_found() -> Iterator[None]:
    with rfops.vgpu.check() as check:
        yield
    assert not check.findings, "\n".join(map(str, check.findings))


def run_case(hip: Hip, image: bytes, case: Case, arch: str) -> None:
    runner = Runner(hip, image)
    for launch in case.launches(arch):
        runner.run(launch, packed=False)
    runner.close()


def _builds() -> Iterator[object]:
    """One of each case, in turn for one architecture and the other, optimised or not."""
    wanted = [("gfx950", "O3"), ("gfx942", "O3"), ("gfx950", "O0")]
    for index, case in enumerate(CLEAN):
        choice = [wanted[(index + turn) % len(wanted)] for turn in range(len(wanted))]
        able = {(build.arch, build.level): build for build in builds(case.source)}
        build = next(able[pick] for pick in choice if pick in able)
        yield pytest.param(case, build, id=f"{case.source}-{case.name}-{build.arch}-{build.level}")


@pytest.mark.parametrize(("case", "build"), list(_builds()))
def test_kernel(
    hip: Hip, code_objects: dict[Build, Future[bytes]], case: Case, build: Build
) -> None:
    hip.select(build.arch)
    with nothing_found():
        run_case(hip, code_objects[build].result(), case, build.arch)


@pytest.mark.parametrize(
    "build", [Build("loops", "gfx950", "O3"), Build("loops", "gfx942", "O3")], ids=str
)
def test_a_return_in_front_of_a_barrier_is_divergence(
    hip: Hip, code_objects: dict[Build, Future[bytes]], build: Build
) -> None:
    """150 of 256 work-items: the last wave ends while the others wait."""
    hip.select(build.arch)
    (case,) = (case for case in CASES.values() if case.name == DIVERGENT)
    with rfops.vgpu.check() as check:
        run_case(hip, code_objects[build].result(), case, build.arch)
    (finding,) = check.findings
    assert finding.kind == "barrier divergence" and "wave 3 has ended" in finding.detail


@pytest.mark.parametrize("m", [1, 4, 16])
def test_gemm_mxfp8(m: int) -> None:
    x, x_scale = rfops.quant_mxfp8(torch.randn(m, 2048))
    w, w_scale = rfops.quant_mxfp8(torch.randn(256, 2048))
    with nothing_found():
        rfops.gemm_mxfp8(x, w, x_scale, w_scale)


def _triton() -> dict[str, Callable[[str], object]]:
    """Tests of other files by name; the architecture is their argument."""
    pytest.importorskip("triton", reason="Triton is not installed")
    import test_triton_dot as dot
    import test_triton_dot_scaled as scaled
    import test_triton_kernels as kernels

    half, full = torch.float16, torch.float32
    return {
        "softmax": lambda _: kernels.test_softmax(full, 1000, 4),
        "layer_norm": lambda _: kernels.test_layer_norm(half),
        "reduce_of_tuples": lambda _: kernels.test_reduce_of_tuples(4),
        "histogram": lambda _: kernels.test_histogram(8),
        "topk": lambda _: kernels.test_topk(),
        "gather_in_tile": lambda _: kernels.test_gather_in_tile(1, 4),
        "lock": lambda _: kernels.test_persistent_programs_with_a_lock(7),
        "compare_and_swap": lambda _: kernels.test_compare_and_swap(torch.int32),
        "dot_f16": lambda arch: dot._check(arch, dot.Case("f16", (64, 64, 64))),
        "dot_i8": lambda arch: dot._check(arch, dot.Case("i8", (32, 32, 64), 2, 3, 32, "mk")),
        "dot_f32": lambda arch: dot._check(arch, dot.Case("f32", (16, 64, 64), even=False)),
        "mxfp8": lambda arch: scaled._check(arch, scaled.Case("e4m3*e4m3", (32, 32, 128))),
        "mxfp4": lambda arch: scaled._check(arch, scaled.Case("e2m1*e2m1", (32, 32, 128))),
        # On gfx942 the schedule in which two halves of the waves take turns, by barriers of their
        # own.
        "ping_pong": lambda arch: dot._check(arch, dot.Case("f16", (256, 256, 64), warps=8)),
    }


@pytest.mark.parametrize("arch", ARCHS)
def test_triton(arch: str) -> None:
    rfops.vgpu.activate_triton(arch)
    try:
        for name, run in _triton().items():
            with rfops.vgpu.check() as check:
                run(arch)
            assert not check.findings, f"{name}: " + "\n".join(map(str, check.findings))
    finally:
        rfops.vgpu.deactivate_triton()


def test_triton_takes_turns() -> None:
    """The case above that is meant to have barriers of one half of the waves does have them."""
    pytest.importorskip("triton", reason="Triton is not installed")
    import test_triton_dot as dot

    try:
        assembly = dot._check("gfx942", dot.Case("f16", (256, 256, 64), warps=8))
    finally:
        rfops.vgpu.deactivate_triton()
    assert "s_setprio" in assembly


@pytest.mark.sweep
@pytest.mark.parametrize("suite", SUITES)
def test_suite(suite: str) -> None:
    """Its sweeps as well."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--tb=short", "--no-header"]
    command += ["-m", "sweep or not sweep", "-k", f"not {DIVERGENT}", f"op_tests/{suite}"]
    done = subprocess.run(
        command,
        env={**os.environ, "RFOPS_VGPU_CHECK": "error"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
