"""`rfops bench OP --peers CHECKOUT`: aiter's prebuilt kernels of a checkout of the user's, timed on
the virtual GPU beside what the op chooses: of all its tiles and splits the quickest.

A peer's time is its one launch and the clearing of the output where it adds to it; quantising x,
and sorting tokens by experts, are launches of its own that are not counted."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rfops.cli.timing import predict
from rfops.cli.timing.launches import Skip, ceil_div
from rfops.cli.timing.rows import PARTS, Row, sizes_of
from rfops.dispatch.kernel import Call
from rfops.jit.errors import HipError

SPLITS = (1, 2, 3, 4, 6, 8)
MAX_WAVES_OF_SPLIT = 4  # workgroups a CU beyond which a split brings nothing
Line = Mapping[str, str]  # of a table of kernels


class Family(NamedTuple):
    """aiter's kernels for an op's calls."""

    op: str  # of timing.predict.FAMILIES
    tables: Sequence[str]  # below hsa/ARCH
    shape: Callable[[Call], str]
    takes: Callable[[Call, Line], bool]  # whether a kernel is for the call
    splits: Callable[[Call, Line], Sequence[int]]  # values of Row.split_k


def _gemm_shape(c: Call) -> str:
    return f"M={c.M} N={c.N} K={c.K}"


def _experts_shape(quantised: str) -> Callable[[Call], str]:
    return lambda c: (
        f"tokens={c.M} dim={c.D} inter={c.I} E={c.E} topk={c.K + c.E - c.R} {quantised}"
    )


def _split_blocks(c: Call, line: Line) -> Sequence[int]:
    """Splits by which no workgroup has fewer than two steps of K."""
    groups = c.N // int(line["tile_n"]) * ceil_div(c.M, int(line["tile_m"]))
    max_waves = MAX_WAVES_OF_SPLIT * c.cu_num
    fits = (s for s in SPLITS if s == 1 or (s * groups <= max_waves and 2 * s <= c.K // 128))
    return [*fits] if int(line["splitK"]) else [1]


def _split_powers(c: Call, line: Line) -> Sequence[int]:
    """The same as powers of two, of steps of 256."""
    groups = ceil_div(c.N, int(line["tile_N"])) * ceil_div(c.M, int(line["tile_M"]))
    max_waves = MAX_WAVES_OF_SPLIT * c.cu_num
    fits = (p for p in range(4) if p == 0 or (groups << p <= max_waves and 2 << p <= c.K // 256))
    return [*fits] if int(line["splitK"]) else [0]


def _no_split(_c: Call, _line: Line) -> Sequence[int]:
    return [0]


def _whole_tiles(c: Call, line: Line) -> bool:
    n, k = int(c.N), int(c.K)
    return n % int(line["tile_n"]) == 0 and k % 128 == 0


def _has_layout(c: Call, line: Line) -> bool:
    k, is_shuffled = int(c.K), c.w_layout != "raw"
    return int(line["bpreshuffle"]) == is_shuffled and k % 256 == 0


def _covers(c: Call, line: Line) -> bool:
    return int(c.I) % int(line["subGU_n"]) == 0 and "tkw1" not in line["knl_name"]


FAMILIES: Mapping[str, Family] = {
    "gemm_a8w8_blockscale": Family(
        "gemm_a8w8_blockscale_bpreshuffle",
        ("fp8gemm_blockscale/fp8gemm_bf16_blockscale.csv",),
        _gemm_shape,
        _whole_tiles,
        _split_blocks,
    ),
    "gemm_afp4wfp4": Family(
        "gemm_a4w4_blockscale",
        ("f4gemm/f4gemm_bf16_per1x32Fp4.csv",),
        _gemm_shape,
        _has_layout,
        _split_powers,
    ),
    "fused_moe_fp8": Family(
        "fmoe_one_stage",
        (
            "fmoe/silu/fmoe_bf16_blockscaleFp8_g1u1_silu.csv",
            "fmoe/silu/fmoe_bf16_blockscaleBf16_g1u1_silu.csv",
        ),
        _experts_shape("q=per_1x128"),
        _covers,
        _no_split,
    ),
    "fused_moe_mxfp4": Family(
        "fmoe_one_stage",
        ("fmoe/silu/fmoe_bf16_pertokenMXfp4_g1u1_silu.csv",),
        _experts_shape("q=per_1x32 qw=float4"),
        _covers,
        _no_split,
    ),
}


def check(op: str, checkout: Path, device: str) -> None:
    """Raises ValueError for an op without peers, a folder that is no checkout, and a GPU."""
    if op not in FAMILIES:
        raise ValueError(f"--peers: aiter's kernels are known for {', '.join(FAMILIES)}; not {op}")
    if device != "cpu":
        raise ValueError("--peers: they are timed on the virtual GPU: --device cpu")
    if not (checkout / "hsa").is_dir():
        raise ValueError(f"--peers {checkout}: expected a checkout of aiter, with a folder hsa")


def best(op: str, c: Call, checkout: Path) -> tuple[str, float] | None:
    """The quickest of aiter's kernels for a call, `aiter TILE split N`, and its estimated
    microseconds; None where it has none. Raises OSError for a checkout that lacks its tables."""
    times = [(us, name) for name, us in timed(op, c, checkout)]
    return min(times)[::-1] if times else None


def timed(op: str, c: Call, checkout: Path) -> Iterator[tuple[str, float]]:
    """Each kernel and split that takes the call."""
    family = FAMILIES[op]
    for row, name in rows(family, c, checkout):
        try:
            yield name, float(predict.predict(checkout, row)["us"])
        except (Skip, HipError):
            continue  # it is for other shapes, or its code object is not in the checkout


def rows(family: Family, c: Call, checkout: Path) -> Iterator[tuple[Row, str]]:
    """What predict runs, and what it is called."""
    arch, shape = c.arch, family.shape(c)
    if (arch, c.cu_num) not in PARTS:
        return
    for table in family.tables:
        file = checkout / "hsa" / arch / table
        if not file.is_file():
            continue  # that architecture has none
        with file.open(newline="", encoding="utf-8") as stream:
            lines = [*csv.DictReader(stream)]
        for line in lines:
            if not family.takes(c, line):
                continue
            co = str((file.parent / line["co_name"]).relative_to(checkout))
            for split in family.splits(c, line):
                kernel, (sizes, words) = line["knl_name"], sizes_of(shape)
                of_chip = family.op, arch, c.cu_num
                row = Row(*of_chip, kernel, co, shape, split, float("inf"), "", sizes, words)
                yield row, _name(line, family, split)


def _name(line: Line, family: Family, split: int) -> str:
    tile = "x".join(
        next(line[name] for name in names if name in line)
        for names in (("tile_m", "tile_M", "subGU_m"), ("tile_n", "tile_N", "subGU_n"))
    )
    if family.splits is _no_split:
        return f"aiter {tile}"
    return f"aiter {tile} split {1 << split if family.splits is _split_powers else split}"
