"""The tuned table of batched_gemm_a16w8_blockscale: the shipped rows, lookup, what a shape takes
without a row. Its reader is that of every table (test_table_files.py)."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rfops.cli import main
from rfops.dispatch.routing import config_text
from rfops.dispatch.tuned_table import TABLES, Row
from rfops.gemm.a16w8_blockscale import OP
from rfops.gemm.kernels.a16w8.config import BmmConfig, RowsConfig, StagedConfig, TilesConfig
from rfops.jit.arch import ARCH_SPECS
from support.calls import batched_call, batched_why
from support.calls import batched_route as route

BF16, F16 = torch.bfloat16, torch.float16
TUNED = TABLES[OP.name]
LARGE = (16, 8192, 8192, 8192)
PUBLISHED = [tuple(shape.values()) for shape in OP.shapes["published"]]
PUBLISHED = [(b, m, n, k) for n, k, b, m in PUBLISHED[:-1]]
STREAMED = [(b, m, n, k) for b, n, k, m in (s.values() for s in OP.shapes["streamed"])]
Write = Callable[..., Path]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a table of the user's own: (sizes, config), of gfx950 where no arch follows."""
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))

    def write(*rows: tuple[Any, ...]) -> Path:
        file = tmp_path / f"{OP.name}.csv"
        with file.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(TUNED.columns)
            for sizes, config, *arch in rows:
                chip = ARCH_SPECS[arch[0] if arch else "gfx950"]
                text = OP.kernel_of(config).name, config_text(config)
                writer.writerow([chip.name, chip.cus, *sizes, *text, 1.5, "", "measured", "a chip"])
        return file

    return write


# ---------------------------------------------------------------- shipped rows


def shipped(arch: str) -> dict[tuple[int | None, ...], Row]:
    return {row.sizes: row for row in TUNED.load().rows if row.arch == arch}


@pytest.mark.parametrize("arch", ARCH_SPECS)
def test_shipped_rows(arch: str) -> None:
    """On sm_90 the published shapes are there; on AMD's chips those that the choice is slower
    for."""
    rows = shipped(arch)
    if arch == "sm_90":
        assert rows.keys() >= {*PUBLISHED, LARGE}
        assert {row.origin for row in rows.values()} == {"measured"}
        return
    expected = [(128, 32, 512, 128)] if arch == "gfx950" else []
    assert [sizes for sizes, row in rows.items() if row.kernel] == expected


