"""The tuned table of batched_gemm_a16w8_blockscale: the shipped rows, lookup, heuristic, errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tune_batched_gemm_a16w8 import candidates, load, merge, row_of, save

from rfops.cli import main
from rfops.gemm import a16w8_table as tuned
from rfops.gemm.a16w8_blockscale import OP
from rfops.gemm.a16w8_routes import (
    BmmConfig,
    RowsConfig,
    Shape,
    StagedConfig,
    TilesConfig,
    heuristic,
    refuses,
    route_of,
)
from rfops.jit import ConfigError, paths
from rfops.jit.arch import ROWS
from support.batched_gemm_a16w8_cases import LARGE, PUBLISHED_SHAPES, STREAMED, published_us
from support.calls import batched_route as route
from support.calls import batched_why as why

BF16, F16 = torch.bfloat16, torch.float16
SHIPPED = paths.CONFIGS / tuned.FILE


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of the user's own, empty."""
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    monkeypatch.setattr(tuned, "_table", tuned._table.__wrapped__)  # no rows kept from file to file
    file = tmp_path / tuned.FILE
    save(file, [])
    return file


def measured(shape: Shape, config: object, arch: str = "gfx950") -> dict[str, str]:
    return row_of(arch, shape, config, "measured", "a chip", {"us": 1.5})  # type: ignore[arg-type]


# ---------------------------------------------------------------- shipped rows


def test_shipped_rows() -> None:
    """Each takes its own shape, says where it comes from, and the published shapes are there."""
    rows = tuned.read(SHIPPED)
    assert {row.arch for row in rows} == set(ROWS)
    for row in rows:
        assert refuses(row.shape, BF16, row.config) is None, row
        assert row.route == route_of(row.config)
        figures = dict(row.figures)
        if row.origin == "measured":
            assert "torch" in row.source and "triton" in row.source and "H200" in row.source
            assert 0 < figures["us"] < 1e6 and 0 < figures["bmm_us"] < 1e6
        else:
            assert row.source.startswith("heuristic") and "us" not in figures
    for arch in ROWS:
        shapes = {row.shape for row in rows if row.arch == arch}
        assert shapes >= {*PUBLISHED_SHAPES, LARGE}
    assert all(row.origin == ("measured" if row.arch == "sm_90" else "estimated") for row in rows)


def test_estimated_rows_are_the_heuristics() -> None:
    for row in tuned.read(SHIPPED):
        if row.origin == "estimated":
            assert row.config == heuristic(row.shape, BF16, row.arch), row.place


def test_measured_rows_beat_bmm() -> None:
    """What the table claims of the published shapes against torch.bmm on bf16 weights: no new
    table may claim less without this test saying so."""
    rows = {row.shape: dict(row.figures) for row in tuned.read(SHIPPED) if row.arch == "sm_90"}
    for shape in (*PUBLISHED_SHAPES, LARGE):
        least = 0.9 if shape == LARGE else 1.0
        assert rows[shape]["bmm_us"] / rows[shape]["us"] >= least, shape
    # Half the bytes, once the weights exceed the cache; M=32 draws so much power that clocks fall.
    for shape in STREAMED:
        least = 1.45 if shape.m == 32 else 1.85
        assert rows[shape]["bmm_us"] / rows[shape]["us"] >= least, shape


def test_published_times() -> None:
    """As the reference's table states them, in microseconds."""
    assert published_us(Shape(16, 1, 512, 128)) == pytest.approx(30.4, abs=0.05)
    assert published_us(Shape(128, 128, 128, 512)) == pytest.approx(36.6, abs=0.05)
    assert published_us(LARGE) == pytest.approx(27274.7, abs=0.5)


# ---------------------------------------------------------------- lookup


def test_exact_row_comes_first(own: Path) -> None:
    near, exact = TilesConfig(32, 64, 128), TilesConfig(16, 64, 128)
    save(own, [measured(Shape(7, 24, 700, 700), near), measured(Shape(8, 20, 700, 700), exact)])
    chosen = route(8, 20, 700, 700, "gfx950")
    assert chosen.rule == "exact row" and chosen.config == "tile_m=16 tile_n=64 tile_k=128 " \
        "x_left=0 panels=1 group_n=8 split_k=1 warps=4 stages=3"  # fmt: skip
    assert f"{own.name}:3" in chosen.why and "measured" in chosen.why


