"""hipBLASLt's algorithms: chosen, kept by name and library, found again. Against a library of
scripted algorithms that is built from hipBLASLt's declarations (ours, or with RFOPS_TEST_BLASLT
AMD's own headers): no AMD GPU has run any of it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rfops
from rfops.cli import main
from rfops.gemm import blaslt
from rfops.gemm.blaslt import Library, Linear, Timed
from rfops.jit import ConfigError, HipError
from rfops.jit.build import toolchain
from support import OP_TESTS

HERE = OP_TESTS / "gemm" / "blaslt"
F32 = torch.float32
DENSE = Linear(((3, 8, 16),), F32)
GROUP = Linear(((3, 8, 16), (1, 4, 16), (5, 8, 8)), F32, is_grouped=True)
HEADERS = Path(os.environ.get("RFOPS_TEST_BLASLT") or HERE / "include")
_PARTS = re.findall(
    r"#define HIPBLASLT_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)",
    "".join(file.read_text() for file in sorted((HEADERS / "hipblaslt").glob("hipblaslt*.h"))),
)
VERSION = sum(scale * int(part) for scale, part in zip((100000, 100, 1), _PARTS, strict=True))
SCRIPT = f"""
version {VERSION}
revision abc123
algo slow us=9
algo quick us=3
algo refuses us=1 supported=0
algo greedy us=1 workspace=1000000000
algo fails us=1 fails=1
algo lies us=1 wrong=1
algo quick_dense us=2 grouped=0
algo wants us=8 workspace=4096 dense=0
"""


@pytest.fixture(scope="session")
def include() -> list[Path]:
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.origin is not None
    hip = Path(spec.origin).parent / "backends" / "amd" / "include"
    return [HEADERS, hip]


@pytest.fixture(scope="session")  # two copies in one process would share their symbols
def fake(include: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fake") / "libhipblaslt.so"
    words = [
        *toolchain.host_toolchain().argv,
        "-std=c++17",
        "-w",
        "-fPIC",
        "-shared",
        "-o",
        str(file),
        "-D__HIP_PLATFORM_AMD__=1",
        *(f"-I{f}" for f in include),
        str(HERE / "fake_blaslt.cpp"),
    ]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[:3000]
    return file


Opened = Callable[..., Library]


@pytest.fixture
def opened(
    fake: Path, include: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Opened:
    def open_(script: str = SCRIPT, gfx: str = "gfx942") -> Library:
        (tmp_path / "script").write_text(script, encoding="utf-8")
        monkeypatch.setenv("RFOPS_TEST_BLASLT_SCRIPT", str(tmp_path / "script"))
        clock = ctypes.CDLL(str(fake)).fake_clock
        clock.restype = ctypes.c_double

        def timed(run: Callable[[], None], runs: int) -> list[float]:
            times = []
            for _ in range(runs):
                previous = clock()
                run()
                times.append(clock() - previous)
            return times

        return Library(fake, include, gfx, timed)

    return open_


def tensors(of: Linear) -> tuple[list[torch.Tensor], ...]:
    return blaslt._tensors(of, "cpu")


@pytest.mark.parametrize(
    ("of", "order"),
    [(DENSE, ["quick_dense", "quick", "slow"]), (GROUP, ["quick", "wants", "slow"])],
)
def test_the_best_first_and_why_not_the_others(
    opened: Opened, of: Linear, order: list[str]
) -> None:
    """Of one that wants workspace each run is given it; times are medians by the script."""
    tuned = opened().tune(of, runs=3, device="cpu")
    assert [item.solution for item in tuned.timed] == order
    assert tuned.timed[0].us == (2.0 if of is DENSE else 3.0)
    assert set(tuned.refused) == {"refuses", "greedy", "fails", "lies"}
    assert "status 3" in tuned.refused["refuses"] or "status" in tuned.refused["refuses"]
    assert "953 MiB of workspace, at most 128" in tuned.refused["greedy"]
    assert "hipblaslt_run" in tuned.refused["fails"]
    assert "gives a wrong result: relative L2 error" in tuned.refused["lies"]


def test_a_pin_is_of_a_library_and_an_architecture(opened: Opened, tmp_path: Path) -> None:
    table = tmp_path / "out" / "blaslt.csv"
    library = opened()
    for of in (DENSE, GROUP):
        blaslt.pin(table, of, library, library.tune(of, 1, "cpu").timed[0], "a test")
    assert library.version == f"{VERSION}-abc123"
    assert library.pin_of(DENSE, table) == "quick_dense" and library.pin_of(GROUP, table) == "quick"
    others = [
        opened(SCRIPT.replace(str(VERSION), str(VERSION + 1))),
        opened(SCRIPT.replace("abc", "abd")),
        opened(gfx="gfx950"),
    ]
    for other in others:
        with pytest.raises(ConfigError, match=f"it has those of: {VERSION}-abc123 on gfx942"):
            other.pin_of(DENSE, table)
    blaslt.pin(table, DENSE, others[0], Timed("new", 1.0), "a test")
    blaslt.pin(table, DENSE, library, Timed("slow", 9.0), "a test")  # takes the older one's place
    assert others[0].pin_of(DENSE, table) == "new" and library.pin_of(DENSE, table) == "slow"
    assert len(blaslt.read(table)) == 3
    with pytest.raises(ConfigError, match=r"no solution for dense 4x8x16 f32 .* of: none"):
        library.pin_of(Linear(((4, 8, 16),), F32), table)


@pytest.mark.parametrize("of", [DENSE, GROUP])
def test_a_pinned_problem_runs(opened: Opened, of: Linear, tmp_path: Path) -> None:
    """By its name, though its number is another one in a library that lists them otherwise."""
    table = tmp_path / "blaslt.csv"
    blaslt.pin(table, of, opened(), Timed("quick", 3.0), "a test")
    script = SCRIPT.splitlines()
    repeated = opened("\n".join([*script[:3], *reversed(script[3:])]))
    x, w, out = tensors(of)
    repeated.pinned(of, table, x, w, out).run()
    for a, b, y in zip(x, w, out, strict=True):
        torch.testing.assert_close(y, a @ b.T)
    blaslt.pin(table, of, repeated, Timed("gone", 3.0), "a test")
    with pytest.raises(ConfigError, match=f"{VERSION}-abc123 has no solution gone"):
        repeated.pinned(of, table, x, w, out)


def test_sizes_of_a_group_from_the_device(opened: Opened) -> None:
    """RadeonFlow reads them back to the host: a run takes fewer rows than it was prepared for."""
    x, w, out = tensors(GROUP)
    for result in out:
        result.fill_(7.0)
    problem = opened().problem(GROUP, x, w, out)
    problem.select("quick")
    arguments = problem.arguments()
    words = arguments.view(torch.int32)
    assert words[:, :4].tolist() == [[n, m, 1, k] for m, n, k in GROUP.sizes]
    words[0, 1], words[2, 1] = 2, 0  # rows of x
    problem.run_device(arguments)
    torch.testing.assert_close(out[0][:2], x[0][:2] @ w[0].T)
    torch.testing.assert_close(out[1], x[1] @ w[1].T)
    assert (out[0][2:] == 7).all() and (out[2] == 7).all()
    for _ in range(2):  # each initialises the problem for its own arguments
        problem.run()
        torch.testing.assert_close(out[0], x[0] @ w[0].T)
        out[0].fill_(7.0)
        problem.run_device(arguments)
        assert (out[0][2:] == 7).all()
    with pytest.raises(HipError, match="hipblaslt_run"):
        opened().problem(GROUP, x, w, out).run()  # nothing is selected
    with pytest.raises(HipError, match="hipblaslt_arguments"):
        opened().problem(DENSE, *tensors(DENSE)).arguments()


def test_nothing_is_left(opened: Opened, fake: Path) -> None:
    library = opened()
    objects = ctypes.CDLL(str(fake)).fake_objects
    previous = objects()
    problem = library.problem(GROUP, *tensors(GROUP))
    assert objects() == previous + 5 * 3
    del problem
    assert objects() == previous


def test_refusals(opened: Opened, include: list[Path], tmp_path: Path) -> None:
    for make, says in (
        (lambda: Linear(((1, 2, 3),), torch.float64), "dtype must be one of f32, f16, bf16"),
        (lambda: Linear(((1, 0, 3),), F32), "sizes must be M N K of 1 or more"),
        (lambda: Linear(((1, 2, 3), (1, 2, 3)), F32), "2 problems are a group"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
    x, w, out = tensors(DENSE)
    with pytest.raises(ValueError, match=r"expected contiguous f32 of \[\(3, 16\)\]"):
        opened().problem(DENSE, [x[0].T.contiguous().T], w, out)
    with pytest.raises(HipError, match="hipBLASLt's status"):  # the fake has f32 alone
        opened().problem(Linear(DENSE.sizes), *blaslt._tensors(Linear(DENSE.sizes), "cpu"))
    with pytest.raises(ConfigError, match="is no hipBLASLt"):
        Library(tmp_path / "none.so", include, "gfx942")
    with pytest.raises(ConfigError, match=r"headers in .* \(of ROCm 6\.2 or newer\): .*error"):
        blaslt._built([tmp_path])
    with pytest.raises(ConfigError, match=r"LASLt 1\.3\.1, the headers in .* of [\d.]+: say"):
        opened(SCRIPT.replace(str(VERSION), "100301"))
    (tmp_path / "bad.csv").write_text("kind,sizes\ndense,1x2x3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.csv, line 2: expected the columns kind,sizes"):
        blaslt.read(tmp_path / "bad.csv")


def test_the_command_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fake: Path
) -> None:
    words = ["tune", "blaslt", "--out", str(tmp_path)]
    shape = ["--shape", "1", "2", "3"]
    library = ["--library", str(fake)]
    for more, says in (
        ([], "expected --shape M N K or --group"),
        ([*shape, "--library", "/none.so"], "/none.so: there is no such file"),
        ([*shape, *library, "--include", "/none"], "no hipblaslt/hipblaslt-ext.hpp there"),
    ):
        assert main([*words, *more]) == 1
        assert says in capsys.readouterr().err


def test_the_command_on_the_virtual_gpu(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fake: Path,
    include: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scripted library computes on the host, so that no algorithm has an estimate."""
    script = f"version {VERSION}\nrevision abc123\nalgo one us=9\nalgo two us=3\n"
    (tmp_path / "script").write_text(script, encoding="utf-8")
    monkeypatch.setenv("RFOPS_TEST_BLASLT_SCRIPT", str(tmp_path / "script"))
    words = ["tune", "blaslt", "--out", str(tmp_path), "--shape", "3", "8", "16", "--dtype", "f32"]
    words += ["--library", str(fake)]
    for folder in include:
        words += ["--include", str(folder)]
    assert main(words) == 1
    assert "launches no kernel on the virtual GPU" in capsys.readouterr().out
    assert not (tmp_path / "blaslt.csv").exists()
    calls: list[Callable[[], None]] = []
    monkeypatch.setattr(blaslt, "by_estimates", lambda run, runs: calls.append(run) or [2.5] * runs)
    assert main(words) == 0 and len(calls) == 2
    (row,) = blaslt.read(tmp_path / "blaslt.csv")
    assert row["us"] == "2.50" and row["source"] == f"estimated for {row['gfx']}"


def test_the_virtual_gpus_clock() -> None:
    """Estimates of all that a run launches."""
    x = torch.randn(4, 256)
    once = blaslt.by_estimates(lambda: rfops.quant_mxfp8(x), 3)
    twice = blaslt.by_estimates(lambda: (rfops.quant_mxfp8(x), rfops.quant_mxfp8(x)), 1)
    assert len(set(once)) == 1 and len(once) == 3 and 2 < once[0] < 20
    assert twice[0] > 1.5 * once[0]