@pytest.mark.parametrize("w_dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_gfx942_chooses_among_tiles_whose_conversion_fits_in_registers(w_dtype: Any) -> None:
    for m, k in itertools.product((1, 17, 40, 70, 500), (64, 128, 512)):
        sizes = {"B": 64, "M": m, "N": 512, "K": k}
        c = OP.call_of("gfx942", **sizes, w_dtype=w_dtype)
        tiles = list(OP.kernels["tiles"].space(c))
        assert tiles and all(t.tile_m * t.tile_n <= 16 * 64 * t.warps for t in tiles)
        more = OP.kernels["tiles"].space(OP.call_of("gfx950", **sizes))
        assert len(list(more)) > len(tiles) or m < 33


def test_measured_rows_beat_bmm() -> None:
    """What the table claims of the published shapes against torch.bmm on bf16 weights: no new
    table may claim less without this test saying so."""
    over = {
        s: f["torch_bmm_us"] / f["us"]
        for s, f in ((sizes, dict(row.figures)) for sizes, row in shipped("sm_90").items())
    }
    assert min(over[shape] for shape in PUBLISHED) >= 1 and over[LARGE] >= 0.9
    # Half the bytes, once the weights exceed the cache; M=32 draws so much power that clocks fall.
    for shape in STREAMED:
        assert over[shape] >= (1.45 if shape[1] == 32 else 1.85), shape


@pytest.mark.parametrize(
    ("sizes", "us"),
    [((16, 1, 512, 128), 30.4), ((128, 128, 128, 512), 36.6), (LARGE, 27274.7)],
)
def test_published_times(sizes: tuple[int, int, int, int], us: float) -> None:
    """As the reference's table states them, in microseconds."""
    result = OP.published(batched_call(*sizes, "gfx950"))
    assert result is not None and result[1] == "aiter pull request 2297 on MI350X"
    assert result[0] == {"us": pytest.approx(us, rel=2e-3)}
    assert OP.published(batched_call(*sizes, "gfx942")) is None


# ---------------------------------------------------------------- lookup


def test_exact_row_comes_first(own: Write) -> None:
    near, exact = TilesConfig(32, 64, 128), TilesConfig(16, 64, 128)
    file = own(((7, 24, 700, 700), near), ((8, 20, 700, 700), exact))
    selected = route(8, 20, 700, 700, "gfx950")
    assert (selected.rule, selected.config) == ("exact row", config_text(exact))
    assert f"{file.name}:3" in selected.why and "measured" in selected.why


@pytest.mark.parametrize(
    ("sizes", "result"),
    [
        ((8, 20, 700, 700), True),
        ((8, 11, 700, 700), True),
        ((15, 20, 1399, 351), True),
        ((8, 21, 700, 700), False),  # M beyond the row's
        ((8, 10, 700, 700), False),  # half of it
        ((16, 20, 700, 700), False),
        ((8, 20, 1400, 700), False),
        ((8, 20, 700, 350), False),
    ],
)
def test_nearest_row(sizes: tuple[int, int, int, int], result: bool, own: Write) -> None:
    own(((8, 20, 700, 700), TilesConfig(16, 64, 128, warps=2)))
    selected = route(*sizes, "gfx950")
    assert ("warps=2" in selected.config) == result
    assert selected.rule in (("exact row", "nearest row") if result else ("envelope default",))


def test_a_row_that_does_not_take_the_call_is_passed_over(own: Write) -> None:
    """bmm is bfloat16's; the same shape in float16 takes a fused kernel."""
    own(((1, 2000, 700, 700), BmmConfig()))
    assert route(1, 2000, 700, 700, "gfx950").backend == "bmm"
    assert route(1, 2000, 700, 700, "gfx950", F16).backend == "tiles"


def test_a_row_of_nvidias_kernel_is_passed_over_on_amd(own: Write) -> None:
    shape, config = (9, 20, 700, 512), StagedConfig(16, 32, 128, 2)
    own((shape, config), (shape, config, "sm_90"))
    assert route(*shape, "gfx950").backend == "tiles"
    assert route(*shape, "sm_90").backend == "staged"
    assert route(*shape[:3], 640, "sm_90").backend == "tiles"  # K is no multiple of 256
    assert "NVIDIA" in route(*shape, "gfx950").refused["staged"]


def test_own_rows_replace_shipped_ones(own: Write) -> None:
    own((PUBLISHED[0], TilesConfig(16, 16, 64)))
    selected = route(*PUBLISHED[0], "gfx950")
    assert selected.config == config_text(TilesConfig(16, 16, 64)) and selected.backend == "tiles"


def test_why() -> None:
    text = batched_why(*LARGE, "sm_90")
    assert "decision    bmm" in text and "workspace   " in text and "MiB" in text
    text = batched_why(128, 1, 128, 512, "gfx942")
    assert "decision    rows" in text and "convert" in text
    text = batched_why(128, 1, 512, 128, "gfx950")
    assert "decision    tiles" in text
    assert "published   us 41.02; aiter pull request 2297" in text and "not bmm" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"why {OP.name} --b 16 --m 8192 --n 8192 --k 8192 --arch sm_90"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.strip() == batched_why(*LARGE, "sm_90")
    assert main(f"why {OP.name} --b 1 --m 2 --n 3 --k 5 --x-dtype f16".split()) == 0
    assert "envelope default" in capsys.readouterr().out
    assert main(f"why {OP.name} --b 1 --m 2 --n 3 --k 5 --arch gfx90a --cu-num 104".split()) == 1
    assert "UnsupportedArch" in capsys.readouterr().err


def test_newer_nvidia_takes_sm_90s_rows() -> None:
    newer, own_row = (route(*PUBLISHED[0], arch) for arch in ("sm_100", "sm_90"))
    assert newer == own_row and newer.why == own_row.why


# ---------------------------------------------------------------- without a row


@pytest.mark.parametrize("arch", ARCH_SPECS)
def test_every_shape_has_a_default(arch: str) -> None:
    """Of every kernel that takes it a config that it takes, whose tiles fit the shape and the
    chip's shared memory; the first in order takes it."""
    lds = {"gfx942": 64, "gfx950": 160, "sm_90": 227}[arch] << 10
    sizes = (1, 2, 3, 16, 17, 129, 512, 8192)
    for shape in ((b, m, n, k) for b in (1, 128) for m in sizes for n in sizes for k in sizes):
        for dtype in (BF16, F16):
            c = batched_call(*shape, arch, dtype)
            takers = [k for k in OP.kernels.values() if k.unsupported_reason(c) is None]
            assert OP.order(c)[0] in {kernel.name for kernel in takers}
            for kernel in takers:
                config = kernel.default(c)
                assert kernel.unsupported_config_reason(c, config) is None
                if isinstance(config, TilesConfig):
                    assert config.tile_m < max(2 * c.M, 32) and config.tile_k < max(2 * c.K, 64)
                    staged = config.tile_k * (config.tile_n + 2 * config.tile_m)
                    assert staged * max(1, config.stages - 1) <= lds
                if isinstance(config, StagedConfig):
                    depth = min(config.stages * config.step, c.K)
                    assert arch == "sm_90" and depth * (config.tile_n + 2 * config.tile_m) <= lds
                if isinstance(config, RowsConfig):
                    assert config.tile_k < 2 * max(c.K, 16)


@pytest.mark.parametrize("arch", ARCH_SPECS)
def test_candidates_are_taken(arch: str) -> None:
    for shape in (*PUBLISHED, LARGE):
        c = batched_call(*shape, arch)
        for kernel in OP.kernels.values():
            if kernel.unsupported_reason(c) is None:
                configs = list(kernel.candidates(c))
                assert configs and kernel.default(c) in configs
                assert all(
                    kernel.unsupported_config_reason(c, config) is None for config in configs
                )
                if arch == "sm_90" and kernel.name == OP.order(c)[0]:
                    assert len(set(configs)) > 5
