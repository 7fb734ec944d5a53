"""`rfops bench timing`: rows and samples, arguments and grids, statistics, and the whole command on
kernels of our own in a checkout of our own."""

from __future__ import annotations

import csv
import ctypes
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfops import cli
from rfops.cli.timing import cells, command, gemm, micro_cases, moe, pool, rows, score, simple
from rfops.cli.timing.launches import Launch, Skip, Tile, pack, tile_of
from rfops.cli.timing.predict import memory, predict, timed
from rfops.cli.timing.rows import Row, Rows, parse, sample
from rfops.jit.cache import code_object
from support.timing_chore import chore
from support.vgpu.hip import compile_hip

pytestmark = pytest.mark.requires_gfx950
GEMM = {
    "op": "gemm_bf16",
    "gpu": "gfx950",
    "cu": "256",
    "kernel": "k",
    "co": "hsa/gfx950/k.co",
    "shape": "M=100 N=128 K=512",
    "splitK": "1",
    "us": "20.5",
    "src": "table",
}
MOE_SHAPE = (
    "tokens=50 dim=256 inter=128 E=8 topk=2 Silu bfloat16 qw=float8_e4m3fn q=per_Token g1u1=1"
)


def row(**changes: str) -> Row:
    return parse(GEMM | changes)


def write(file: Path, lines: list[dict[str, str]]) -> Path:
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*(lines[0] if lines else GEMM)])
        writer.writeheader()
        writer.writerows(lines)
    return file


def read(file: Path) -> Rows:
    return rows.read(file, command.FORMATS)


# ---------------------------------------------------------------- rows


