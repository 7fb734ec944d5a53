"""rfops.triton.launch: where kernels go, and that the user's own Triton is as it was; and the
table of tiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rfops import vgpu
from rfops.dispatch.tuned_table import TABLES
from rfops.gemm.kernels.mxfp8.triton import TritonGemm
from rfops.jit.arch import ARCH_SPECS
from rfops.triton import launch, tiles
from support.calls import dense_call
from support.devices import ARCHS, device_of
from support.process import python
from support.triton_mxfp8_cases import NVIDIA, assert_close, dense, random_side


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    yield torch.device("cuda") if NVIDIA else device_of("gfx950", monkeypatch)


# ---------------------------------------------------------------- the driver, and imports


def test_importing_does_not_import_triton() -> None:
    code = (
        "import sys, rfops\n"
        "from rfops.gemm.mxfp8 import OP\n"
        "assert OP.kernels['triton'].unsupported_reason(OP.call_of(M=1, N=8, K=64)) is None\n"
        "sys.exit('triton' in sys.modules)"
    )
    assert python(code).returncode == 0


def _driver_state() -> tuple[object, ...]:
    import triton
    from triton import knobs
    from triton.backends.amd import driver as amd

    names = [getattr(amd, name, None) for name in launch._LAUNCHER_NAMES]
    active = triton.runtime.driver._active
    hip_path = knobs.amd.libhip_path
    return active, getattr(active, "arch", None), knobs.build.impl, hip_path, *names


def _call(device: torch.device) -> None:
    x, w = random_side((3, 160), device, 25), random_side((37, 160), device, 26)
    assert_close(dense(x, w), x, w)


def test_the_users_driver_comes_back(device: torch.device) -> None:
    import triton

    _call(device)  # the first call on a GPU makes Triton's own driver
    before = _driver_state()
    _call(device)
    assert _driver_state() == before

    class Own:
        pass

    if device.type == "cpu":
        own = Own()
        previous = triton.runtime.driver._active
        triton.runtime.driver._active = own
        try:
            _call(device)
            assert triton.runtime.driver._active is own
        finally:
            triton.runtime.driver._active = previous


def test_the_users_virtual_gpu_keeps_its_arch(device: torch.device) -> None:
    """Of another architecture than the op's, and while a real GPU is in use."""
    arch = launch.arch_of(device)
    other = next(name for name in ARCHS if name != arch)
    vgpu.activate_triton(other)
    try:
        previous = _driver_state()
        _call(device)
        assert _driver_state() == previous and previous[1] == other
    finally:
        vgpu.deactivate_triton()


def test_the_driver_comes_back_after_an_error(device: torch.device) -> None:
    previous = _driver_state()
    with pytest.raises(RuntimeError, match="from inside"), launch.on_device(device):
        raise RuntimeError("from inside")
    assert _driver_state() == previous


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", ["gemm_mxfp8_triton", "grouped_gemm_mxfp8_triton"])
def test_every_arch_has_a_tile_for_all(name: str) -> None:
    rows = TABLES[name].load().rows
    assert {row.arch for row in rows if row.sizes == (None, None, None)} == set(ARCH_SPECS)
    for row in rows:
        is_dense = not name.startswith("grouped")
        assert tiles.config_of(row).unsupported_reason(is_dense, row.arch) is None, row


def test_tiles_between_the_bounds() -> None:
    """The least bound that holds; beyond its workspace a tile that expands gives way."""
    for sizes, method, tile in (
        ((1, 2304, 6144), "blocks", (8, 64, 3)),
        ((9, 2304, 6144), "blocks", (16, 32, 4)),
        ((64, 6144, 2048), "blocks", (64, 32, 3)),
        ((65, 3072, 6144), "expand", (128, 64, 4)),
        ((257, 3073, 6144), "expand", (128, 128, 3)),
        ((1 << 20, 3072, 6144), "blocks", (64, 64, 3)),
    ):
        result = TritonGemm().default(dense_call(*sizes, arch="sm_90"))
        assert (result.method, result.fill) == (method, 0)
        assert (result.block_m, result.block_n, result.stages) == tile, sizes
    calls = [dense_call(8, n, 6144, arch="gfx942") for n in (512, 1024, 9216)]
    splits = [TritonGemm().default(c).splits for c in calls]
    assert splits == [16, 16, 4], "three steps of K in each part; fewer parts where tiles are many"
