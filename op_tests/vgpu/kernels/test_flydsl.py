"""activate_flydsl: FlyDSL's own compiler and runtime on CPU tensors, what it gives back, and what
it says where something is missing."""

from __future__ import annotations

import importlib.util
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rfops
import rfops.vgpu
from rfops import ConfigError, HipError, ToolchainNotFound

flyc = pytest.importorskip(
    "flydsl.compiler",
    reason="no FlyDSL (extra flydsl, Linux on x86-64); nothing else tests activate_flydsl",
)
import flydsl.expr as fx  # noqa: E402
from flydsl.compiler import jit_executor, jit_function  # noqa: E402

from rfops.vgpu import flydsl as vgpu_driver  # noqa: E402
from support.process import python  # noqa: E402

ARCHS = ("gfx950", "gfx942")


@flyc.kernel
def scale_kernel(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32) -> None:
    i = fx.block_idx.x * 64 + fx.thread_idx.x
    if i < n:
        y[i] = x[i] * a


@flyc.jit
def scale(
    x: fx.Tensor,
    y: fx.Tensor,
    a: fx.Float32,
    n: fx.Int32,
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
) -> None:
    scale_kernel(x, y, a, n).launch(grid=((n + 63) // 64, 1, 1), block=[64, 1, 1], stream=stream)


@flyc.kernel
def row_sum_kernel(x: fx.Tensor, y: fx.Tensor, columns: fx.Constexpr[int]) -> None:
    """A row a lane."""
    row = fx.thread_idx.x
    total = x[row, 0]
    for column in fx.range_constexpr(1, columns):
        total = total + x[row, column]
    y[row] = total


@flyc.jit
def row_sum(
    x: fx.Tensor,
    y: fx.Tensor,
    columns: fx.Constexpr[int],
    stream: fx.Stream = fx.Stream(None),  # noqa: B008
) -> None:
    row_sum_kernel(x, y, columns).launch(grid=(1, 1, 1), block=[64, 1, 1], stream=stream)


@flyc.kernel
def far_kernel(x: fx.Tensor, y: fx.Tensor) -> None:
    y[fx.thread_idx.x + (1 << 30)] = x[fx.thread_idx.x]


@flyc.jit
def far(x: fx.Tensor, y: fx.Tensor, stream: fx.Stream = fx.Stream(None)) -> None:  # noqa: B008
    far_kernel(x, y).launch(grid=(1, 1, 1), block=[64, 1, 1], stream=stream)


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(tmp_path / "flydsl"))
    yield
    rfops.vgpu.deactivate_flydsl()


def run_scale(n: int = 100, a: float = 2.0) -> torch.Tensor:
    x, y = torch.arange(n, dtype=torch.float32), torch.full((n,), torch.nan)
    scale(x, y, a, n)
    assert torch.equal(y, a * x)
    return y


@pytest.mark.parametrize("arch", ARCHS)
def test_scale(arch: str) -> None:
    rfops.vgpu.activate_flydsl(arch)
    for n in (1, 64, 100, 1000):
        run_scale(n, a=n)
    with rfops.vgpu.profile() as profile:
        run_scale()
    (launch,) = profile.launches
    assert launch.kernel.startswith("scale_kernel") and launch.arch == arch
    assert sum(n for name, n in launch.instructions.items() if name.startswith("v_mul_f32")) == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_row_sum(arch: str) -> None:
    rfops.vgpu.activate_flydsl(arch)
    x = torch.randint(-8, 8, (64, 24)).float()
    y = torch.full((64,), torch.nan)
    row_sum(x, y, 24)
    assert torch.equal(y, x.sum(1))


def test_architectures_in_turn() -> None:
    """Each has code objects of its own, whatever rfops' own ops do to the device in between."""
    x, x_scale = rfops.quant_mxfp8(torch.randn(1, 256))
    for arch in (*ARCHS, *ARCHS):
        rfops.vgpu.activate_flydsl(arch)
        with rfops.vgpu.profile() as profile:
            run_scale()
        assert profile.launches[0].arch == arch
        rfops.gemm_mxfp8(x, x, x_scale, x_scale)


def test_a_wrapped_tensor() -> None:
    rfops.vgpu.activate_flydsl("gfx950")
    x, y = torch.arange(64.0), torch.full((64,), torch.nan)
    scale(flyc.from_dlpack(x), flyc.from_torch_tensor(y), 2.0, 64)
    assert torch.equal(y, 2 * x)


@pytest.mark.parametrize("wrap", [lambda x: x, flyc.from_dlpack, flyc.from_torch_tensor])
def test_tensors_end_where_they_end_when_checked(wrap: Any) -> None:
    rfops.vgpu.activate_flydsl("gfx950")
    x, y = torch.arange(100.0), torch.zeros(100)
    with rfops.vgpu.check() as clean:
        scale(wrap(x), wrap(y), 2.0, 100)
    assert not clean.findings, clean.findings
    short = x[:99].clone()
    with rfops.vgpu.check() as check:
        scale(wrap(short), wrap(y), 2.0, 100)
    (finding,) = check.findings
    assert finding.kind == "out of bounds" and finding.address == short.data_ptr() + 4 * 99


def test_a_launch_that_fails_is_an_error() -> None:
    rfops.vgpu.activate_flydsl("gfx950")
    x, y = torch.arange(64.0), torch.zeros(64)
    with pytest.raises(HipError, match=r"FlyDSL's launch.*memory that is not mapped"):
        far(x, y)
    run_scale()


# ---------------------------------------------------------------------------------- on and off


def test_import_does_not_import_flydsl() -> None:
    code = "import sys, rfops, rfops.vgpu; sys.exit('flydsl' in sys.modules)"
    assert python(code).returncode == 0


def test_deactivate_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYDSL_GPU_ARCH", "gfx90a")
    environment = dict(os.environ)
    positions = [
        (jit_function.JitFunction, "_compile_or_execute"),
        (jit_function, "_run_pass_manager"),
        (jit_executor.CompiledArtifact, "_get_func_exe"),
        (jit_executor.CallState, "__call__"),
    ]
    previous = [getattr(owner, name) for owner, name in positions]
    rfops.vgpu.activate_flydsl("gfx950")
    rfops.vgpu.activate_flydsl("gfx942")
    run_scale()
    assert [getattr(owner, name) for owner, name in positions] != previous
    rfops.vgpu.deactivate_flydsl()
    rfops.vgpu.deactivate_flydsl()
    assert [getattr(owner, name) for owner, name in positions] == previous
    assert dict(os.environ) == environment
    scale._ensure_sig()
    assert scale._backend_target.arch == "gfx90a"


def test_arch_of_the_setting_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    rfops.vgpu.activate_flydsl()
    with rfops.vgpu.profile() as profile:
        run_scale()
    assert profile.launches[0].arch == "gfx942"
    with pytest.raises(ValueError, match=r"activate_flydsl: arch must be one of .*'gfx90a'"):
        rfops.vgpu.activate_flydsl("gfx90a")


@pytest.mark.parametrize("version", ["0.3.9", "0.5.0", "1.0"])
def test_other_series_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    with pytest.raises(ImportError, match=rf"{version} is not of the 0\.4 series.*rfops\[flydsl\]"):
        rfops.vgpu.activate_flydsl("gfx950")


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == package else find(name)
    )


