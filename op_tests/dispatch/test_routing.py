"""Which kernel a call takes: every rule of the order, the table's conflicts and faults, the record
of untuned shapes, what `rfops why` says, and the shipped table itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rfops
from rfops import cli
from rfops.dispatch import routing, tuned_table
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.op import ops
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.tuned_table import TABLES, Query, Row, Table
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.gemm.mxfp8 import OP
from rfops.jit import BoundKernel, log, paths, settings
from rfops.jit.launch import hip, launcher
from rfops.jit.launch.bind import Dim3
from rfops.triton import launch as triton_launch
from support.calls import default_config, grouped_route, route
from support.process import python
from support.tables import ROW, Write

COLUMNS = TABLES["gemm_mxfp8"].columns


@pytest.fixture(autouse=True)
def _own_misses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RFOPS_CONFIGS", raising=False)
    monkeypatch.delenv("RFOPS_RECORD_UNTUNED", raising=False)
    routing._misses.clear()
    routing._unfit.clear()
    tuned_table._load.cache_clear()
    yield
    routing._misses.clear()
    tuned_table._load.cache_clear()


def parse_config(backend: str, text: str, row: Row | None = None) -> Any:
    return OP.parse_config(OP.kernels[backend], text, row)


# ---------------------------------------------------------------- the order


def decision(m: int, n: int = 480, k: int = 640, **chip: object) -> tuple[str, str]:
    selected = route(m, n, k, **chip)  # type: ignore[arg-type]
    return selected.rule, selected.backend


def test_exact_row(overlay: Write) -> None:
    overlay({"config": "m_tiles=1 n_tiles=2 steps=1 waves=3 split=1"})
    selected = route(8, 480, 640)
    assert (selected.rule, selected.backend) == ("exact row", "mfma")
    assert selected.row is not None and "says: take mfma" in selected.why
    config = parse_config(selected.backend, selected.config, selected.row)
    assert (config.n_tiles, config.waves) == (2, 3)
    assert decision(8, n=481)[0] == decision(8, k=672)[0] == "envelope default"


def test_nearest_m_bucket(overlay: Write) -> None:
    """The least tabled m that is at least M and below 2 M."""
    overlay({"m": 8, "kernel": "gemv"}, {"m": 12}, {"m": 64})
    assert decision(8) == ("exact row", "gemv")
    assert decision(7) == decision(5) == ("nearest row", "gemv")
    assert decision(9) == ("nearest row", "mfma")
    assert decision(12) == ("exact row", "mfma")
    assert decision(4)[0] == "envelope default", "8 is not below 2 * 4"
    assert decision(33) == ("nearest row", "mfma")
    assert decision(32)[0] == decision(65)[0] == "envelope default"


def test_nearest_cu_num_of_the_same_architecture(overlay: Write) -> None:
    overlay(
        {"cu_num": 128, "kernel": "gemv"},
        {"cu_num": 250, "kernel": "triton"},
        {"arch": "gfx942", "cu_num": 256},
    )
    assert decision(8, cu_num=256) == ("nearest cu_num", "triton")
    assert decision(8, cu_num=120) == ("nearest cu_num", "gemv")
    assert decision(8, cu_num=250) == ("exact row", "triton")
    assert decision(7, cu_num=130) == ("nearest cu_num", "gemv"), "also of a bucket"


def test_an_own_bucket_comes_before_an_exact_row_of_another_chip(overlay: Write) -> None:
    overlay({"m": 8, "cu_num": 256}, {"m": 7, "cu_num": 255, "kernel": "gemv"})
    assert decision(7) == ("nearest row", "mfma")


@pytest.mark.parametrize("m", [1, 4, 5, 16, 17, 65, 2000])
def test_envelope_default(m: int, overlay: Write) -> None:
    """That of the shortest predicted time, until a row is near."""
    selected, first = route(m, 480, 640), OP.order(OP.call_of(M=m, N=480, K=640))[0]
    assert (selected.rule, selected.backend, selected.row) == ("envelope default", first, None)
    assert selected.config == "" and "no row" in selected.why
    overlay({"m": 2 * m - 1})
    assert decision(m) == ("exact row" if m == 1 else "nearest row", "mfma")


def test_envelope_comes_before_the_table(overlay: Write) -> None:
    """A row cannot make a kernel take what it does not take."""
    file = overlay(
        {"m": 20, "kernel": "gemv"},
        {"arch": "gfx942", "cu_num": 304},
        {"m": 9, "kernel": "gemv"},
        {"m": 24},
    )
    selected = route(20, 480, 640)
    assert (selected.rule, selected.backend) == ("nearest row", "mfma")
    assert f"{file.name}:2 is nearer, but gemv: M=20 is not within 1 to 16" in selected.why
    selected = route(8, 480, 640, arch="gfx942", cu_num=304)
    assert (selected.rule, selected.backend) == ("Triton", "triton")
    assert "no kernel for gfx942" in selected.refused["mfma"]
    selected = route(9, 480, 640, torch.float32)
    assert selected.backend == "mfma" and "writes bfloat16, not float32" in selected.refused["gemv"]


UNFIT = {  # the op, the row, the shape, what is said of the row and why
    "shape": (
        "gemm_mxfp8",
        {"m": 20, "kernel": "gemv"},
        {"m": 20, "n": 480, "k": 640},
        "gemv does not take m=20 n=480 k=640 on gfx950",
        "M=20 is not within 1 to 16",
    ),
    "config": (
        "fused_moe_mxfp4",
        {
            "m": 4,
            "d": 256,
            "i": 256,
            "e": 8,
            "k": 2,
            "kernel": "hip",
            "config": "m_tiles=4 up_n=4 up_k=1 down_n=4 down_k=1 ring=1",
        },
        {"m": 4, "d": 256, "i": 256, "e": 8, "k": 2},
        "hip m_tiles=4 up_n=4 up_k=1 down_n=4 down_k=1 ring=1 does not take m=4 d=256",
        "a ring wants all of MXFP4 weights shuffled",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_an_own_row_that_does_not_fit_is_said(
    case: str, overlay: Write, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a row, with its file, line and reason; `rfops why` says it each time."""
    name, row, shape, setting, reason = UNFIT[case]
    file, op = overlay(row, op=name), ops()[name]
    sizes = {size.upper(): value for size, value in shape.items()}
    for _ in range(2):
        decision = op.route(op.call_of("gfx950", **sizes))
        assert decision.row is None
        assert f"{file.name}:2 is for the shape, but" in decision.why and reason in decision.why
    (record,) = [r for r in caplog.records if "passed over" in r.getMessage()]
    said = record.getMessage()
    assert record.levelname == "WARNING"
    assert f"{file}, line 2: {setting}" in said and reason in said, said
    assert f"rfops tune {name}" in said
    options = [word for size, value in shape.items() for word in (f"--{size}", str(value))]
    assert cli.main(["why", name, *options, "--arch", "gfx950"]) == 0
    shown = capsys.readouterr().out
    assert f"{file.name}:2 is for the shape, but" in shown and reason in shown


