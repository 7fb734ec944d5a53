"""activate_triton: what it turns on, what it gives back, and what it says where something is
missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton

import rfops.vgpu
from rfops import BuildError, ConfigError, ToolchainNotFound
from rfops.dispatch.compare import assert_within
from rfops.jit.launch import hip
from rfops.vgpu import triton_driver
from support import OP_TESTS
from support import vgpu_triton_kernels as kernels
from support.process import python, run


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    rfops.vgpu.deactivate_triton()


def add(block: int = 64, **options: int) -> object:
    x = torch.arange(100.0)
    out = torch.full((100,), float("nan"))
    compiled = kernels.add[(-(-100 // block),)](x, x, out, 100, BLOCK=block, **options)
    assert torch.equal(out, 2 * x)
    return compiled


# ---------------------------------------------------------------------------------- on and off


def test_import_does_not_import_triton() -> None:
    code = "import sys, rfops, rfops.vgpu; sys.exit('triton' in sys.modules)"
    assert python(code).returncode == 0


def test_architectures_in_turn() -> None:
    """Each has its own kernels, compiled once, and Triton sees each one's properties."""
    properties = {}
    for arch in ("gfx950", "gfx942", "gfx950", "gfx942"):
        rfops.vgpu.activate_triton(arch)
        target = triton.runtime.driver.active.get_current_target()
        assert (target.backend, target.arch, target.warp_size) == ("hip", arch, 64)
        compiled = add(block=32)
        assert compiled.metadata.target.arch == arch
        assert compiled is properties.setdefault(f"{arch} kernel", compiled)
        device = triton.runtime.driver.active.get_current_device()
        result = triton.runtime.driver.active.utils.get_device_properties(device)
        assert result["arch"].split(":")[0] == arch
        for item in (0, None):  # the index of torch's device, as scripts have it
            assert triton.runtime.driver.active.utils.get_device_properties(item) == result
        properties[arch] = result
    assert properties["gfx950"]["max_shared_mem"] == 160 << 10
    assert properties["gfx942"]["max_shared_mem"] == 64 << 10
    assert properties["gfx950"]["multiprocessor_count"] == 256
    assert properties["gfx942"]["multiprocessor_count"] == 304


def test_default_arch_is_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    rfops.vgpu.activate_triton()
    assert triton.runtime.driver.active.get_current_target().arch == "gfx942"
    monkeypatch.delenv("RFOPS_VGPU_ARCH")
    rfops.vgpu.activate_triton()
    assert triton.runtime.driver.active.get_current_target().arch == "gfx950"


def test_it_is_the_only_active_driver() -> None:
    """As vLLM counts them in triton_utils/importing.py, where its kernels are placeholders if the
    number is not 1."""
    from triton.backends import backends

    def active() -> list[str]:
        return [name for name, x in backends.items() if x.driver and x.driver.is_active()]

    previous = active()
    own = {name: vars(x.driver)["is_active"] for name, x in backends.items()}
    rfops.vgpu.activate_triton("gfx942")
    rfops.vgpu.activate_triton("gfx950")
    assert active() == ["amd"] and triton.runtime.driver.active.is_active()
    rfops.vgpu.deactivate_triton()
    assert active() == previous
    assert own == {name: vars(x.driver)["is_active"] for name, x in backends.items()}


def test_deactivate_gives_everything_back() -> None:
    from triton import knobs
    from triton.runtime.autotuner import Autotuner

    def state() -> tuple[object, ...]:
        testing = triton.testing
        return (
            triton.runtime.driver._active,
            testing.do_bench.__code__,
            testing.do_bench.__defaults__,
            testing.do_bench_cudagraph.__code__,
            testing.do_bench_cudagraph.__defaults__,
            knobs.build.impl,
            knobs.amd.libhip_path,
            hasattr(Autotuner, "cache"),
        )

    previous = state()
    for _ in range(2):
        rfops.vgpu.activate_triton("gfx950")
        assert state() != previous
        add()
        rfops.vgpu.deactivate_triton()
        assert state() == previous
    rfops.vgpu.deactivate_triton()  # nothing to do
    assert state() == previous


