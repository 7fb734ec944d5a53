"""`rfops profile` and `rfops bench` on the virtual GPU: what they print and write, and refuse."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_mxfp8
import pytest
import torch

import rfops.dispatch.op as registry
from rfops import cli, vgpu
from rfops.cli import bench as cli_bench
from rfops.dispatch import cost, timing
from rfops.dispatch.kernel import Call, Kernel, RunOf
from rfops.dispatch.op import Op, ops
from rfops.dispatch.problem import InputGenerator, Problem, call_on, on_device
from rfops.dispatch.timing import Timing
from rfops.gemm.mxfp8 import OP as DENSE
from rfops.moe import fused_moe_mxfp4
from rfops.moe.grouped_gemm_mxfp8 import OP as GROUPED
from support.calls import dense_call
from support.tables import lines

pytestmark = [pytest.mark.requires_gfx950, pytest.mark.usefixtures("shipped_tables")]
CPU = torch.device("cpu")
NAMES = (
    "gemm_mxfp8",
    "grouped_gemm_mxfp8",
    "moe_align_block_size",
    "batched_gemm_a16w8_blockscale",
    "gemm_a8w8_blockscale",
    "quant_fp8_blockscale",
    "topk_softmax",
    "grouped_topk",
    "moe_topk_align",
    "moe_router",
    "fused_moe",
    "fused_moe_tables",
    "fused_moe_fp8",
    "mla_decode",
)
SMALL = dense_call(3, 48, 256)
# Of each op and of what its declaration makes optional.
SHAPES = [
    ("gemm_mxfp8", "M=3 N=48 K=256"),
    ("gemm_mxfp8", "M=20 N=40 K=96 dtype=f32"),
    ("gemm_a8w8_blockscale", "3 48 256"),
    ("gemm_a8w8_blockscale", "70 40 128 dtype=f32"),
    ("quant_fp8_blockscale", "37 256"),
    ("quant_fp8_blockscale", "130 128 block_rows=128 transpose_scale=1 x_dtype=f16"),
    ("fused_moe", "5 64 32 4 2 x_dtype=f16"),
    ("fused_moe", "3 40 24 4 2"),
    ("fused_moe_tables", "5 64 32 4 2 R=3 x_dtype=f16"),
    ("fused_moe", "5 64 32 4 2 x_dtype=f16 router_weight=1 round_scores=1"),
    ("fused_moe_fp8", "5 128 128 4 2 x_dtype=f16"),
    ("topk_softmax", "37 40 4"),
    ("topk_softmax", "3 33 5 round_scores=1 logits_dtype=f16 renormalize=1"),
    ("grouped_topk", "9 64 4 num_groups=8 topk_groups=4 bias=1"),
    ("moe_router", "20 64 40 4 x_dtype=f16"),
    ("grouped_gemm_mxfp8", "6 48 256 8 a_div=2 top_k=2"),
    ("grouped_gemm_mxfp8", "5 48 96 8 top_k=3 mul_weight_by=1 out_dtype=f32"),
    ("grouped_gemm_mxfp8", "4 16 64 2 top_k=4 block_m=8"),
    ("moe_align_block_size", "100 8"),
    ("moe_align_block_size", "100 8 expert_map=1 topk_ids_dtype=i64 ignore_invalid_experts=1"),
    ("batched_gemm_a16w8_blockscale", "2 4 130 200"),
    ("mla_decode", "B=2 H=16 S=70 kv_dtype=fp8 kv_scale=1 lse=1"),
    ("mla_decode", "B=2 H=40 S=70 qo_len=2"),
    ("batched_gemm_a16w8_blockscale", "2 40 128 128 x_dtype=f16 dtype=f32"),
    ("moe_topk_align", "9 64 4 num_groups=8 topk_groups=4 bias=1 expert_map=1"),
]
# One of each op and of each kind of inputs; the others are builds of their own.
_MORE = [SHAPES[i] for i in (1, 3, 5, 7, 16, 19, 22, 23)]
QUICK_SHAPES = [
    pytest.param(*shape, marks=[pytest.mark.sweep] * (shape in _MORE)) for shape in SHAPES
]


def problem(name: str, shape: str, seed: int = 0) -> Problem:
    op = ops()[name]
    c = op.call_of("gfx950", **cli_bench.shape_of(op, shape.split()))
    return Problem(op, on_device(c, CPU), seed)


# ---------------------------------------------------------------- inputs and the check


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 0, 0), (9, 0, 8), (10, 1, 8), (25, 2, 22), (100, 10, 89)]
)
def test_a_timing_has_its_median_and_deciles(count: int, low: int, high: int) -> None:
    """A tenth of the samples are below the first decile, a tenth above the last."""
    shuffled = [float(i * 7 % count) for i in range(count)] if count % 7 else [*range(count)]
    timing = Timing.of(shuffled)
    assert (timing.us, timing.low, timing.high) == ((count - 1) / 2, low, high)
    assert timing.samples == count
    assert timing.spread == ((high - low) / timing.us if count > 1 else 0.0)


def test_inputs_begin_where_a_gpu_has_them() -> None:
    """At pages, so that timing mode sees the same lines in every process."""
    made = problem("gemm_a8w8_blockscale", "3 130 256")
    assert [t.data_ptr() % 4096 for t in (*made.tensors, *made.results)] == [0] * 5
    again = problem("gemm_a8w8_blockscale", "3 130 256")
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(made.tensors, again.tensors, strict=True)
    )


@pytest.mark.parametrize(("name", "shape"), QUICK_SHAPES)
def test_inputs_are_valid_and_the_check_finds_one_wrong_element(name: str, shape: str) -> None:
    made = problem(name, shape)
    results = made.launch()
    backend = made.op.route(made.call).backend  # some round what others do not
    made.check(results, backend)
    for result in results:
        at = int(result.float().abs().argmax())
        kept = result.view(-1)[at].clone()
        wrong = kept.float() * (1.1 if result.itemsize > 1 else 0.5)
        result.view(-1)[at] = wrong if result.is_floating_point() else kept + 1
        with pytest.raises(AssertionError, match=f"1 of {result.numel()} elements"):
            made.check(results, backend)
        result.view(-1)[at] = kept


def test_inputs_are_the_same_for_a_seed_and_others_for_another() -> None:
    first, again, other = (problem(*SHAPES[0], seed).tensors for seed in (0, 0, 1))
    for a, b, c in zip(first, again, other, strict=True):
        assert a is not None and b is not None and c is not None
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        assert not torch.equal(a.view(torch.uint8), c.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_every_code_but_nan_is_drawn(dtype: torch.dtype) -> None:
    (arg,) = (a for a in ops()[NAMES[3]].declaration.tensors if a.name == "w")
    drawn = InputGenerator(on_device(SMALL, CPU), 0).like(arg, dtype, (1 << 14,))
    assert not drawn.float().isnan().any()
    nans = 2 if dtype == torch.float8_e4m3fn else 1
    assert len(drawn.view(torch.uint8).unique()) == 256 - nans


def test_experts_of_a_token_differ() -> None:
    made = problem("grouped_gemm_mxfp8", "8 16 64 8 top_k=4")
    ids, experts = made.inputs[4], made.inputs[5]
    of_row = {int(r): int(experts[p // 16]) for p, r in enumerate(ids.tolist()) if r < 8}
    for token in range(2):
        assert len({of_row[4 * token + i] for i in range(4)}) == 4


def test_bytes_and_flops() -> None:
    made = problem("gemm_mxfp8", "3 48 256")
    least = cost.floor(DENSE, made.call)
    assert least.bytes == (3 + 48) * (256 + 8) + 2 * 3 * 48
    assert least.flops == 2 * 3 * 48 * 256 and least.bound == "bytes"
    assert least.us == pytest.approx(least.bytes / 8e6)  # 8 TB/s
    large = problem("gemm_mxfp8", "64 64 2048")
    large.call.M = 1 << 20  # as if
    assert cost.floor(DENSE, large.call).bound == "flops"
    grouped = problem("grouped_gemm_mxfp8", "1 48 256 8")  # one of 8 experts is read
    assert cost.floor(GROUPED, grouped.call).bytes < 3 * 48 * (256 + 8)


class Add(Kernel):
    name = "torch"

    def variant(self, c: Call, config: Any) -> RunOf:
        return lambda *_sizes: lambda _result, total, parts: total.add_(sum(parts))


def test_inputs_that_are_written_and_tables_of_tensors() -> None:
    def reference(total: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        total += sum(parts)

    class InPlace(Op):
        def is_empty(self, c: Call) -> bool:
            return False

    text = """
        total: f32[M, N] inout
        parts: f32[M, N] x 3
    """
    op = InPlace("bench_in_place", text, kernels=(Add(),), reference=reference)
    try:
        made = Problem(op, on_device(op.call_of("gfx950", M=4, N=8), CPU))
        before = made.inputs[0].clone()
        for launch in (made.launch, made.launch_by(made.prepare("torch"))):
            for _ in range(2):  # each begins with the inputs as they were
                made.checked(launch, "torch")
        assert not torch.equal(made.inputs[0], before)
        assert op.traffic(made.call) == 4 * 8 * 4 * (2 + 3)
        made.inputs[0][2, 3] += 1
        with pytest.raises(AssertionError, match=r"total: 1 of 32 .* worst at \(2, 3\)"):
            made.check(())
    finally:
        del registry._OPS["bench_in_place"]


def test_no_reference_no_bench() -> None:
    made = problem(*SHAPES[0])
    made.op = Op("bench_no_reference", "x: f32[M]\n-> out: f32[M]", kernels=(Add(),))
    del registry._OPS["bench_no_reference"]
    with pytest.raises(ValueError, match="bench_no_reference: has no reference to check by"):
        _ = made.expected


@functools.cache
def halve() -> Op:
    text = "x: f32[M, K]\n-> half: bf16[M, K]\n-> most: f32[M]"
    op = Op("bench_halve", text, kernels=(Halve(),))
    del registry._OPS["bench_halve"]
    return op


class Halve(Kernel):
    name = "halve"

    def variant(self, c: Call, config: Any) -> RunOf:
        def run(results: Any, x: torch.Tensor) -> None:
            results[0].copy_(x / 2)
            results[1].copy_(x.amax(1))

        return lambda *_sizes: run


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda x: x / 2, "reference must return half, most, got 1 results. Return a tuple"),
        (lambda x: (x / 2, x.amax(1), x), "reference must return half, most, got 3 results"),
        (lambda x: (x / 2, x.amax(1, True)), r"reference's most must be \[9\], got \[9, 1\]"),
        (lambda x: (x / 2, x.amax(1).half()), "reference's most must not be rounded, got torch.fl"),
        (lambda x: ((x / 2).to(torch.float8_e4m3fn), x.amax(1)), "half must not be rounded, got"),
        (lambda x: ((x / 2).bfloat16(), x.amax(1)), ""),  # as the result is: twice the bound
        (lambda x: (x / 2, x.amax(1)), ""),
    ],
)
def test_a_reference_that_cannot_be_checked_by_says_so(reference: Any, message: str) -> None:
    op = halve()
    op.reference = reference
    made = Problem(op, call_on(op, {"M": 9, "K": 70}, CPU))
    if not message:
        return made.checked(made.launch)
    with pytest.raises(ValueError, match=f"bench_halve: .*{message}"):
        made.checked(made.launch)


# ---------------------------------------------------------------- profile


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ("gemm_mxfp8 --m 20 --n 32 --k 64", "mxfp8_mfma"),
        ("grouped_gemm_mxfp8 --m 4 --n 16 --k 64 --e 4 --mul-weight-by", "mxfp8_moe"),
        ("moe_align_block_size --rows 20 --e 4 --arch gfx942", "moe_align_place"),
        ("batched_gemm_a16w8_blockscale --b 2 --m 1 --n 64 --k 128", "one_block"),
    ],
)
def test_profile(words: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *words.split(), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kernel"] == kernel
    assert record["arch"] == ("gfx942" if "gfx942" in words else "gfx950")
    assert cli.main(["profile", *words.split()]) == 0
    assert "launches: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gemm_mxfp8 --m -1 --n 2 --k 32", "gemm_mxfp8: M must be 0 or more, got M=-1"),
        ("gemm_mxfp8 --m 1 --n 2 --k 33", "gemm_mxfp8: K must be a positive multiple of 32"),
        ("grouped_gemm_mxfp8 --m -1 --n 2 --k 32 --e 1", "num_valid_tokens must be an int from 0"),
        ("moe_align_block_size --rows 1 --e 1 --block-size 0", "--block-size 0: expected 1"),
        ("gemm_mxfp8 --m 1 --n 2 --k 32 --arch sm_90", "the virtual GPU is gfx942 or gfx950"),
    ],
)
def test_profile_refuses(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *words.split()]) == 1
    assert message in capsys.readouterr().err


def test_profile_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "gemm_mxfp8", "--m", "0", "--n", "2", "--k", "32"]
    assert cli.main(words) == 0
    assert "the result is empty, nothing is launched" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["profile", "bench", "tune"])
def test_help_names_the_ops(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"]):
        assert cli.main([command, *words]) == 0
        said = capsys.readouterr().out
        for name in NAMES:
            assert (name in said) == (command != "tune" or bool(ops()[name].table))
    with pytest.raises(SystemExit) as done:
        cli.main([command, "gemm_mxfp8", "--help"])
    assert done.value.code == 0
    assert ("--k K" if command == "profile" else "--shape") in capsys.readouterr().out


# ---------------------------------------------------------------- bench


@pytest.mark.parametrize("name", NAMES)
def test_bench(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.csv"
    shape = next(shape for op, shape in SHAPES if op == name)
    assert cli.main(["bench", name, "--shape", *shape.split(), "--csv", str(file)]) == 0
    out = capsys.readouterr().out
    assert "nothing here is measured" in out and "geometric mean" in out
    assert "share of the floor" in out and "best" in out and "slowest" in out
    (row,) = lines(file)
    assert row["op"] == name and row["kind"] == "estimated" and "virtual GPU" in row["device"]
    assert float(row["us"]) > float(row["floor us"]) > 0 and float(row["bytes_over_least"]) >= 0.9
    assert float(row["share"]) == pytest.approx(float(row["floor us"]) / float(row["us"]))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gemm_a8w8_blockscale", "16 128 256"),
        ("quant_fp8_blockscale", "37 256"),
        ("fused_moe_fp8", "5 128 128 4 2"),
        ("mla_decode", "1 16 70 kv_dtype=fp8 kv_scale=1"),
    ],
)
def test_fp8_is_the_chips(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of gfx942 another one: FP8 of gfx950 would go to torch there, with nothing to time."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx942")
    for command, file in (("bench", "bench.csv"), ("tune", f"{name}.csv")):
        where = ["--csv", str(tmp_path / file)] if command == "bench" else ["--out", str(tmp_path)]
        if command == "tune" and not ops()[name].table:
            continue
        more = where if command == "bench" else [*where, "--top", "1"]
        assert cli.main([command, name, "--shape", *shape.split(), *more]) == 0
        (row,) = lines(tmp_path / file)
        assert row["kernel"] in ops()[name].kernels and float(row["us"]) > 0
        assert ops()[name].kernels[row["kernel"]].is_hip, row


def test_bench_of_fp8_without_scales(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All codes would make scores of hundreds, which leave weights that no P of FP8 has."""
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")
    words = ["1", "128", "300", "kv_dtype=fp8", "q_dtype=fp8", "--kernel", "shared_fp8"]
    assert cli.main(["bench", "mla_decode", "--shape", *words]) == 0
    said = capsys.readouterr()
    assert "WRONG" not in said.err and "shared_fp8" in said.out