def test_a_shipped_row_holds_where_an_own_one_does_not_fit(
    overlay: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of one key: the user's comes first, and the shipped one takes the calls that it does
    not."""
    key = {"cu_num": 256, "n": 2304, "k": 6144}
    overlay({**key, "m": 16, "kernel": "gemv"}, {**key, "m": 32, "kernel": "gemv"})
    selected = route(16, 2304, 6144)
    assert selected.row is not None and selected.row.is_own and selected.backend == "gemv"
    selected = route(32, 2304, 6144)
    assert selected.row is not None and not selected.row.is_own
    assert (selected.rule, selected.backend) == ("exact row", "mfma")
    (record,) = [r for r in caplog.records if "passed over" in r.getMessage()]
    assert "M=32 is not within 1 to 16" in record.getMessage()


def test_an_own_row_of_a_kernels_table_that_does_not_fit_is_said(
    overlay: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """gfx942 has no scaled matrix instruction; a workspace above 2^30 elements is too large."""
    scaled = "method=scaled block_m=16 block_n=16 block_k=128"
    expand = "method=expand block_m=64 block_n=64 block_k=64"
    key, triton = {"arch": "gfx942", "cu_num": 304, "kernel": "triton"}, OP.kernels["triton"]
    file = overlay(
        {**key, "m": 16, "n": "", "k": "", "config": scaled},
        {**key, "m": 4096, "n": "", "k": "", "config": expand},
        op="gemm_mxfp8_triton",
    )
    for _ in range(2):
        triton.own_row(OP.call_of("gfx942", M=16, N=480, K=640))
        row = triton.own_row(OP.call_of("gfx942", M=4096, N=1 << 18, K=8192))
        assert not row.is_own
    said = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(said) == 2 and all("`rfops tune gemm_mxfp8`" in text for text in said), said
    assert f"{file}, line 2: triton {scaled} does not take m=16 n=480 k=640 on gfx942" in said[0]
    assert f"{file}, line 3" in said[1] and "workspace of 2181038080 elements" in said[1]


SLOW = "m_tiles=1 n_tiles=1 steps=1 waves=1 split=1"  # a wave per 16 columns of a long K


@pytest.mark.parametrize(
    ("m", "origin", "is_own", "holds"),
    [
        (15, "estimated", False, False),
        (16, "estimated", False, True),  # the row's own shape
        (15, "measured", False, True),
        (15, "published", False, True),
        (15, "estimated", True, True),
    ],
)
def test_the_nearest_row_holds_while_the_model_does_not_contradict(
    m: int, origin: str, is_own: bool, holds: bool, tmp_path: Path
) -> None:
    """An estimated row of another shape, whose variant is predicted to take over twice as long as
    the choice without it, is passed over, and the decision says so."""
    op = ops()["gemm_afp4wfp4"]
    assert op.tuned is not None and op.time_model is not None
    file = (tmp_path if is_own else paths.CONFIGS) / "gemm_afp4wfp4.csv"
    sizes, names = (16, 4096, 8192), op.tuned.names
    row = Row("gfx950", 256, names, sizes, "stream", SLOW, (), origin, "a test", file, 2)
    selector = routing.KernelSelector(op.tuned, "gfx950", 256, Table(op.tuned, {file: [row]}))
    c = op.call_of("gfx950", M=m, N=4096, K=8192)
    stream: Any = op.kernels["stream"]
    assert op.time_model.ratio(c, stream, op.parse_config(stream, SLOW)) > 2
    selected = op.route(c, selector)
    assert (selected.row is row) == holds, selected
    if not holds:
        assert selected.rule == "envelope default"
        assert f"{file.name}:2 is for the shape, but stream {SLOW}: predicted" in selected.why


def test_a_row_holds_whose_variant_the_model_excludes() -> None:
    """Sixteen workgroups along K, where tiles fill the chip without: no verdict."""
    op = ops()["gemm_a8w8_blockscale"]
    model, staged = op.time_model, op.kernels["staged"]
    assert model is not None and isinstance(staged, TimedKernel) and staged.Config is not None
    c = op.call_of("gfx942", M=4096, N=7168, K=7168)
    config = staged.Config(64, 64, split=16)
    (us,) = model.predict([staged], [Columns([config])], model.like(c))[1]
    assert us == float("inf") and model.ratio(c, staged, config) == 1.0


@pytest.mark.parametrize("name", sorted(n for n, op in ops().items() if op.time_model and op.tuned))
def test_no_nearest_row_is_predicted_to_be_much_slower_than_the_choice(name: str) -> None:
    """Shipped rows, for calls with as many rows of x as half of theirs and a few more, down to
    those that the row of the very shape is for."""
    op = ops()[name]
    assert op.tuned is not None and op.time_model is not None
    rows = [r for r in op.tuned.load().rows if r.origin == "estimated" and "M" in op.table]
    for row in rows[:: max(1, len(rows) // 25)]:
        sizes = {n: s for n, s in zip(op.table, row.sizes, strict=True) if s is not None}
        if row.arch not in ("gfx942", "gfx950") or sizes["M"] < 3:
            continue
        c = op.call_of(row.arch, row.cu_num, **{**sizes, "M": sizes["M"] // 2 + 1})
        selected = op.route(c)
        if selected.rule == "nearest row" and selected.row and selected.row.origin == "estimated":
            kernel: Any = op.kernels[selected.backend]
            config = op.parse_config(kernel, selected.config, selected.row)
            assert op.time_model.ratio(c, kernel, config) <= op.time_model.max_row_ratio, str(c)


@pytest.mark.parametrize(
    ("ratio", "row_ratio", "holds"),
    [
        (1.05, 1.0, True),  # the choice is hardly quicker, as predicted
        (1.2, 1.18, True),  # predicted to lose at the row's own shape too, where it was the best
        (1.2, 1.0, False),  # what the row won with does not reach this shape
        (1.2, 0.7, False),
        (1.5, 1.5, False),  # further than a model's error goes
    ],
)
def test_a_row_holds_near_it_unless_it_is_predicted_to_lose_more_than_at_its_shape(
    ratio: float, row_ratio: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = ops()["gemm_a8w8_blockscale"]
    assert op.tuned is not None and op.time_model is not None
    file, config = paths.CONFIGS / "gemm_a8w8_blockscale.csv", "m=128 n=128 split=1 group_m=4"
    shape = (1024, 7168, 2304)
    row = Row("gfx942", 304, op.tuned.names, shape, "staged", config, (), "estimated", "t", file, 2)
    selector = routing.KernelSelector(op.tuned, "gfx942", 304, Table(op.tuned, {file: [row]}))
    monkeypatch.setattr(op.time_model, "ratio", lambda c, *_: row_ratio if c.M == 1024 else ratio)
    selected = op.route(op.call_of("gfx942", M=700, N=7168, K=2304), selector)
    assert (selected.row is row) == holds, selected
    if not holds:
        said = f"predicted to take {ratio:.2f} times as long as the choice without a row"
        assert f"{said}, {row_ratio:.2f} times at the row's own shape" in selected.why


def test_a_row_of_mla_is_compared_at_its_own_sequences() -> None:
    """Twice the sequences and as many tokens each: four query rows for each."""
    op = ops()["mla_decode"]
    assert op.time_model is not None
    c = op.call_of("gfx942", B=4, H=16, S=4096, qo_len=2)
    resized = op.time_model.resized(c, {"B": 8, "S": 8192})
    assert (c.T, resized.B, resized.T, resized.S) == (8, 8, 16, 8192)


def test_an_own_row_that_fits_is_not_spoken_of(
    overlay: Write, caplog: pytest.LogCaptureFixture
) -> None:
    overlay({"m": 20})
    assert decision(17) == ("nearest row", "mfma")
    assert not caplog.records


def test_a_row_says_triton(overlay: Write) -> None:
    overlay(
        {"kernel": "triton"},
        {
            "m": 16,
            "kernel": "triton",
            "config": "method=scaled block_m=16 block_n=32 block_k=256 splits=2",
        },
    )
    selected = route(8, 480, 640)
    assert (selected.rule, selected.backend, selected.config) == ("exact row", "triton", "")
    selected = route(16, 480, 640)
    config = parse_config(selected.backend, selected.config, selected.row)
    assert (config.method, config.block_n, config.splits) == ("scaled", 32, 2)


def test_torch_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launch, "missing", lambda: "Triton is not installed")
    selected = route(20, 480, 640, arch="gfx942", cu_num=304)
    assert (selected.rule, selected.backend) == ("torch", "torch")
    assert selected.why.endswith("triton: Triton is not installed")
    assert decision(2000) == ("envelope default", "mfma")


def test_beyond_2_gib() -> None:
    """N * K of 2^31 bytes: the GEMV's offsets end there, the others rebase."""
    n = 2**31 // 6144 + 1
    assert "2 GiB" in route(1, n, 6144).refused["gemv"]
    assert route(1, n, 6144).backend in ("mfma", "triton")
    assert decision(1, n=65, k=2**25) == ("envelope default", "triton")
    assert OP.kernels["gemv"].unsupported_reason(OP.call_of(M=1, N=n - 1, K=6144)) is None


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_nvidia_takes_triton(arch: str) -> None:
    selected = route(1, 2304, 6144, arch=arch, cu_num=132)
    assert (selected.rule, selected.backend) == ("Triton", "triton")
    assert f"no kernel for {arch}" in selected.refused["gemv"]


def test_chip_of_an_nvidia_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    assert routing.chip(torch.device("cuda", 0)) == ("sm_90", 132)


def test_chip_of_the_virtual_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part's compute units, unless that is one of another architecture."""
    results = {}
    for arch, part in (
        ("gfx942", ""),
        ("gfx942", "MI308X"),
        ("gfx942", "MI300A"),
        ("gfx950", "MI308X"),
        ("gfx950", "MI350X"),
    ):
        monkeypatch.setenv("RFOPS_VGPU_ARCH", arch)
        monkeypatch.setenv("RFOPS_VGPU_PART", part)
        results[arch, part] = routing.chip(torch.device("cpu"))
    assert [units for _, units in results.values()] == [304, 80, 228, 256, 256]
    assert [arch for arch, _ in results.values()] == [arch for arch, _ in results]


def test_chip_of_an_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features behind the name choose no kernel; a partition has fewer CUs."""
    name = "gfx950:sramecc+:xnack-"
    properties = SimpleNamespace(multi_processor_count=128, gcnArchName=name)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    hip._gpu_arch.cache_clear()
    assert routing.chip(torch.device("cuda", 0)) == ("gfx950", 128)
    hip._gpu_arch.cache_clear()


# ---------------------------------------------------------------- grouped


def grouped(m: int, n: int, k: int, e: int, a_div: int, weight: bool) -> tuple[str, str]:
    selected = grouped_route(m, n, k, e, 4, a_div, weight)
    return selected.rule, selected.backend


def test_grouped_rows_are_keyed_on_experts_division_and_weight(overlay: Write) -> None:
    common = {"kernel": "moe", "m": 100, "mul_weight_by": 0}
    overlay(
        {**common, "e": 64, "a_div": 4},
        {**common, "e": 200, "a_div": 4, "kernel": "triton"},
        {**common, "a_div": 2},
        op="grouped_gemm_mxfp8",
    )
    assert grouped(100, 480, 640, 64, 4, False) == ("exact row", "moe")
    assert grouped(90, 480, 640, 128, 4, False) == ("nearest row", "moe")
    assert grouped(100, 480, 640, 256, 4, False) == ("exact row", "triton"), "the larger e holds"
    for other in ((63, 4, False), (64, 1, False), (64, 4, True)):
        assert not grouped(100, 480, 640, *other)[0].endswith(" row")
    assert grouped(100, 480, 640, 3, 2, False) == ("exact row", "moe"), "no e in the row: any"


# ---------------------------------------------------------------- conflicts


ORIGINS = ["published", "estimated", "measured"]


@pytest.mark.parametrize("first", ORIGINS)
@pytest.mark.parametrize("second", ORIGINS)
def test_conflicts(
    first: str,
    second: str,
    overlay: Write,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The better origin holds, then the later line; reported once, nothing raised or written."""
    file = overlay(
        {"origin": first, "kernel": "gemv"}, {"m": 2}, {"origin": second, "kernel": "triton"}
    )
    previous, when = file.read_bytes(), file.stat().st_mtime_ns
    later = ORIGINS.index(second) >= ORIGINS.index(first)
    monkeypatch.setattr(log.get(), "propagate", True)
    assert decision(8) == ("exact row", "triton" if later else "gemv")
    table = TABLES["gemm_mxfp8"].load()
    (conflict,) = table.conflicts
    rule = "the later line" if first == second else "the better origin"
    held, dropped = (4, 2) if later else (2, 4)
    assert f"line {held} holds, by {rule}" in conflict and f"line {dropped} (" in conflict
    assert sum("decide differently" in message for message in caplog.messages) == 1
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (previous, when)


def test_rows_that_agree_are_no_conflict(overlay: Write) -> None:
    overlay({"us": 3}, {"us": 4, "origin": "measured"})
    assert TABLES["gemm_mxfp8"].load().conflicts == ()
    selected = route(8, 480, 640)
    assert selected.row is not None and selected.row.origin == "measured"


def test_the_users_rows_replace_shipped_ones(overlay: Write) -> None:
    assert decision(1, 2304, 6144) == ("exact row", "gemv")
    overlay({"m": 1, "n": 2304, "k": 6144, "kernel": "mfma"})
    assert decision(1, 2304, 6144) == ("exact row", "mfma")
    assert TABLES["gemm_mxfp8"].load().conflicts == ()
    assert decision(2, 2304, 6144) == ("exact row", "gemv"), "the other shipped rows stay"


# ---------------------------------------------------------------- faults of a file


def line(**changes: object) -> str:
    return ",".join(str({**ROW, **changes}.get(column, "")) for column in COLUMNS) + "\n"


FAULTS = {
    "arch": (line(arch="mi300"), "line 2, column arch: expected gfx950"),
    "cu_num": (line(cu_num="many"), "line 2, column cu_num: expected a whole number.*'many'"),
    "m is 0": (line(m=0), "line 2, column m: expected a whole number, 1 or more, got '0'"),
    "m is missing": (line(m=""), "line 2, column m: expected a whole number"),
    "m of many digits": (line(m="9" * 5000), "line 2, column m: expected a whole number"),
    "n is negative": (line(n=-4), "line 2, column n: expected"),
    "k is a fraction": (line() + line(k=6.5), "line 3, column k: expected .* got '6.5'"),
    "kernel": (line(kernel="moe"), "line 2, column kernel: expected one of gemv, mfma, triton"),
    "no kernel": (line(kernel=""), "line 2, column kernel: expected one of gemv, mfma, triton"),
    "a config of no kernel": (
        line(kernel="", config="rows=4", origin="published"),
        "line 2, column kernel: expected one of gemv, mfma, triton, got ''",
    ),
    "us": (line(us="fast"), "line 2, column us: expected numbers of 0 or more, .*'fast'"),
    "us is nan": (line(us="nan"), "line 2, column us: expected numbers of 0 or more"),
    "a figure": (line(figures="triton_us"), "line 2, column figures: .* each as name=value"),
    "origin": (line(origin="guessed"), "line 2, column origin: expected one of measured, est"),
    "source": (line(source=""), "line 2, column source: expected where the row comes from"),
    "few cells": ("gfx950,256\n", "line 2, column m: expected 11 cells .* it has 2"),
    "many cells": (line().rstrip("\n") + ",1\n", "line 2, column source: expected 11 cells .* 12"),
    "a torn line": (line() + 'gfx950,"25', "line 2: cannot be read: unexpected end"),
    "not text": (line() + "\0\xff", "line 2.*|line 3.*"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_name_file_line_and_column(case: str, overlay: Write) -> None:
    text, message = FAULTS[case]
    file = overlay(text)
    with pytest.raises(rfops.ConfigError, match=rf"^{file}, (after )?{message}"):
        route(8, 480, 640)


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("arch,cu_num", "config"),
        (",".join(COLUMNS) + ",color", "color"),
        (",".join(COLUMNS) + ",kernel", "kernel"),
    ],
)
def test_wrong_header(header: str, column: str, overlay: Write) -> None:
    file = overlay()
    file.write_text(header + "\n")
    with pytest.raises(rfops.ConfigError, match=f"line 1, column {column}: expected the header"):
        route(8, 480, 640)


GROUPED_ROW = {"m": 64, "n": 64, "k": 128, "mul_weight_by": 0, "kernel": "triton"}


def test_a_file_may_lack_columns_whose_cells_may_be_empty(overlay: Write) -> None:
    """As those that were written before the key had them: its rows hold for any size of them."""
    file = overlay(op="grouped_gemm_mxfp8")
    columns = [c for c in TABLES["grouped_gemm_mxfp8"].columns if c not in ("e", "a_div")]
    row = {**ROW, **GROUPED_ROW}
    file.write_text(f"{','.join(columns)}\n{','.join(str(row.get(c, '')) for c in columns)}\n")
    for experts, a_div in ((8, 1), (300, 4)):
        selected = grouped_route(64, 64, 128, experts, 4, a_div)
        assert selected.row is not None and selected.row.sizes == (64, 64, 128, None, None, 0)
    file.write_text(file.read_text().replace("n,k", "k"))
    tuned_table._load.cache_clear()
    with pytest.raises(rfops.ConfigError, match=r"line 1, column n: expected the header arch,cu"):
        grouped_route(64, 64, 128, 8, 4, 1)


def test_an_empty_cell_of_a_users_row_replaces_shipped_rows_of_any_size(
    overlay: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's table from before the key had a column stands above rows that have it; a row of the
    user's own with the size comes before one without."""
    overlay({**GROUPED_ROW, "config": "", "a_div": 2}, op="grouped_gemm_mxfp8")
    monkeypatch.setattr(paths, "CONFIGS", Path(settings.path("RFOPS_CONFIGS") or ""))
    monkeypatch.delenv("RFOPS_CONFIGS")
    shipped = paths.CONFIGS / "grouped_gemm_mxfp8.csv"

    def line_of(a_div: int) -> str:
        tuned_table._load.cache_clear()
        row = grouped_route(64, 64, 128, 8, 4, a_div).row
        return "" if row is None else f"{row.file.parent.name} {row.sizes[4]}"

    assert line_of(2) == f"{shipped.parent.name} 2"
    own = shipped.parent / "own"
    own.mkdir()
    for rows, expected in (
        ([{}], "own None"),
        ([{}, {"a_div": 2}], "own 2"),
        ([{"m": 80}], f"{shipped.parent.name} 2"),
    ):
        lines = [{**ROW, **GROUPED_ROW, **row} for row in rows]
        columns = TABLES["grouped_gemm_mxfp8"].columns
        text = "".join(",".join(str(one.get(c, "")) for c in columns) + "\n" for one in lines)
        (own / shipped.name).write_text(f"{','.join(columns)}\n{text}")
        monkeypatch.setenv("RFOPS_CONFIGS", str(own))
        assert line_of(2) == expected


def test_empty_lines_are_nothing(overlay: Write) -> None:
    overlay("\n" + line() + "\n\n")
    selected = route(8, 480, 640)
    assert selected.row is not None and selected.row.line == 3


def test_columns_may_stand_in_any_order(overlay: Write) -> None:
    file = overlay()
    names = list(reversed(COLUMNS))
    file.write_text(",".join(names) + "\n" + ",".join(str(ROW.get(c, "")) for c in names) + "\n")
    assert decision(8) == ("exact row", "mfma")


def test_bytes_that_are_not_utf8(overlay: Write) -> None:
    file = overlay(line())
    file.write_bytes(file.read_bytes() + b"\xff\xfe")
    with pytest.raises(rfops.ConfigError, match=rf"^{file}, after line \d+: cannot be read"):
        route(8, 480, 640)


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_CONFIGS", "/absent")
    with pytest.raises(rfops.ConfigError, match="RFOPS_CONFIGS=/absent: expected a folder"):
        route(8, 480, 640)


@pytest.mark.parametrize("config", ["lanes=17 rows=1 steps=1 waves=1", "lanes=64", "fast", "a=1"])
def test_a_config_that_the_kernel_does_not_have(config: str, overlay: Write) -> None:
    """Found when the row is used, with its place."""
    file = overlay({"kernel": "gemv", "config": config})
    with pytest.raises(rfops.ConfigError, match=f"^{file}, line 2, column config: expected lanes="):
        route(8, 480, 640)


def test_a_corrupt_table_is_no_error_of_the_import(overlay: Write) -> None:
    file = overlay("nonsense\n")
    code = (
        "import torch, rfops\n"
        "x, s = rfops.quant_mxfp8(torch.ones(2, 64))\n"
        "try: rfops.gemm_mxfp8(x, x, s, s)\n"
        "except rfops.ConfigError as e: print(e)"
    )
    completed = python(code, check=True)
    assert f"{file}, line 2, column cu_num" in completed.stdout


# ---------------------------------------------------------------- untuned shapes


def test_misses_are_counted(overlay: Write) -> None:
    overlay({}, {"cu_num": 128, "m": 3})
    for m in (8, 7, 9, 9, 17, 3):
        route(m, 480, 640)
    route(8, 480, 640, arch="gfx942", cu_num=304)
    counts = {dict(query.sizes)["m"]: count for query, count in routing.misses().items()}
    assert counts == {9: 2, 17: 1, 3: 1}, "an exact row and a bucket of this chip are no misses"


def test_untuned_shapes_are_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From several processes at once."""
    file = tmp_path / "untuned.csv"
    code = (
        "from rfops.gemm.mxfp8 import OP\n"
        "for m in range(1, 60): OP.route(OP.call_of(M=m, N=480, K=640))"
    )
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: python(code, RFOPS_RECORD_UNTUNED=str(file)), range(2))
        assert [run.returncode for run in runs] == [0, 0]
    queries = routing.read_untuned(file)
    assert sorted(dict(query.sizes)["m"] for query in queries) == list(range(1, 60))
    assert queries[0] == Query("gemm_mxfp8", "gfx950", 256, (("m", 1), ("n", 480), ("k", 640)))
    monkeypatch.setenv("RFOPS_RECORD_UNTUNED", str(file))
    grouped(3, 480, 640, 8, 4, False)
    assert routing.read_untuned(file)[-1].op == "grouped_gemm_mxfp8"


def test_a_record_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFOPS_RECORD_UNTUNED", str(tmp_path / "absent" / "file.csv"))
    assert decision(2)[0] == "envelope default"
    other = tmp_path / "not_utf8.csv"
    other.write_bytes(b"\xff\xfe\n")
    monkeypatch.setenv("RFOPS_RECORD_UNTUNED", str(other))
    assert decision(3)[0] == "envelope default"
    assert other.read_bytes() == b"\xff\xfe\n"


# ---------------------------------------------------------------- why, doctor


def why(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["why", *arguments]) == 0
    return capsys.readouterr().out


def test_why(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--m", "7", "--n", "2304", "--k", "6144", "--arch", "gfx950")
    out = why(capsys, "gemm_mxfp8", *shape)
    for text in (
        "gemm_mxfp8 m=7 n=2304 k=6144 on gfx950 with 256 CUs",
        "decision    mfma, a HIP kernel",
        "config      m_tiles=1 n_tiles=1 steps=4 waves=12 split=1",
        "rule        nearest row",
        "(published) says: take mfma",
        "m=8 n=2304 k=6144: mfma m_tiles=1 n_tiles=1 steps=4 waves=12 split=1, speedup 2.49; "
        "published, aiter pull",
        "not gemv    the row names mfma",
        "not triton  the row names mfma",
    ):
        assert text in out, out


def test_why_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--m", "20", "--n", "992", "--k", "4096", "--e", "8", "--top-k", "4", "--a-div", "4")
    out = why(capsys, "grouped_gemm_mxfp8", *shape)
    assert "m=20 n=992 k=4096 e=8 a_div=4 mul_weight_by=0" in out
    assert "moe" in out and "triton" in out
    assert "none for this shape" in out


def test_why_of_routed_experts(capsys: pytest.CaptureFixture[str], overlay: Write) -> None:
    """Of 257 experts one is shared, which counts among the eight and one that a token has."""
    sizes = {"m": 16, "d": 7168, "i": 256, "e": 257, "k": 9, "r": 256}
    overlay({**sizes, "kernel": "hip"}, op="fused_moe_mxfp4")
    shape = (
        "--m",
        "16",
        "--d",
        "7168",
        "--i",
        "256",
        "--e",
        "257",
        "--w-layout",
        "16x16",
        "--scale-layout",
        "32x8",
    )
    out = why(capsys, "fused_moe_mxfp4", *shape, "--k", "8", "--r", "256")
    assert "rule        exact row" in out and "e=257 k=9 r=256: hip" in out, out
    assert "exact row" not in why(capsys, "fused_moe_mxfp4", *shape, "--k", "8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--m", "0", "--n", "1", "--k", "32"), "--m 0: expected 1 or more"),
        (
            ("--m", "1", "--n", "1", "--k", "33"),
            "K must be a positive multiple of 32, got K=33; pad",
        ),
        (("--m", "1", "--n", "1", "--k", "32", "--arch", "mi3"), "--arch mi3: expected gfx950"),
        (("--m", "1", "--n", "1", "--k", "32", "--arch", "gfx90a"), "say --cu-num too"),
    ],
)
def test_why_refuses(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["why", "gemm_mxfp8", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_why_of_an_unknown_op(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["why", "softmax"])
    assert stop.value.code == 2
    assert "invalid choice: 'softmax' (choose from" in capsys.readouterr().err


def test_doctor_shows_conflicts(overlay: Write, capsys: pytest.CaptureFixture[str]) -> None:
    overlay({"kernel": "gemv"}, {"kernel": "triton"})
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert "tuned table gemm_mxfp8: " in out and "1 conflicts" in out and "line 3 holds" in out
    overlay("nonsense\n")
    assert cli.main(["doctor"]) == 1
    assert "tuned table gemm_mxfp8: NOT readable: " in capsys.readouterr().out


# ---------------------------------------------------------------- the shipped table


SPEEDUPS = {  # (K, N): M = 1, 2, 4, 8, 16, 32, 64
    (6144, 2304): (3.64, 3.48, 2.88, 2.49, 2.52, 2.20, 1.72),
    (2048, 6144): (2.10, 2.10, 2.09, 2.09, 1.99, 1.63, 1.0),
    (6144, 1536): (3.34, 3.42, 3.43, 2.36, 2.45, 2.74, 2.41),
    (1536, 6144): (2.06, 2.08, 1.91, 2.13, 2.12, 2.12, 1.42),
}
ALL_M = (1, 2, 4, 8, 16, 32, 64)


def shipped(op: str = "gemm_mxfp8") -> Table:
    return TABLES[op].load()


def test_the_shipped_table_says_what_was_published() -> None:
    dense = {row.sizes: row for row in shipped().rows}
    assert len(dense) == 15 * 7
    for (k, n), speedups in SPEEDUPS.items():
        for m, speedup in zip(ALL_M, speedups, strict=True):
            assert dict(dense[m, n, k].figures)["speedup"] == speedup
    lost = {sizes for sizes, row in dense.items() if row.kernel == "triton"}
    assert lost == {(64, 9216, 6144), (64, 6144, 4096), (64, 6144, 3072)}
    won = {sizes[0]: row.kernel for sizes, row in dense.items() if sizes not in lost}
    assert won == {m: "gemv" if m <= 4 else "mfma" for m in ALL_M}


@pytest.mark.parametrize("name", TABLES)
def test_the_shipped_tables_are_sound(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No conflicts, no figure called measured without a device, and each row is what a call of its
    very sizes takes: nothing is passed over or warned of."""
    table, own = TABLES[name].load(), name.endswith("_triton")
    said = list(tuned_table.read(paths.CONFIGS / f"{name}.csv", name))  # what others publish, too
    assert said and table.conflicts == ()
    for row in table.rows:
        assert (row.origin == "measured") == ("NVIDIA H200" in row.source)
        assert row.origin != "measured" or (dict(row.figures)["us"] > 0 and row.arch == "sm_90")
        if not own:
            op = ops()[name]
            sizes = (1 if size is None else size for size in row.sizes)
            given = op.sizes_of_row(dict(zip(op.table, sizes, strict=True)))
            decision = op.route(op.call_of(row.arch, row.cu_num, **given, **LIKE.get(name, {})))
            assert (decision.backend, decision.config) == (row.kernel, row.config), row
            assert decision.row is row and decision.rule == "exact row"
    assert not caplog.records and not any(row.is_own for row in table.rows)


LIKE = {
    "grouped_gemm_mxfp8": {"top_k": 4},
    "fused_moe_mxfp4": {"w_layout": "16x16", "scale_layout": "32x8"},  # raw ones want more LDS
}


def test_every_file_is_a_table() -> None:
    models = {op.time_model.name for op in ops().values() if op.time_model}
    assert {file.stem for file in paths.CONFIGS.glob("*.csv")} == {*TABLES, *models}


def test_nearest_by_every_rule() -> None:
    """What a sign of the key lets hold, and which of several rows is nearest."""
    tuned = tuned_table.Tuned("t", ("A", "M", "K", "E", "F"), ("~", "+", "<=", ">=", "?"), ())

    def row(*sizes: int | None, arch: str = "sm_90", cu_num: int = 132) -> Row:
        return Row(arch, cu_num, tuned.sizes, sizes, "x", "", (), "measured", "", Path("t"), 1)

    def found(call: tuple[int, ...], *rows: Row, arch: str = "sm_90") -> list[object]:
        match = Table(tuned, {Path("t"): list(rows)}).find(arch, 132, call)
        return [rows.index(match.row), match.rule] if match else []

    call = (10, 10, 10, 10, 1)
    for sizes, holds in (
        ((10, 10, None, None, None), "exact row"),
        ((10, 10, 10, 10, 1), "exact row"),
        ((19, 10, 99, 1, 1), "nearest row"),
        ((6, 19, 10, 10, None), "nearest row"),
        ((20, 10, 10, 10, 1), None),
        ((5, 10, 10, 10, 1), None),
        ((10, 9, 10, 10, 1), None),
        ((10, 20, 10, 10, 1), None),
        ((10, 10, 9, 10, 1), None),
        ((10, 10, 10, 11, 1), None),
        ((10, 10, 10, 10, 2), None),
    ):
        assert found(call, row(*sizes)) == ([0, holds] if holds else []), sizes
    full, wide = (14, 12, 40, 5, 1), (10, 10, None, 10, 1)
    assert found(call, row(*wide), row(*full))[0] == 1, "fewer empty cells come first"
    assert found(call, row(*full), row(14, 12, 20, 5, 1))[0] == 1, "then the nearer"
    assert found(call, row(*call, cu_num=100), row(*full))[0] == 1, "before that the chip"
    assert found(call, row(*call, cu_num=130)) == [0, "nearest cu_num"]
    assert found(call, row(*call), arch="sm_100") == [0, "exact row"]
    assert found(call, row(*call), row(*full, arch="sm_100"), arch="sm_100")[0] == 1
    assert found(call, row(*call), arch="gfx950") == found(call, row(*call), arch="sm_80") == []


# ---------------------------------------------------------------- configs, supports


def test_configs_go_through_text() -> None:
    for backend in ("gemv", "mfma", "triton"):
        config = default_config(backend, 8, 2304, 6144, "gfx950")
        assert parse_config(backend, routing.config_text(config)) == config


def test_supports() -> None:
    supports = rfops.gemm_mxfp8.supports  # type: ignore[attr-defined]
    assert supports(arch="gfx950", dtype=torch.float32, shape=(100, 1, 32))
    assert supports(arch="gfx942") and supports(arch="sm_90")
    assert not supports(arch="gfx950", shape=(1, 16, 33))
    assert not supports(arch="gfx950", dtype=torch.int8) and not supports(arch="avx512")
    assert supports(arch="gfx950", shape=(16, 16, 32), backend="gemv")
    assert not supports(arch="gfx950", shape=(17, 16, 32), backend="gemv")
    assert supports(arch="gfx950", shape=(17, 16, 32), backend="mfma")
    assert not supports(arch="gfx942", backend="mfma")
    assert not supports(arch="gfx950", dtype=torch.float16, backend="gemv")
    with pytest.raises(ValueError, match="backend must be one of"):
        supports(arch="gfx950", backend="cuda")


def test_a_row_takes_effect_in_a_call(
    overlay: Write,
    monkeypatch: pytest.MonkeyPatch,
    gfx950: torch.device,
    request: pytest.FixtureRequest,
) -> None:
    """The kernel that ran is the row's: its grid has a workgroup for each row of w."""
    monkeypatch.setattr(OP, "plans", OP.plans.new_table())
    config = routing.config_text(GemvConfig(lanes=64, rows=1, steps=1, waves=2))
    overlay({"m": 1, "n": 24, "k": 64, "kernel": "gemv", "config": config})
    launches: list[tuple[object, ...]] = []
    x, x_scale = (t.to(gfx950) for t in rfops.quant_mxfp8(torch.randn(1, 64)))
    w, w_scale = (t.to(gfx950) for t in rfops.quant_mxfp8(torch.randn(24, 64)))
    launch = BoundKernel.launch

    def spy(self: BoundKernel, grid: Dim3, block: Dim3, *more: object) -> None:
        launches.append((self.name, grid, block))
        launch(self, grid, block, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(BoundKernel, "launch", spy)
    launcher.slow_down(1)  # the native launcher too goes through the class
    request.addfinalizer(lambda: launcher.slow_down(-1))
    rfops.gemm_mxfp8(x, w, x_scale, w_scale)
    assert launches == [("mxfp8_gemv", (24, 1, 1), (128, 1, 1))]


def test_routes_are_said_once_when_asked() -> None:
    """RFOPS_LOG=dispatch: each route of a run on stderr, and once; nothing of it by default."""
    code = """
import torch, rfops
w, w_scale = rfops.quant_mxfp8(torch.ones(16, 64))
for m in (1, 1, 3):
    x, x_scale = rfops.quant_mxfp8(torch.ones(m, 64))
    for dtype in (torch.bfloat16, torch.bfloat16):
        rfops.gemm_mxfp8(x, w, x_scale, w_scale, dtype)
        rfops.gemm_mxfp8(x, w, x_scale, w_scale, dtype, torch.empty(m, 16, dtype=dtype))
"""
    said = {}
    for level in ("dispatch", "info"):
        completed = python(code, check=True, RFOPS_LOG=level)
        lines = [line for line in completed.stderr.splitlines() if "by the rule" in line]
        said[level] = [line for line in lines if line.startswith("rfops: gemm_mxfp8")]
        assert len(lines) - len(said[level]) == 3 * (level == "dispatch"), "of quant_mxfp8"
    start = "rfops: gemm_mxfp8 M={} N=16 K=64 on gfx950: {}, by the rule 'envelope default'"
    assert len(said["dispatch"]) == 2, said
    for line, m in zip(said["dispatch"], (1, 3), strict=True):
        assert line.startswith(start.format(m, route(m, 16, 64).backend)), said
    assert not said["info"]
