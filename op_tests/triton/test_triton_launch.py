"""rfops.triton.launch: where kernels go, and that the user's own Triton is as it was; and the
table of tiles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rfops import ConfigError, vgpu
from rfops.jit.arch import ROWS
from rfops.triton import launch, tiles
from support.devices import ARCHS, device_of
from support.triton_mxfp8_cases import NVIDIA, assert_close, dense, random_side


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    yield torch.device("cuda") if NVIDIA else device_of("gfx950", monkeypatch)


# ---------------------------------------------------------------- the driver, and imports


def test_importing_does_not_import_triton() -> None:
    code = (
        "import sys, rfops\n"
        "from rfops.gemm.mxfp8 import OP\n"
        "assert OP.kernels['triton'].refuses(OP.call_of(M=1, N=8, K=64)) is None\n"
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
        before = _driver_state()
        _call(device)
        assert _driver_state() == before and before[1] == other
    finally:
        vgpu.deactivate_triton()


def test_the_driver_comes_back_after_an_error(device: torch.device) -> None:
    before = _driver_state()
    with pytest.raises(RuntimeError, match="from inside"), launch.on(device):
        raise RuntimeError("from inside")
    assert _driver_state() == before


# ---------------------------------------------------------------- the table


def test_every_op_and_arch_ends_with_a_row_for_all() -> None:
    for op in tiles.OPS:
        for arch in ROWS:
            rows = [row for row in tiles.table() if (row.op, row.arch) == (op, arch)]
            assert rows, (op, arch)
            last = rows[-1]
            assert (last.m_max, last.n_max, last.k_max) == (None, None, None), (op, arch)
            tiles.find(op, arch, 5000, 7, 32)


def test_figures_say_where_they_come_from() -> None:
    with tiles.TABLE.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        for line in file:
            row = dict(zip(names, line.strip().split(",", len(names) - 1), strict=True))
            measured = row["origin"].strip('"').startswith("measured, ")
            assert measured or row["origin"] == "estimated", line
            assert bool(row["us"]) == measured, f"a time is measured, or it is not there: {line}"
            assert not measured or row["arch"].startswith("sm_"), f"no AMD GPU has run this: {line}"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("dense,gfx950,x,,,blocks,16,16,32,1,1,1,,,,,,estimated", "line 2, column m_max: a number"),
        (
            "dense,gfx950,,,,blocks,16,17,32,1,1,1,,,,,,estimated",
            "line 2: .*block_n must be a power",
        ),
        ("dense,gfx900,,,,blocks,16,16,32,1,1,1,,,,,,estimated", "line 2: op must be one of"),
        ("dense,gfx950,,,,blocks,16,16,32,1,1,1,,,,,,estimated,more", "line 2: .* 18 columns"),
    ],
)
def test_a_corrupt_table(
    line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "table.csv"
    file.write_text(",".join(tiles.COLUMNS) + "\n" + line + "\n")
    monkeypatch.setattr(tiles, "TABLE", file)
    with pytest.raises(ConfigError, match=text):
        tiles.table.__wrapped__()