def test_bench_shows_what_others_have_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "measure", lambda *_a, **_k: cost.Cost(3.91, "estimated"))
    assert cli.main(["bench", "gemm_mxfp8", "--shape", "1", "1536", "6144"]) == 0
    out = capsys.readouterr().out
    assert "us 7.82, triton_us 26.13" in out and "aiter pull request 3783 on MI355X" in out
    assert "published over this" not in out, "an estimate has no ratio to a measurement"
    monkeypatch.setattr(cli_bench, "QUICK", 1)
    assert cli.main(["bench", "batched_gemm_a16w8_blockscale"]) == 0
    out = capsys.readouterr().out
    assert "us 29.54" in out and "aiter pull request 2297 on MI350X" in out


def test_on_a_gpu_every_set_is_timed_and_the_first_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = [problem(*SHAPES[0], seed) for seed in range(3)]
    for one in sets:
        one.call.device = torch.device("cuda")  # as if
    timed: list[Any] = []

    def time_graph(calls: Sequence[Any]) -> Timing:
        timed.extend(call()[0].clone() for call in calls)
        return Timing(2.0, 1.9, 2.1, 25)

    monkeypatch.setattr(cost, "time_graph", time_graph)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "MI300X")
    done = cost.measure(sets, "gemv", route=True)
    assert (done.us, done.kind, done.spread) == (2.0, "measured", pytest.approx(0.1))
    assert (done.low, done.high, done.gpu) == (1.9, 2.1, "MI300X")
    for one, result in zip(sets, timed, strict=True):
        one.check([result])
    sets[0].expected[0][0][1, 2] += 1e9
    with pytest.raises(AssertionError, match=r"worst at \(1, 2\)"):
        cost.measure(sets, "gemv", route=True)
    assert len(timed) == 3


