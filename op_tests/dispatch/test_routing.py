"""Which kernel a call takes: every rule of the order, the record of untuned shapes, and what
a call and `RFOPS_LOG=dispatch` show of the choice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rfops
from rfops import cli
from rfops.dispatch import routing
from rfops.dispatch.heuristic import Columns
from rfops.dispatch.op import ops
from rfops.dispatch.time_model import TimedKernel
from rfops.dispatch.tuned_table import Query, Row, Table
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.gemm.mxfp8 import OP
from rfops.jit import BoundKernel, paths
from rfops.jit.launch import hip, launcher
from rfops.jit.launch.bind import Dim3
from rfops.triton import launch as triton_launch
from support.calls import decision, default_config, grouped_route, route
from support.process import python
from support.tables import Write

pytestmark = pytest.mark.usefixtures("own_misses")


def parse_config(backend: str, text: str, row: Row | None = None) -> Any:
    return OP.parse_config(OP.kernels[backend], text, row)


# ---------------------------------------------------------------- the order


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