def test_lds_limit_is_that_of_the_arch() -> None:
    """A tile that gfx950's LDS holds and gfx942's does not."""
    a, b = torch.ones(128, 512, dtype=torch.float16), torch.ones(512, 256, dtype=torch.float16)

    def run() -> None:
        out = torch.full((128, 256), float("nan"))
        kernels.matmul[(1, 1)](
            a, b, out, 128, 256, 512, *a.stride(), *b.stride(), BM=128, BN=256, BK=64,
            ACC=kernels.tl.float32, PRECISION="ieee", EVEN_K=True, num_warps=8, num_stages=3,
        )  # fmt: skip
        assert_within(out, torch.full((128, 256), 512.0), 0)

    rfops.vgpu.activate_triton("gfx950")
    run()
    rfops.vgpu.activate_triton("gfx942")
    with pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory"):
        run()


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("arch", ["gfx90a", "gfx9", "", "GFX950"])
def test_other_architectures(arch: str) -> None:
    with pytest.raises(ValueError, match=r"arch must be one of gfx942, gfx950, got"):
        rfops.vgpu.activate_triton(arch)


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rfops.vgpu.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r"not installed; pip install 'triton>=3.6'"):
        rfops.vgpu.activate_triton("gfx950")


@pytest.mark.parametrize("version", ["2.1.0", "3.5.1", "3.5.1+rocm7.1"])
def test_old_triton(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(rfops.vgpu.metadata, "version", lambda _name: version)
    with pytest.raises(ImportError, match=r"too old; pip install 'triton>=3.6'"):
        rfops.vgpu.activate_triton("gfx950")


@pytest.mark.parametrize("version", ["3.6.0", "3.10.0", "4.0"])
def test_new_enough_triton(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(rfops.vgpu.metadata, "version", lambda _name: version)
    rfops.vgpu._check_triton()


def test_library_of_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimpleNamespace(is_virtual=False, path=Path("/opt/rocm/lib/libamdhip64.so"))
    monkeypatch.setattr(hip, "runtime", lambda _device: real)
    with pytest.raises(ConfigError, match="unset RFOPS_HIP_LIBRARY"):
        rfops.vgpu.activate_triton("gfx950")


ADD = """
import sys, torch, rfops.vgpu
sys.path.insert(0, sys.argv[1])
from support import vgpu_triton_kernels as kernels
rfops.vgpu.activate_triton("gfx950")
x, out = torch.arange(64.0), torch.zeros(64)
kernels.add[(1,)](x, x, out, 64, BLOCK=64)
assert torch.equal(out, 2 * x)
"""


def test_library_with_a_version_in_its_name(vgpu_path: Path, tmp_path: Path) -> None:
    """ROCm's runtime without headers is libamdhip64.so.7, a name that Triton's setting refuses."""
    library = tmp_path / "libamdhip64.so.7"
    library.write_bytes(vgpu_path.read_bytes())
    python(ADD, OP_TESTS, check=True, RFOPS_HIP_LIBRARY=str(library))


# ---------------------------------------------------------------------------------- C compiler


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


def test_no_compiler(no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_driver.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(
        ToolchainNotFound, match=r"Install gcc or clang .* pip install -e '\.\[clang\]' in /"
    ) as e:
        triton_driver._compiler()
    assert any("gcc" in reason for reason in e.value.rejected)
    assert any("ziglang" in reason for reason in e.value.rejected)


def test_named_compiler_is_missing(no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "my-cc")
    with pytest.raises(ToolchainNotFound, match="CC=my-cc: not found"):
        triton_driver._compiler()


def test_no_python_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        triton_driver.sysconfig, "get_paths", lambda _scheme: {"include": str(tmp_path)}
    )
    with pytest.raises(ToolchainNotFound, match=r"Python.h: not found(.|\n)*apt install python"):
        triton_driver._python_headers()


def test_failed_build_shows_the_compiler(tmp_path: Path) -> None:
    source = tmp_path / "launcher.c"
    source.write_text("int launcher(void) { return missing_thing; }\n")
    with pytest.raises(BuildError, match="missing_thing"):
        triton_driver._build_launcher("launcher", str(source), str(tmp_path), [], [], [])


def test_ziglang_builds_the_launcher(tmp_path: Path, vgpu_path: Path) -> None:
    """A process without gcc and clang, and with an empty Triton cache."""
    code = """
import os, torch, rfops.vgpu
from support import OP_TESTS, vgpu_triton_kernels as kernels
from rfops.vgpu import triton_driver
os.environ["PATH"] = os.environ["TRITON_CACHE_DIR"]
assert triton_driver._compiler()[1:] == ["-m", "ziglang", "cc"]
rfops.vgpu.activate_triton("gfx950")
x, out = torch.arange(64.0), torch.zeros(64)
kernels.add[(1,)](x, x, out, 64, BLOCK=64)
assert torch.equal(out, 2 * x)
"""
    environ = {name: text for name, text in os.environ.items() if name != "CC"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path / "triton")
    environ["RFOPS_HIP_LIBRARY"] = str(vgpu_path)  # not one that ziglang would have to build
    completed = run(code, ["-c"], environ, OP_TESTS)
    assert completed.returncode == 0, completed.stderr