def test_launches_of_the_reference_are_not_counted() -> None:
    """That of MXFP4's experts quantises what they have between."""
    shape = {"M": 2, "D": 256, "I": 64, "E": 2, "K": 1}
    c = call_on(fused_moe_mxfp4.OP, shape, CPU)
    sets = cost.problems(fused_moe_mxfp4.OP, c, CPU)
    first = cost.measure(sets, "hip", route=True).counters["launches"]
    with vgpu.profile() as again:
        sets[0].launch()
    assert first == len(again.launches) == 3


def test_bench_of_another_kernel_beside(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gemm_mxfp8", "--shape", "8", "48", "256", "--kernel", "triton"]
    assert cli.main(["bench", *words]) == 0
    assert "triton over this:" in capsys.readouterr().out
    words = ["batched_gemm_a16w8_blockscale", "--shape", "2", "1", "64", "128"]
    assert cli.main(["bench", *words, "--kernel", "bmm", "staged"]) == 0  # which is NVIDIA's
    said = capsys.readouterr().out
    assert "bmm over this" in said and "staged over this" not in said


def test_a_row_names_values_too() -> None:
    shapes = ops()["moe_align_block_size"].shapes["prefill"]
    names = {cli_bench.label(ops()["moe_align_block_size"], shape) for shape in shapes}
    assert len(names) == len(shapes) and "rows=8192 e=32 block_size=64" in names
    assert cli_bench.label(DENSE, {"M": 1, "N": 2, "K": 32, "dtype": torch.float16}) == (
        "m=1 n=2 k=32 dtype=float16"
    )


def test_bench_fails_for_a_wrong_result_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Problem.launch

    def wrong(self: Problem) -> Sequence[torch.Tensor]:
        (out,) = launch(self)
        if out.shape[0] == 3:
            out[1, 7] *= 1.1
        return (out,)

    monkeypatch.setattr(Problem, "launch", wrong)
    shapes = ["--shape", "3", "48", "256", "--shape", "4", "48", "256"]
    assert cli.main(["bench", "gemm_mxfp8", *shapes]) == 1
    said = capsys.readouterr()
    kernel = DENSE.route(SMALL).backend
    assert f"gemm_mxfp8 m=3 n=48 k=256: {kernel} is WRONG: out: 1 of 144 elements" in said.err
    assert "worst at (1, 7)" in said.err and "m=4" not in said.err
    assert "of 1 (estimated)" in said.out  # the right one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shape 3 48", "--shape 3 48: say K too"),
        ("--shape 3 48 64 1", "--shape 1: expected M N K as numbers, or NAME=VALUE of dtype"),
        ("--shape M=x", "--shape M=x: expected for M a number"),
        (
            "--shape 3 48 64 dtype=i8",
            "--shape dtype=i8: expected for dtype fp8, the chip's own, or one of bf16",
        ),
        ("--shape 3 48 33", "K must be a positive multiple of 32"),
    ],
)
def test_bench_refuses(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "gemm_mxfp8", *words.split()]) == 1
    assert message in capsys.readouterr().err