def test_a_row_is_read_whole() -> None:
    one = row(shape=MOE_SHAPE, op="fmoe_stage1", gpu="gfx942", cu="80")
    assert one.sizes == {"tokens": 50, "dim": 256, "inter": 128, "E": 8, "topk": 2, "g1u1": 1}
    assert one.words == {"Silu": "", "bfloat16": "", "qw": "float8_e4m3fn", "q": "per_Token"}
    assert (one.gpu_model, one.us, one.split_k) == ("MI308X", 20.5, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"us": "fast"}, "us: expected microseconds above 0, got 'fast'"),
        ({"us": "-1"}, "us: expected microseconds above 0"),
        ({"us": "nan"}, "us: expected microseconds above 0"),
        ({"cu": "many"}, "cu: expected a whole number, got 'many'"),
        ({"cu": "64"}, "no part is gfx950 with 64 compute units; known: gfx942 with 304"),
        ({"kernel": "", "co": ""}, "kernel, co: empty"),
    ],
)
def test_a_damaged_line_is_told_and_costs_itself_alone(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    result = read(write(tmp_path / "rows.csv", [GEMM, GEMM | changes, GEMM]))
    assert len(result.rows) == 2
    assert len(result.wrong) == 1 and result.wrong[0].startswith(f"line 3: {reason}")


def test_a_line_that_is_cut_short_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.csv", [GEMM])
    file.write_text(file.read_text() + "gemm_bf16,gfx950\n")
    assert read(file).wrong == ["line 3: cu, kernel, co, shape, splitK, us: empty"]


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("op,gpu,cu,kernel\n")
    with pytest.raises(
        ValueError, match=r"columns op, gpu, .*; or kernel, problem, .*; got op, gpu"
    ):
        read(tmp_path / "rows.csv")


def many() -> list[Row]:
    return [row(kernel=f"k{k}", us=str(10 + n)) for k in range(5) for n in range(2 + 6 * k)]


def test_a_sample_is_even_and_repeatable() -> None:
    picked = sample(many(), 20, 7)
    assert Counter(Counter(r.kernel for r in picked).values()) == {2: 1, 5: 2, 4: 2}
    assert picked == sample(many()[::-1], 20, 7) != sample(many(), 20, 8)
    assert picked[:9] == sample(many(), 9, 7)
    assert {r.kernel for r in picked[:5]} == {f"k{k}" for k in range(5)}
    assert {*sample(many(), 0, 7)} == {*many()} == {*sample(many(), 1000, 7)}
    assert sample([], 10, 0) == []


def test_a_time_of_several_shapes_is_no_measurement() -> None:
    twice = [row(us="20.1234"), row(us="20.1234", shape="M=1 N=128 K=512")]
    other = [
        row(us="20.1234", cu="256", op="gemm_a8w8_bpreshuffle"),
        row(us="20.5"),
        row(us="20.5", shape="M=1 N=1 K=1"),
        row(us="20.1235"),
    ]
    assert command.repeats([*twice, *other]) == {*twice}


# ---------------------------------------------------------------- arguments and grids


class Memory:
    """Addresses with the sizes that were asked for."""

    def __init__(self) -> None:
        self.blocks: dict[int, int | np.ndarray] = {}

    def __call__(self, label: int | np.ndarray) -> int:
        offset = (1 << 40) + len(self.blocks)  # no size is as large
        self.blocks[offset] = label
        return offset


def launch_of(
    family: Callable[..., Launch], tile: Tile, **changes: str
) -> tuple[Launch, dict[str, Any]]:
    """The launch and its values, with sizes in the place of addresses."""
    new = Memory()
    launch = family(row(**changes), tile, new)
    return launch, {name: new.blocks.get(int(v), v) for name, v in launch.values.items()}


def test_a_slot_is_16_bytes_whatever_is_in_it() -> None:
    packed = pack("a b c d", {"d": 2**40 + 3, "b": 1.5, "c": 7})
    assert packed == bytes(16) + struct.pack("<f12xQ8xQ8x", 1.5, 7, 2**40 + 3)
    with pytest.raises(ValueError, match="no argument e in the layout a b c d"):
        pack("a b c d", {"e": 1})


def test_a4w4() -> None:
    shape = "M=300 N=640 K=1184"
    launch, v = launch_of(gemm.a4w4, Tile(96, 128), op="gemm_a4w4_blockscale", shape=shape)
    assert (launch.grid, launch.block, launch.cleared) == ((5, 4, 1), (256, 1, 1), 0)
    assert (v["A"], v["B"], v["D"]) == (300 * 592, 640 * 592, 512 * 640 * 2)
    assert (v["stride_A0"], v["stride_B0"], v["stride_C0"]) == (1184, 1184, 640)
    # 37 scales a row, padded to 40; rows to 512 and 768
    assert (v["ScaleA"], v["ScaleB"], v["stride_ScaleA0"]) == (512 * 40, 768 * 40, 40)
    assert (v["alpha"], v["beta"], v["log2_k_split"]) == (1.0, 0.0, 0)


def test_a4w4_splits_k_by_a_power_of_two_where_the_kernel_can() -> None:
    changes = {"op": "gemm_a4w4_blockscale", "shape": "M=64 N=512 K=2816", "splitK": "2"}
    launch, v = launch_of(gemm.a4w4, Tile(128, 512, split_k=1), **changes)
    # 704 of K each, up to 768: 4 parts; the output is cleared with its padded rows
    assert (launch.grid, launch.cleared, v["log2_k_split"]) == ((1, 1, 4), 256 * 512 * 2, 2)
    assert launch.extra_us == 1.0 + 256 * 512 * 2 / 4e6
    launch, v = launch_of(gemm.a4w4, Tile(128, 512), **changes)
    assert (launch.grid, launch.cleared, v["log2_k_split"]) == ((1, 1, 1), 0, 0)
    assert launch.extra_us == 0


def test_a8w8_blockscale() -> None:
    changes = {"shape": "M=100 N=512 K=7168", "splitK": "4"}
    launch, v = launch_of(gemm.a8w8_blockscale, Tile(48, 128, split_k=1), **changes)
    assert (launch.grid, launch.cleared) == ((16, 3, 1), 100 * 512 * 2)
    assert (v["lda"], v["ldb"], v["ldc"], v["ks"]) == (7168, 7168, 1024, 4)
    assert (v["scale_m"], v["scale_n"], v["scale_k"]) == (100, 4, 56)
    assert (v["a_scale"], v["b_scale"], v["bias"]) == (100 * 56 * 4, 4 * 56 * 4, 512 * 4)
    assert (v["C"], v["A"], v["B"]) == (100 * 1024, 100 * 7168, 512 * 7168)


def test_a8w8_per_token_has_padded_rows_of_x() -> None:
    launch, v = launch_of(gemm.a8w8_per_token, Tile(112, 256), shape="M=113 N=512 K=1024")
    assert (launch.grid, launch.cleared) == ((2, 2, 1), 0)
    assert (v["lda"], v["ldb"], v["ldc"], v["A"]) == (1152, 1024, 1024, 113 * 1152)
    assert (v["a_scale"], v["b_scale"], v["ks"]) == (113 * 4, 512 * 4, 1)
    assert "scale_m" not in launch.layout.split()


@pytest.mark.parametrize(("src", "size"), [("dsv4_bf16_tuned_gemm", 2), ("bf16_tuned_gemm", 4)])
def test_bf16(src: str, size: int) -> None:
    changes = {"shape": "M=70 N=192 K=512", "splitK": "13", "src": src}
    launch, v = launch_of(gemm.bf16, Tile(64, 64, split_k=1), **changes)
    assert (launch.grid, launch.cleared) == ((3, 2, 8), 0)  # no more parts than K has of 64
    assert (v["splitk"], v["semaphore"], v["is_out_b16"]) == (8, 4096, int(size == 2))
    assert launch.waits
    assert (v["D"], v["stride_D0"], v["stride_A0"]) == (70 * 192 * size, 192 * size, 1024)
    launch, v = launch_of(gemm.bf16, Tile(64, 64), **changes)
    assert (launch.grid, v["splitk"], v["semaphore"]) == ((3, 2, 1), 1, 0)
    assert not launch.waits


SIZES = moe.Sizes(tokens=50, dim=256, inter=128, experts=8, topk=2)


def test_each_token_goes_to_different_experts() -> None:
    ids = moe.route(SIZES)
    assert ids.shape == (50, 2) and ids.dtype == np.int32
    assert (ids[:, 0] != ids[:, 1]).all() and {*ids.ravel()} == {*range(8)}
    assert (ids == moe.route(SIZES)).all()


@pytest.mark.parametrize("block", [16, 32, 100])
def test_sorted_rows_are_those_of_their_blocks_expert(block: int) -> None:
    ids = moe.route(SIZES)
    result, experts, used = moe.sort(ids, SIZES, block)
    most = 50 * 2 + 8 * block - 2
    assert len(experts) == -(-most // block) and len(result) == len(experts) * block
    counts = np.bincount(ids.ravel(), minlength=8)
    assert used == sum(-(-count // block) * block for count in counts)
    padding = 2 << 24 | 50
    assert (result[used:] == padding).all()
    real = result != padding
    tokens, slots = result & 0xFFFFFF, result >> 24
    assert (ids[tokens[real], slots[real]] == np.repeat(experts, block)[real]).all()
    assert len({*result[real]}) == real.sum() == 100


def test_fmoe_stage_1() -> None:
    launch, v = launch_of(moe.stage_1, Tile(32, 64), op="fmoe_stage1", shape=MOE_SHAPE)
    blocks = -(-(50 * 2 + 8 * 32 - 2) // 32)
    assert (launch.grid, launch.cleared) == ((2, blocks, 1), 0)
    assert (v["Xs"], v["GUs"], v["Os"], v["eGUs"]) == (256, 256, 2 * 128 * 2, 256 * 256)
    assert (v["eGUQs"], v["XQ"], v["GUQ"]) == (2 * 128 * 4, 50 * 4, 8 * 2 * 128 * 4)
    assert (v["GU"], v["O"]) == (8 * 256 * 256, 50 * 2 * 128 * 2)
    assert (v["activation"], v["SW"], v["splitk" if "splitk" in v else "topk"]) == (0, 0, 2)
    assert v["XC"].tolist() == [moe.sort(moe.route(SIZES), SIZES, 32)[2], 50]
    assert v["STP"].size == blocks * 32 and v["SEP"].size == blocks
    changes = {"shape": MOE_SHAPE.replace("Silu", "Gelu"), "kernel": "fmoe_doweight"}
    _, v = launch_of(moe.stage_1, Tile(32, 64), **changes)
    assert v["activation"] == 1 and v["SW"].size == blocks * 32


def test_fmoe_stage_1_blockscale_writes_fp8_and_its_scales() -> None:
    shape = MOE_SHAPE.replace("per_Token", "per_1x128")
    _, v = launch_of(moe.stage_1, Tile(32, 128), shape=shape)
    assert (v["Os"], v["O"]) == (2 * 128, (50 + 2) * 2 * 128)
    assert (v["XQ"], v["eGUQs"]) == (50 * 2 * 4, 2 * 2 * 1 * 4)


def test_fmoe_one_stage() -> None:
    launch, v = launch_of(moe.one_stage, Tile(32, 128), op="fmoe_one_stage", shape=MOE_SHAPE)
    blocks = -(-(50 * 2 + 8 * 32 - 2) // 32)
    assert (launch.grid, launch.cleared) == ((1, blocks, 1), 50 * 256 * 2)
    assert (v["Xs"], v["GUs"], v["Ds"], v["Os"]) == (256, 256, 128, 512)
    assert (v["eGUs"], v["eDs"], v["eGUQs"], v["eDQs"]) == (65536, 32768, 1024, 1024)
    assert (v["ps_deno"], v["total_tgs"], v["eSMQs"]) == (1, 0, 512)


def test_fmoe_one_stage_on_a_persistent_grid_of_the_parts_cus() -> None:
    launch, v = launch_of(moe.one_stage, Tile(32, 48, persistent=2), shape=MOE_SHAPE)
    assert (launch.grid, v["ps_deno"], v["total_tgs"]) == ((512, 1, 1), 3, 510)
    changes = {"gpu": "gfx942", "cu": "80", "shape": MOE_SHAPE}
    launch, v = launch_of(moe.one_stage, Tile(32, 48, persistent=1), **changes)
    assert (launch.grid, v["total_tgs"]) == ((80, 1, 1), 78)


def test_fmoe_one_stage_takes_mxfp4s_scales_of_sorted_rows() -> None:
    shape = MOE_SHAPE.replace("float8_e4m3fn", "float4_e2m1fn_x2").replace("per_Token", "per_1x32")
    _, v = launch_of(moe.one_stage, Tile(32, 256), shape=shape, kernel="fmoe_MXfp4_g1u1")
    assert v["XQ"] == 384 * 8  # 50 x 2 + 8 x 32 - 2 rows, D 256 in blocks of 32


def test_fmoe_one_stage_flat_takes_the_routers_ids() -> None:
    shape = MOE_SHAPE.replace("float8_e4m3fn", "float4_e2m1fn_x2").replace("per_Token", "per_1x32")
    changes = {"shape": shape, "kernel": "fmoe_bf16_pertokenMXfp4_g1u1_flat"}
    launch, v = launch_of(moe.one_stage, Tile(16, 128, flat=1), **changes)
    assert launch.grid == (1, 2, 50)
    assert (v["STP"] == moe.route(SIZES)).all()
    assert (v["Xs"], v["GUs"], v["Ds"], v["eGUQs"]) == (512, 128, 64, 256 * 256 // 32)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("q=per_Token", "q=per_7x9", "quantization per_7x9"),
        ("Silu", "Relu", "activation: expected"),
    ],
)
def test_what_a_moe_shape_says_must_be_known(old: str, new: str, reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        launch_of(moe.stage_1, Tile(32, 64), shape=MOE_SHAPE.replace(old, new))


def test_the_checkouts_table_gives_the_tile(tmp_path: Path) -> None:
    folder = tmp_path / "hsa/gfx950"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("knl_name,co_name,tileM,tileN,splitK\nk,other.co,1,2,1\n")
    with pytest.raises(Skip, match=r"no table in hsa/gfx950 of the checkout names"):
        tile_of(tmp_path, row())
    (folder / "b.csv").write_text("tile_m,tile_n,splitK,knl_name,co_name\n32,64,1,k,k.co\n")
    assert tile_of(tmp_path, row()) == Tile(32, 64, 1)
    moe_table = "knl_name,co_name,tg_num_perCU,ps,subGU_m,subGU_n,flat\nk,k.co,2,{},16,128,1\n"
    (folder / "b.csv").write_text(moe_table.format(1))
    assert tile_of(tmp_path, row()) == Tile(16, 128, 0, 2, 1)
    (folder / "b.csv").write_text(moe_table.format(0))
    assert tile_of(tmp_path, row()) == Tile(16, 128, 0, 0, 1)


CHECKOUT = os.environ.get("RFOPS_TEST_AITER", "")
# A code object of each family and architecture, and the family's layout.
THEIRS = [
    ("gfx950/f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128.co", gemm.A4W4),
    (
        "gfx950/fp8gemm_blockscale/fp8gemm_bf16_blockscale_BpreShuffle_32x128.co",
        gemm.A8W8_BLOCKSCALE,
    ),
    (
        "gfx942/fp8gemm_blockscale/fp8gemm_bf16_blockscale_BpreShuffle_32x128.co",
        gemm.A8W8_BLOCKSCALE,
    ),
    ("gfx942/i8gemm/I8gemm_bf16_perTokenI8_BpreShuffle_32x128.co", gemm.A8W8),
    ("gfx950/bf16gemm/bf16gemm_bf16_tn_256x256.co", gemm.BF16),
    ("gfx942/bf16gemm/bf16gemm_fp32bf16_tn_32x64_splitk_clean.co", gemm.BF16),
    ("gfx950/fmoe/silu/fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_32x192.co", moe.ONE_STAGE),
    ("gfx942/fmoe_2stages/fmoe_stage1_bf16_pertokenFp8_g1u1_32x64_4tg_pf3.co", moe.STAGE_1),
]


@pytest.mark.skipif(
    not CHECKOUT,
    reason="needs aiter's code objects: RFOPS_TEST_AITER=a checkout; by hand: the tests above",
)
@pytest.mark.parametrize(("file", "layout"), THEIRS)
def test_a_layouts_slots_are_the_code_objects_arguments(file: str, layout: str) -> None:
    data = (Path(CHECKOUT) / "hsa" / file).read_bytes()
    (kernel,) = code_object.read_metadata(data).kernels.values()
    sizes = {argument.offset: argument.size for argument in kernel.args}
    slots = range(0, len(pack(layout, {})), 16)
    assert {sizes[offset] for offset in slots} == {4, 8}
    assert kernel.resources["kernarg"] >= slots[-1] + 4


# ---------------------------------------------------------------- statistics


def record(predicted: float, published: float, **changes: Any) -> dict[str, Any]:
    names = {"op": "gemm_a", "part": "MI300X", "kernel": "k", "shape": "s", "split_k": 1}
    return {**names, "predicted_us": predicted, "published_us": published, **changes}


def figures(records: list[dict[str, Any]]) -> Any:
    """Of records of one kernel."""
    (result,) = score.figures(score.table(records), score.KERNEL).itertuples()
    return result


def test_figures() -> None:
    result = figures([record(100 + e, 100) for e in (-50, -10, 0, 20, 30)])
    assert (result.rows, result.median, result.p90) == (5, pytest.approx(0.2), pytest.approx(0.5))
    assert result.bias == pytest.approx(math.prod((0.5, 0.9, 1, 1.2, 1.3)) ** 0.2)
    banded = [
        record(100, 100, low=low, high=high) for low, high in ((90, 110), (101, 110), (9, 99))
    ]
    assert figures(banded).inside == pytest.approx(1 / 3)
    assert figures([record(100, 100)]).inside == 0, "without an interval"
    for count, ninth in ((10, 9), (1, 1), (11, 10), (20, 18), (70, 63)):
        records = [record(100 + e, 100) for e in range(count, 0, -1)]
        assert figures(records).p90 == pytest.approx(ninth / 100)


def test_a_class_is_the_median_of_its_kernels_whatever_their_rows() -> None:
    records = [record(110, 100, kernel="many") for _ in range(9)]
    records += [
        record(160, 100, kernel="one"),
        record(130, 100, kernel="two"),
        record(14, 14.9, kernel="short"),
        record(100, 100, part="MI308X"),
    ]
    result = score.classes(score.table(records)).to_dict("index")
    assert result["gemm_a", "MI300X"]["median"] == pytest.approx(0.3)
    assert result["gemm_a", "MI300X"]["kernels"] == 3 and result["gemm_a", "MI300X"]["rows"] == 11
    assert result["gemm_a", "MI300X"]["off"] == 1
    assert result["gemm_a", "MI300X"]["p90"] == pytest.approx(0.3)
    assert result["gemm_a", "MI308X"]["median"] == 0
    assert result["all gemm", "all"]["kernels"] == 4 and result["all gemm", "all"]["rows"] == 12


@pytest.mark.parametrize(
    ("predicted", "published", "correlation"),
    [
        ([1, 2, 3], [10, 40, 90], 1),
        ([3, 2, 1], [10, 40, 90], -1),
        ([1, 1, 1], [10, 40, 90], None),
        ([10, 20, 30], [5, 5, 5], None),
        ([30, 10, 20, 20], [1, 2, 3, 4], -(0.1**0.5)),  # equal times share the mean of their ranks
        ([1, 2], [10, 40], None),  # too few variants
    ],
)
def test_rank_correlation(
    predicted: list[float], published: list[float], correlation: float | None
) -> None:
    pairs = zip(predicted, published, strict=True)
    records = [record(*pair, kernel=str(kernel)) for kernel, pair in enumerate(pairs)]
    result = score.order(score.table(records))
    assert result["problems"] == (correlation is not None)
    assert result["rank_correlation"] == (correlation and pytest.approx(correlation))


def test_pairs_are_of_one_problem_and_clearly_apart() -> None:
    records = [
        record(10, 10, kernel="a"),
        record(9, 12.4, kernel="b"),
        record(11, 12.5, kernel="c"),
        record(1, 20, kernel="d"),
        record(1, 99, kernel="a", shape="other"),
        record(1, 99, kernel="b", part="MI308X"),
    ]
    result = score.order(score.table(records))  # a-c right; a-d, b-d, c-d wrong; a-b, b-c too close
    assert (result["pairs"], result["pairs_right"]) == (4, 0.25)
    assert result["problems"] == 1
    assert result["rank_correlation"] == pytest.approx(-0.4)
    assert score.order(score.table(records[:1])) == {
        "problems": 0,
        "rank_correlation": None,
        "pairs": 0,
        "pairs_right": None,
    }


def test_a_summary_of_nothing() -> None:
    result = score.summary([{"skipped": "why"}, {"skipped": "why"}])
    assert (result["rows"], result["predicted"]) == (2, 0)
    assert result["kernels"] == result["classes"] == []
    assert score.text(result) == ["skipped 2: why"]
    assert json.loads(json.dumps(result))["skipped"] == {"why": 2}


def test_a_summary_is_aligned() -> None:
    records = [
        record(110, 100, kernel="_ZN5aiter4gemmE"),
        record(16, 10, kernel="b" * 70, shape="other"),
    ]
    heads = ["rows", "median", "p90", "bias", "in", "band"]
    _, head, *kernels, _, of_classes, one, two = score.text(score.summary(records))
    assert head.split() == ["kernel", "part", *heads]
    assert [line.split() for line in kernels] == [
        ["gemm", "MI300X", "1", "10.0%", "10.0%", "1.10", "0%"],
        ["b" * 70, "MI300X", "1", "60.0%", "60.0%", "1.60", "0%"],
    ]
    assert of_classes.split()[-9:] == ["part", "kernels", *heads, "over", "40%"][-9:]
    assert one.split() == "all gemm all 1 1 10.0% 10.0% 1.10 0% 0".split()
    assert two.split() == "gemm_a MI300X 1 1 10.0% 10.0% 1.10 0% 0".split()
    assert len({len(line) for line in (head, *kernels)}) == 1


def test_a_name_is_shown_without_its_namespace() -> None:
    assert score.readable_name("_ZN5aiter12gemm_32x128aE") == "gemm_32x128a"
    assert score.readable_name("_ZN5aiter13gemm_32x128aE") == "_ZN5aiter13gemm_32x128aE"
    assert score.readable_name("gemm") == "gemm"


# ---------------------------------------------------------------- workers


def test_a_bad_row_costs_itself_alone() -> None:
    items = [1, "crash", 2, "raise", 3, "endless", 4]
    results = dict(pool.run(chore, items, 1, 5))
    assert [results[offset]["is"] for offset in (0, 2, 4, 6)] == [1, 2, 3, 4]
    assert results[1]["skipped"] == "its process ended with 3"
    assert results[3]["skipped"] == "KeyError: 'no such thing'"
    assert results[5]["skipped"] == "took more than 5 s"
    assert results[2]["process"] == results[4]["process"] != results[0]["process"]


def test_a_run_that_is_left_ends_its_workers() -> None:
    going = pool.run(chore, [1, *["endless"] * 3], 2, 600)
    assert next(going)[1]["is"] == 1
    going.close()


# ---------------------------------------------------------------- simple kernels

SUITE = {
    "kernel": "matrixtranspose",
    "problem": "128x128",
    "gpu": "MI300A",
    "cls": "single",
    "us_min": "4.3",
    "spread": "1.047",
}
POINT = {
    "kernel": "mgpusim/rope",
    "config": "B=4 S=64 H=32 D=128 fp32 block=256",
    "gpu": "MI300A",
    "us": "16.3",
    "grade": "B",
}


def test_a_row_of_the_suite(tmp_path: Path) -> None:
    lines = [
        SUITE,
        SUITE | {"kernel": "nbody"},
        SUITE | {"spread": "1.2"},
        SUITE | {"cls": "multi+h2d"},
        SUITE | {"problem": "big"},
        SUITE | {"gpu": "MI999"},
    ]
    result = read(write(tmp_path / "rows.csv", lines))
    good, noisy, several = result.rows
    assert (good.op, good.kernel, good.gpu_model, good.us) == ("simple", "transpose", "MI300A", 4.3)
    assert (good.sizes, good.doubt) == ({"N": 128}, "")
    assert noisy.doubt == "two runs of it differ by more than 10 %"
    assert several.doubt == "its time is of more than a launch: multi+h2d"
    assert result.unknown == {"nbody": 1}
    assert result.wrong[0] == "line 6: problem: expected a whole number, got 'big'"
    assert result.wrong[1].startswith("line 7: gpu: expected one of MI300A, MI300X, got 'MI999'")


def test_a_point_from_elsewhere(tmp_path: Path) -> None:
    lines = [POINT, POINT | {"grade": "C"}, POINT | {"kernel": "HipKittens/attn_fwd"}]
    result = read(write(tmp_path / "rows.csv", lines))
    good, rough = result.rows
    assert good.kernel == "rope" and good.src == "mgpusim/rope"
    assert good.sizes == {"B": 4, "S": 64, "H": 32, "D": 128, "block": 256}
    assert (good.doubt, rough.doubt) == ("", "its grade is C")
    assert result.unknown == {"HipKittens/attn_fwd": 1}


def test_a_stream_of_the_microbenchmarks(tmp_path: Path) -> None:
    line = {
        "gpu": "MI300A",
        "bench": "global_bw_copy",
        "param": "array_size (bytes)",
        "value": "1048576",
        "us": "4.5",
    }
    others = [line | {"bench": name} for name in ("triad", "sfun_sin")]
    result = read(write(tmp_path / "rows.csv", [line, *others, line | {"value": "1 MB"}]))
    assert [(r.kernel, r.sizes["N"], r.us, r.gpu_model) for r in result.rows] == [
        ("copy", 1 << 18, 4.5, "MI300A"),
        ("triad", 1 << 20, 4.5, "MI300A"),
    ]
    assert result.unknown == {"sfun_sin": 1}
    assert result.wrong == ["line 5: value: expected a whole number, got '1 MB'"]


def simple_row(kernel: str, shape: str) -> Row:
    sizes, _ = rows.sizes_of(shape)
    return Row(simple.OP, "gfx942", 228, kernel, "", shape, 1, 10.0, sizes=sizes)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layernorm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    mean, deviation = x.mean(1, keepdims=True), np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return gamma * (x - mean) / deviation + beta


def rope(q: np.ndarray) -> np.ndarray:
    _, positions, _, size = q.shape
    angle = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    sine, cosine = np.sin(angle)[:, None], np.cos(angle)[:, None]
    a, b = q[..., 0::2], q[..., 1::2]
    return np.stack([a * cosine - b * sine, a * sine + b * cosine], -1).reshape(q.shape)


# Of each simple kernel: a shape, its arrays after the result, and the formula.
SIMPLE: dict[str, tuple[str, list[tuple[int, ...]], Callable[..., np.ndarray]]] = {
    "copy": ("N=300", [(300,)], np.array),
    "vectoradd": ("N=300", [(300,), (300,)], np.add),
    "relu": ("N=300", [(300,)], lambda x: np.maximum(x, 0)),
    "triad": ("N=300", [(300,), (300,)], lambda x, y: x + 2 * y),
    "swiglu": ("n=300", [(300,), (300,)], lambda x, y: x / (1 + np.exp(-x)) * y),
    "softmax": ("rows=3 cols=300", [(3, 300)], softmax),
    "layernorm": ("rows=3 hidden=300", [(3, 300), (300,), (300,)], layernorm),
    "rope": ("B=2 S=5 H=3 D=32", [], rope),
    "gemm16": ("M=20 N=35 K=50", [(20, 50), (50, 35)], np.matmul),
    "transpose": ("N=128", [(128, 128)], np.transpose),
}


@pytest.mark.parametrize("kernel", SIMPLE)
def test_a_simple_kernel_computes_what_it_is_named_for(kernel: str) -> None:
    shape, inputs, formula = SIMPLE[kernel]
    chance = np.random.default_rng(5)
    given = [chance.standard_normal(size).astype(np.float32) for size in inputs]
    both = [chance.standard_normal((2, 5, 3, 32)).astype(np.float32) for _ in "qk"]
    buffers: list[tuple[int, int]] = []
    with memory() as real:

        def new(size: int | np.ndarray) -> int:
            assert isinstance(size, int)
            whole = np.full(size // 4 + 64, np.nan, np.float32)
            arrays = both if kernel == "rope" else [whole[: size // 4], *given]
            array = arrays[len(buffers)]
            assert array.nbytes == size
            whole[: size // 4] = array.ravel()
            if kernel == "gemm16" and not buffers:
                whole[: size // 4] = 0  # what beta, which is 0, multiplies
            buffers.append((real(whole), size))
            return buffers[-1][0]

        launch = simple.launch(simple_row(kernel, shape), new)
        assert (launch.cold, launch.kind) == (False, "event")
        timed(simple_row(kernel, shape), replace(launch, waits=True), simple.code("gfx942"))
        results = []
        for offset, size in buffers:
            data = ctypes.string_at(offset, size + 256)
            results.append(np.frombuffer(data, np.float32)[: size // 4])
            assert np.isnan(np.frombuffer(data, np.float32)[size // 4 :]).all()
    wanted = [formula(part) for part in both] if kernel == "rope" else [formula(*given)]
    for result, expected in zip(results, wanted, strict=False):
        np.testing.assert_allclose(result, expected.ravel(), rtol=1e-4, atol=1e-5)


def test_simple_kernels_have_the_published_shapes() -> None:
    new = Memory()
    launch = simple.launch(simple_row("transpose", "N=192"), new)
    assert (launch.grid, launch.block, launch.values["quads"]) == ((3, 3, 1), (16, 16, 1), 48)
    launch = simple.launch(simple_row("rope", "B=4 S=64 H=32 D=128"), new)
    assert (launch.grid, launch.block) == ((4 * 64 * 32 * 64 // 256, 1, 1), (256, 1, 1))
    launch = simple.launch(simple_row("gemm16", "N=100"), new)
    assert (launch.grid, launch.block) == ((7, 7, 1), (16, 16, 1))
    with pytest.raises(KeyError, match="cols"):
        simple.launch(simple_row("softmax", "rows=3"), new)


# ---------------------------------------------------------------- HIP or Triton


def test_the_published_cells_are_those_with_a_speedup() -> None:
    result = cells.published()
    assert len(result) == 28
    assert cells.Cell(1, 2304, 6144, "gemv", 3.64) in result
    assert {cell.kernel for cell in result} == {"gemv", "mfma"}
    assert len({cell.record["key"] for cell in result}) == 28


def test_a_cell_is_timed_by_both() -> None:
    result = cells.predict(cells.Cell(1, 64, 256, "gemv", 2.0))
    assert result["hip_us"] > 0 and result["triton_us"] > 0
    assert result["speedup"] == result["triton_us"] / result["hip_us"]


def test_the_winner_counts_where_there_is_one() -> None:
    message = [
        cells.Cell(m, 8, 64, "mfma", speedup).record
        for m, speedup in ((1, 2.0), (2, 1.3), (3, 1.05), (4, 2.0))
    ]
    for one, speedup in zip(message, (1.2, 0.9, 0.5, None), strict=True):
        one |= (
            {"hip_us": 1.0, "triton_us": speedup, "speedup": speedup}
            if speedup
            else {"skipped": "why"}
        )
    lines = cells.text(message)
    assert lines[-1] == "the winner is named in 1 of 2 cells"
    assert "mfma M=4 N=8 K=64: why" in lines


# ---------------------------------------------------------------- the command

KERNELS = r"""
#define __global__ __attribute__((global))
struct Slot { unsigned long value, padding; };
struct Arguments { Slot c, a, b, sa, sb, bias, m, n, k, lda, ldb, ldc, ks; };

// Checks its arguments by what it reads: all of x and w, a row of w a workgroup; writes column n.
extern "C" __global__ void good(Arguments of) {
  auto* c = (unsigned short*)of.c.value;
  auto* a = (const signed char*)of.a.value;
  auto* b = (const signed char*)of.b.value;
  const int lane = __builtin_amdgcn_workitem_id_x(), group = __builtin_amdgcn_workgroup_id_x();
  int sum = 0;
  for (unsigned m = 0; m < of.m.value; ++m)
    for (unsigned k = lane; k < of.k.value; k += 256)
      sum += a[m * of.lda.value + k] * b[group * of.ldb.value + k];
  c[of.m.value * of.n.value - 1] = sum;
}
extern "C" __global__ void stray(Arguments of) { *(volatile int*)(of.k.value + 8) = 1; }
"""


@pytest.fixture(scope="module", name="checkout")
def checkout_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "hsa").mkdir()
    (folder / "hsa/k.co").write_bytes(compile_hip(KERNELS, "gfx950", folder))
    lines = ["knl_name,co_name,tile_m,tile_n,splitK"]
    lines += [
        f"{name},{file},16,1,0"
        for name in ("good", "stray", "none")
        for file in ("k.co", "gone.co")
    ]
    (folder / "hsa/k.csv").write_text("\n".join(lines) + "\n")
    return folder


OURS = GEMM | {
    "op": "gemm_a8w8_bpreshuffle",
    "kernel": "good",
    "co": "hsa/k.co",
    "shape": "M=3 N=8 K=300",
}
SKIPPED = [
    ({"kernel": "stray"}, "lane 0 accesses address 0x134, which is invalid"),
    ({"kernel": "none"}, "hipModuleGetFunction"),
    ({"co": "hsa/gone.co"}, "the checkout has no hsa/gone.co"),
    ({"kernel": "untold"}, "no table in hsa of the checkout names the kernel and k.co"),
    ({"op": "gemm_a1w1"}, "op gemm_a1w1: its arguments are not known; known: gemm_a4w4"),
    ({"shape": "M=3 N=8"}, "the shape has no 'K'"),
    ({"gpu": "gfx942", "cu": "304"}, "UnsupportedArch"),
]


def test_the_whole_command(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [OURS, *[OURS | changes for changes, _ in SKIPPED], OURS | {"us": "slow"}]
    lines += [OURS | {"us": "33.4567", "shape": f"M={m} N=8 K=300"} for m in (1, 2)]
    file, out = write(tmp_path / "rows.csv", lines), tmp_path / "out.json"
    words = ["--rows", str(file), "--aiter", str(checkout), "--json", str(out), "--jobs", "1"]
    assert cli.main(["bench", "timing", *words]) == 0
    message = capsys.readouterr()
    assert "line 10: us: expected microseconds" in message.err
    result = json.loads(out.read_text())
    completed = {r["key"]: r for r in result["rows"]}
    assert len(completed) == len(lines) - 1
    good = completed[parse(OURS).key]
    assert good["predicted_us"] > 0 and good["grid"] == [8, 1, 1] and good["bound"]
    for changes, reason in SKIPPED:
        skipped = completed[parse(OURS | changes).key]
        assert reason in skipped["skipped"] and "predicted_us" not in skipped
    assert (
        sum("published for several shapes" in r.get("skipped", "") for r in completed.values()) == 2
    )
    assert result["cells"] == [] and result["rows_files"] == ["rows.csv"]
    assert result["summary"]["predicted"] == 1 and result["summary"]["rows"] == len(completed)
    (figures,) = result["summary"]["kernels"]
    assert figures["kernel"] == "good"
    assert figures["median"] == pytest.approx(abs(good["predicted_us"] / 20.5 - 1))
    assert "[1/8] MI355X" in message.out and "skipped 1: the checkout has no" in message.out


def test_resume_keeps_what_is_predicted(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write(tmp_path / "rows.csv", [OURS]), tmp_path / "out.json"
    kept = command.record_of(parse(OURS)) | {"predicted_us": 41.0, "bound": "mfma"}
    out.write_text(json.dumps({"rows": [kept], "cells": []}))
    words = ["--rows", str(file), "--aiter", str(checkout), "--json", str(out)]
    asked: list[Row] = []

    def run(_work: object, items: list[Row], *_: object) -> list[tuple[int, dict[str, Any]]]:
        asked.extend(items)
        return [(index, {"predicted_us": 20.5}) for index in range(len(items))]

    monkeypatch.setattr(pool, "run", run)
    assert command.main([*words, "--resume"]) == 0
    assert not asked and json.loads(out.read_text())["rows"] == [kept]
    assert json.loads(out.read_text())["summary"]["kernels"][0]["median"] == 1.0
    assert command.main(words) == 0
    assert len(asked) == 1 and json.loads(out.read_text())["rows"][0]["predicted_us"] == 20.5


def test_no_prediction_is_a_status_of_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "rows.csv", [OURS])
    assert command.main(["--rows", str(file)]) == 1
    assert "skipped 1: no checkout of aiter is named: --aiter DIR" in capsys.readouterr().out


def test_rows_of_several_files_and_cells(
    tmp_path: Path,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [SUITE, SUITE | {"kernel": "nbody"}]
    files = [write(tmp_path / "a.csv", [OURS]), write(tmp_path / "b.csv", lines)]
    monkeypatch.setattr(cells, "published", lambda: [cells.Cell(1, 64, 256, "gemv", 2.0)])
    words = ["--rows", *map(str, files), "--aiter", str(checkout), "--cells"]
    assert command.main([*words, "--json", str(tmp_path / "out.json"), "--jobs", "1"]) == 0
    message = capsys.readouterr()
    assert "b.csv: lines of kernels that are not here: nbody 1" in message.err
    assert "transpose" in message.out and "good" in message.out
    assert "the winner is named in" in message.out
    result = json.loads((tmp_path / "out.json").read_text())
    assert {r["part"] for r in result["rows"]} == {"MI355X", "MI300A"}
    assert all(r["predicted_us"] > 0 for r in result["rows"])
    assert result["cells"][0]["speedup"] > 0


def test_what_the_command_refuses(tmp_path: Path, checkout: Path) -> None:
    rows_file = str(write(tmp_path / "rows.csv", [OURS]))
    with pytest.raises(ValueError, match=r"expected a checkout of aiter, got no hsa/ in it"):
        command.main(["--rows", rows_file, "--aiter", str(tmp_path)])
    words = ["--rows", rows_file, "--aiter", str(checkout)]
    with pytest.raises(ValueError, match=r"pass --rows FILE.csv, --cells or --micro"):
        command.main(words[2:])
    with pytest.raises(ValueError, match=r"--resume: expected --json OUT"):
        command.main([*words, "--resume"])
    (tmp_path / "out.json").write_text('{"rows": [1]}')
    with pytest.raises(ValueError, match=r"expected what this command writes"):
        command.main([*words, "--json", str(tmp_path / "out.json"), "--resume"])
    with pytest.raises(SystemExit):
        command.main([*words, "--limit", "-1"])


def test_memory_that_the_host_has_not_is_a_reason(checkout: Path) -> None:
    huge = parse(OURS | {"shape": "M=8 N=8 K=9000000000000"})
    with pytest.raises(Skip, match=r"no memory for a buffer of \d+ bytes"):
        predict(checkout, huge)


@pytest.mark.parametrize(
    "at_highest_us, reason", [(40.0, ""), (42.0, "42 us at 2.4 GHz, 20.5 are")]
)
def test_a_time_that_no_part_can_reach(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, at_highest_us: float, reason: str
) -> None:
    """The published tables have rows of several times the part's peak. The clock that the model
    gives does not count: a model that is too slow must not hide rows."""
    clk = at_highest_us * 2400
    results = {"us": 50.0, "low": 40.0, "high": 60.0, "clock_ghz": 0.1, "matrix_clk": clk}
    monkeypatch.setattr("rfops.cli.timing.predict.modelled", lambda *_: [dict(results)])
    if not reason:
        assert predict(checkout, parse(OURS))["us"] == 50.0
        return
    with pytest.raises(Skip, match=reason):
        predict(checkout, parse(OURS))


# ---------------------------------------------------------------- microkernels


def test_microkernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Published beside predicted; what lies beyond 10 % says why."""
    names = {"c23", "c53"}
    few = [case for case in micro_cases.CASES if case.id in names]
    few.append(replace(few[0], published=4.0, note="halved"))
    monkeypatch.setattr(micro_cases, "CASES", few)
    file = tmp_path / "out.json"
    assert cli.main(["bench", "timing", "--micro", "--json", str(file)]) == 0
    head, fma, empty, halved, total = capsys.readouterr().out.splitlines()
    assert "microkernel" in head and total == "2 of 3 microkernels within 10%"
    message = json.loads(file.read_text())["micro"]
    assert [record["id"] for record in message] == ["c23", "c53", "c23"]
    assert message[0]["predicted"] == pytest.approx(8, rel=0.1)
    assert fma.split()[-5:-1] == ["MI350X", "8", f"{message[0]['predicted']:.4g}", "clk"]
    assert "MI300X" in empty and "beyond" not in fma + empty
    assert halved.endswith("beyond 10 %: halved")