@pytest.mark.parametrize(
    ("sizes", "found"),
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
def test_nearest_row(sizes: tuple[int, int, int, int], found: bool, own: Path) -> None:
    save(own, [measured(Shape(8, 20, 700, 700), TilesConfig(16, 64, 128, warps=2))])
    chosen = route(*sizes, "gfx950")
    assert ("warps=2" in chosen.config) == found
    assert chosen.rule in (("exact row", "nearest row") if found else ("heuristic",))


def test_a_row_that_does_not_take_the_call_is_passed_over(own: Path) -> None:
    """bmm is bfloat16's; the same shape in float16 takes a fused kernel."""
    save(own, [measured(Shape(1, 2000, 700, 700), BmmConfig())])
    assert route(1, 2000, 700, 700, "gfx950").backend == "bmm"
    assert route(1, 2000, 700, 700, "gfx950", F16).backend == "tiles"


def test_a_row_of_nvidias_kernel_is_passed_over_on_amd(own: Path) -> None:
    shape, config = Shape(9, 20, 700, 512), StagedConfig(16, 32, 128, 2)
    save(own, [measured(shape, config), measured(shape, config, "sm_90")])
    assert route(*shape, "gfx950").backend == "tiles"
    assert route(*shape, "sm_90").backend == "staged"
    assert route(*shape[:3], 640, "sm_90").backend == "tiles"  # K is no multiple of 256
    assert "NVIDIA" in route(*shape, "gfx950").refused["staged"]


def test_own_rows_replace_shipped_ones(own: Path) -> None:
    shape = PUBLISHED_SHAPES[0]
    before = route(*shape, "gfx950")
    save(own, [measured(shape, TilesConfig(16, 16, 64))])
    after = route(*shape, "gfx950")
    assert before.config != after.config and after.backend == "tiles"


def test_why() -> None:
    text = why(*LARGE, "sm_90")
    assert "decision    bmm" in text and "workspace   " in text and "MiB" in text
    text = why(128, 1, 512, 128, "gfx950")
    assert "decision    rows" in text and "estimated, heuristic" in text
    assert "published_us 41" in text and "not bmm" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"why {OP.name} --b 16 --m 8192 --n 8192 --k 8192 --arch sm_90"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.strip() == why(*LARGE, "sm_90")
    assert main(f"why {OP.name} --b 1 --m 2 --n 3 --k 5 --x-dtype f16".split()) == 0
    assert "heuristic" in capsys.readouterr().out
    assert main(f"why {OP.name} --b 1 --m 2 --n 3 --k 5 --arch gfx90a --cu-num 104".split()) == 1
    assert "UnsupportedArch" in capsys.readouterr().err


def test_newer_nvidia_takes_sm_90s_rows() -> None:
    newer, own_row = (route(*PUBLISHED_SHAPES[0], arch) for arch in ("sm_100", "sm_90"))
    assert newer == own_row and newer.why == own_row.why


# ---------------------------------------------------------------- heuristic


@pytest.mark.parametrize("arch", ROWS)
def test_heuristic_takes_every_shape(arch: str) -> None:
    """A config that its route takes, whose tiles fit the shape and the chip's shared memory."""
    lds = {"gfx942": 64, "gfx950": 160, "sm_90": 227}[arch] << 10
    sizes = (1, 2, 3, 16, 17, 129, 512, 8192)
    for shape in (Shape(b, m, n, k) for b in (1, 128) for m in sizes for n in sizes for k in sizes):
        for dtype in (BF16, F16):
            config = heuristic(shape, dtype, arch)
            assert refuses(shape, dtype, config) is None
            if isinstance(config, TilesConfig):
                assert config.tile_m < max(2 * shape.m, 32) and config.tile_k < max(2 * shape.k, 64)
                staged = config.tile_k * (config.tile_n + 2 * config.tile_m)
                assert staged * max(1, config.stages - 1) <= lds
            if isinstance(config, StagedConfig):
                depth = min(config.stages * config.step, shape.k)
                assert arch == "sm_90" and depth * (config.tile_n + 2 * config.tile_m) <= lds
            if isinstance(config, RowsConfig):
                assert config.tile_k < 2 * max(shape.k, 16)


def test_candidates_are_taken() -> None:
    for shape in (*PUBLISHED_SHAPES, LARGE):
        configs = list(candidates(shape))
        assert configs and len(set(configs)) == len(configs)
        assert all(refuses(shape, BF16, config) is None for config in configs)


# ---------------------------------------------------------------- files

GOOD = "gfx950,1,2,3,4,tiles,tile_m=16 tile_n=16 tile_k=64,1.5,,,,measured,a chip"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.replace("gfx950", "gfx90a"), "line 2, column arch: expected one of gfx942"),
        (GOOD.replace(",2,3", ",x,3"), "line 2, column m: expected a positive integer, got 'x'"),
        (
            GOOD.replace("tiles", "hip"),
            "line 2, column route: expected one of rows, tiles, staged, bmm",
        ),
        (GOOD.replace("tile_m=16", "tile_m=24"), "line 2, column config: .*tile_m must be a power"),
        (GOOD.replace("tile_m=16", "tile_q=16"), "line 2, column config: .*tile_q"),
        (
            GOOD.replace("1.5", "fast"),
            "line 2, column us: expected a number or nothing, got 'fast'",
        ),
        (GOOD.replace("measured", "guessed"), "line 2, column origin: expected one of measured"),
        (GOOD.replace(",a chip", ""), "line 2: expected 13 columns"),
        (GOOD + "\n" + GOOD, "line 3: same key as line 2"),
    ],
)
def test_broken_tables(line: str, message: str, own: Path) -> None:
    own.write_text(f"{','.join(tuned.COLUMNS)}\n{line}\n")
    with pytest.raises(ConfigError, match=f"{own}, {message}"):
        route(1, 2, 3, 4, "gfx950")


def test_a_table_with_another_header(own: Path) -> None:
    own.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=f"{own}, line 1: columns must be arch,b,m,n,k,route"):
        route(1, 2, 3, 4, "gfx950")


def test_tuner_keeps_what_was_measured(own: Path) -> None:
    """A new measurement replaces a row, an estimate does not; what is written reads back."""
    shape, other = Shape(1, 2, 3, 4), Shape(1, 2, 3, 5)
    old = [measured(shape, RowsConfig(4, 16))]
    estimate = row_of("gfx950", shape, RowsConfig(8, 16), "estimated", "x", {})
    assert merge(old, [estimate]) == old
    new = [measured(shape, RowsConfig(8, 16)), measured(other, RowsConfig(8, 16))]
    save(own, merge(old, new))
    assert load(own) == new
    assert [row.config for row in tuned.read(own)] == [RowsConfig(8, 16)] * 2