def test_plot_needs_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    words = ["--shape", "3", "48", "256", "--plot", str(tmp_path / "a.png")]
    assert cli.main(["bench", "gemm_mxfp8", *words]) == 1
    assert "--plot needs matplotlib: pip install 'rfops[plot]'" in capsys.readouterr().err


def test_plot(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    words = ["--shape", "3", "48", "256", "--plot", str(file)]
    assert cli.main(["bench", "gemm_mxfp8", *words]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_quick_takes_the_smallest_shapes() -> None:
    for op in ops().values():
        for shapes in op.shapes.values():
            chosen = cli_bench.quick(op, shapes)
            assert len(chosen) == 3 and all(shape in shapes for shape in chosen)
    assert {shape["M"] for shape in cli_bench.quick(DENSE, DENSE.shapes["published"])} == {1}


def test_bench_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.csv"
    assert bench_mxfp8.main(["--shape", "8", "48", "256", "--csv", str(file)]) == 0
    assert "triton over this" in capsys.readouterr().out
    (row,) = lines(file)
    assert (row["kernel"], row["mfma"], row["shape"]) == ("mfma", "6.0", "m=8 n=48 k=256")
    assert float(row["triton us"]) > 0


def test_sets() -> None:
    sizes = {name: len(DENSE.shapes[name]) for name in DENSE.shapes}
    assert sizes == {"published": 28, "tp4": 28, "tp1": 21, "tp2": 28, "tp8": 28}
    moe = GROUPED.shapes["moe"]
    assert {s["E"] for s in moe} == {128, 64, 32} and {s["mul_weight_by"] for s in moe} == {0, 1}
    for op in ops().values():
        for shape in (shape for shapes in op.shapes.values() for shape in shapes):
            op.check_sizes(op.call_of(**shape))


def test_a_set_returns_after_the_cache_is_full_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a set comes back, its followers have read 2.5 caches; 2 to 400 sets, in half of the
    free memory."""
    monkeypatch.setattr(timing, "cache_bytes", lambda _device: 1000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (50_000, 80_000))
    for num_bytes in (7, 250, 312, 313, 999, 2499, 2500, 2501, 9000):
        count = timing.sets_past_cache(num_bytes, CPU)
        assert (count - 1) * num_bytes >= 2500 > (count - 2) * num_bytes
    assert timing.sets_past_cache(0, CPU) == timing.sets_past_cache(1, CPU) == 400
    assert timing.sets_past_cache(100, CPU, 5000) == 5
    assert timing.sets_past_cache(100, CPU, 20_000) == 2