def test_without_flydsl(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "flydsl")
    with pytest.raises(ImportError, match=r"not installed; pip install 'rfops\[flydsl\]'"):
        rfops.vgpu.activate_flydsl("gfx950")


def test_the_linker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ROCm's, that of the ziglang package, one on PATH; else the error says what was tried."""
    assert vgpu_driver._linker()[1:] == ["-m", "ziglang", "ld.lld"]
    theirs = tmp_path / "llvm" / "bin" / "ld.lld"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert vgpu_driver._linker() == [str(theirs)]
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "nowhere"))
    hide(monkeypatch, "ziglang")
    monkeypatch.setenv("PATH", str(theirs.parent))
    assert vgpu_driver._linker() == [str(theirs)]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainNotFound, match=r"(?s)nowhere.*ziglang.*PATH.*rfops\[clang\]"):
        rfops.vgpu.activate_flydsl("gfx950")
    assert jit_executor.CallState.__call__.__module__.startswith("flydsl")


def test_another_hip_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2")
    with pytest.raises(ConfigError, match=r"built for ROCm 7\.2"):
        rfops.vgpu.activate_flydsl("gfx950")
    code = """
        import ctypes, shutil, sys
        import rfops
        shutil.copy(rfops.vgpu.library_path(), sys.argv[1] + "/libamdhip64.so.7")
        ctypes.CDLL(sys.argv[1] + "/libamdhip64.so.7")
        try:
            rfops.vgpu.activate_flydsl("gfx950")
        except rfops.ConfigError as error:
            print(error)
    """
    said = python(textwrap.dedent(code), tmp_path, check=True).stdout
    assert f"uses the first one, got {tmp_path}/libamdhip64.so.7." in said
