"""aiter's prebuilt kernels of a checkout of the user's: tiles and splits that take a call, each
with the launches before it.

Experts: the sort of tokens by experts, which clears the output, then the quantisation of x and the
sort of its scales where the kernel does not quantise; `flat` kernels do all of it themselves."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from rfops.cli.timing import moe, predict
from rfops.cli.timing.launches import Skip, ceil_div
from rfops.cli.timing.rows import PARTS, Row, sizes_of
from rfops.dispatch.kernel import Call
from rfops.jit.errors import HipError
from rfops.jit.launch import hip

from .calls import Counted, Launches, Missing, PeerCall, time_launches
from .sources import Source, library

SPLITS = (1, 2, 3, 4, 6, 8)
MAX_WAVES_OF_SPLIT = 4  # workgroups a CU beyond which a split brings nothing
Line = Mapping[str, str]  # of a table of kernels
_CSRC = "csrc", "csrc/include"


class Family(NamedTuple):
    """aiter's kernels for an op's calls."""

    op: str  # of timing.predict.FAMILIES
    tables: Sequence[str]  # below hsa/ARCH
    shape: Callable[[Call], str]
    takes: Callable[[Call, Line], bool]  # whether a kernel is for the call
    splits: Callable[[Call, Line], Sequence[int]]  # values of Row.split_k
    begin: Callable[[Path, Row, Line, float], PeerCall]  # before a kernel that wants clearing


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


# ---------------------------------------------------------------- launches before a kernel

SORT = Source("aiter_sort.cpp", "csrc/py_itfs_cu/moe_sorting_opus_kernels.cu", _CSRC)
QUANT = Source("aiter_quant.cpp", "csrc/kernels/quant_kernels.cu", _CSRC, ("rocprim/rocprim.hpp",))


def _clear(_checkout: Path, _row: Row, _line: Line, cleared_us: float) -> PeerCall:
    return PeerCall("", (("clearing", cleared_us),) if cleared_us else ())


def _experts_begin(checkout: Path, row: Row, line: Line, cleared_us: float) -> PeerCall:
    if int(line.get("flat") or 0):
        return PeerCall("", ())
    block, sizes, counted = int(line["subGU_m"]), moe.Sizes.of(row), Counted()
    try:
        counted.add(_sort(checkout, row.gpu, sizes, block))
    except Missing as error:
        counted.add((("clearing", cleared_us),))
        counted.uncounted.append(f"moe_sorting: {error}")
    if not any(name in row.kernel for name in moe.QUANTIZE_X):
        is_mxfp4 = "float4" in row.words.get("qw", "")
        with counted.launch("quantisation of x"):
            counted.add(_quantise(checkout, row.gpu, sizes, block, is_mxfp4))
    return counted.call("")


@functools.cache
def _sort(checkout: Path, arch: str, s: moe.Sizes, block: int) -> Launches:
    """Raises Missing."""
    built = library(SORT, checkout, arch)
    hip.runtime(torch.device("cpu")).select_arch(arch)
    ids = moe.route(s)
    rows, experts, _ = moe.sort(ids, s, block)
    shape = s.tokens, s.topk, s.experts
    with predict.memory() as new:
        weights = new(np.full(ids.size, 1 / s.topk, np.float32))
        results = [new(rows.nbytes), new(rows.nbytes), new(experts.nbytes), new(8)]
        workspace = new(max(built.size("peer_sort_workspace", *shape), 1))
        addresses = [new(ids), weights, *results, new(s.tokens * s.dim * 2), workspace]
        start = functools.partial(built, "peer_sort", *addresses, *shape, block, s.dim)
        return time_launches("moe_sorting", start)


@functools.cache
def _quantise(checkout: Path, arch: str, s: moe.Sizes, block: int, is_mxfp4: bool) -> Launches:
    """Raises Missing."""
    built = library(QUANT, checkout, arch)
    hip.runtime(torch.device("cpu")).select_arch(arch)
    name = "peer_quant_mxfp4" if is_mxfp4 else "peer_quant_fp8"
    rows, _, num_used = moe.sort(moe.route(s), s, block)
    num_scales = s.tokens * s.dim // 32 * 4
    with predict.memory() as new:
        q, x, scales = new(s.tokens * s.dim), new(s.tokens * s.dim * 2), new(num_scales)
        start = functools.partial(built, name, q, x, scales, s.tokens, s.dim)
        launches = time_launches("quantisation of x", start)
        if is_mxfp4:
            counts = new(np.array([num_used, s.tokens], np.int32))
            arguments = new((rows.size + 31) * (s.dim // 32 + 7)), scales, new(rows), counts
            sizes = s.tokens, s.dim, rows.size
            start = functools.partial(built, "peer_sort_scales", *arguments, *sizes)
            launches += time_launches("sort of scales", start)
        return launches


FAMILIES: Mapping[str, Family] = {
    "gemm_a8w8_blockscale": Family(
        "gemm_a8w8_blockscale_bpreshuffle",
        ("fp8gemm_blockscale/fp8gemm_bf16_blockscale.csv",),
        _gemm_shape,
        _whole_tiles,
        _split_blocks,
        _clear,
    ),
    "gemm_afp4wfp4": Family(
        "gemm_a4w4_blockscale",
        ("f4gemm/f4gemm_bf16_per1x32Fp4.csv",),
        _gemm_shape,
        _has_layout,
        _split_powers,
        _clear,
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
        _experts_begin,
    ),
    "fused_moe_mxfp4": Family(
        "fmoe_one_stage",
        ("fmoe/silu/fmoe_bf16_pertokenMXfp4_g1u1_silu.csv",),
        _experts_shape("q=per_1x32 qw=float4"),
        _covers,
        _no_split,
        _experts_begin,
    ),
}


def check(checkout: Path) -> None:
    """Raises ValueError for a folder that is no checkout."""
    if not (checkout / "hsa").is_dir():
        raise ValueError(f"--peers {checkout}: expected a checkout of aiter, with a folder hsa")


def calls(op: str, c: Call, checkout: Path) -> Iterator[PeerCall]:
    """By each kernel and split that takes the call. Raises OSError for a checkout that lacks its
    tables."""
    family = FAMILIES[op]
    for row, line, name in rows(family, c, checkout):
        try:
            estimate = predict.predict(checkout, row)
        except (Skip, HipError):
            continue  # it is for other shapes, or its code object is not in the checkout
        cleared_us = float(estimate["cleared_us"])
        own = PeerCall(name, ((row.kernel, float(estimate["us"]) - cleared_us),))
        yield own.with_launches(family.begin(checkout, row, line, cleared_us))


def rows(family: Family, c: Call, checkout: Path) -> Iterator[tuple[Row, Line, str]]:
    """What predict runs, its line in the table, and what it is called."""
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
                yield row, line, _name(line, family, split)


def _name(line: Line, family: Family, split: int) -> str:
    tile = "x".join(
        next(line[name] for name in names if name in line)
        for names in (("tile_m", "tile_M", "subGU_m"), ("tile_n", "tile_N", "subGU_n"))
    )
    if family.splits is _no_split:
        return f"aiter {tile}"
    return f"aiter {tile} split {1 << split if family.splits is _split_powers else split}"
