"""An op declared outside the tree, a kernel, one declaration and a reference, has all that the
engine derives: guards, plans, torch's op, `why`, `profile`, `build`, `ls`, `bench` and `tune`. One
with a model of its times has `tune --model` and `bench --regret` too."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import rfops.dispatch.op as registry
from rfops import cli
from rfops.dispatch import tuned_table
from rfops.dispatch.op import Op

pytestmark = pytest.mark.requires_gfx950

KERNEL = """
#include "rfops/chip/types.h"
using namespace rfops;
extern "C" __global__ void scratch_scale(f32* out, const f32* x, const f32* scale, u32 m, u32 n) {
  const u32 at = workgroup_id_x() * RFOPS_THREADS + thread_id();
  if (at < m * n) out[at] = x[at] * scale[at / n];
}
"""
OP = '''
from dataclasses import dataclass
from pathlib import Path

import torch

from rfops.dispatch.heuristic import Columns
from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op
from rfops.dispatch.time_model import TimedKernel, TimeModel, Work
from rfops.jit import compile_ops, u32

CONFIG = Path(__file__).parent / "compiler_config.json"


@compile_ops("scratch", config=CONFIG, variants=lambda _arch: [{"THREADS": 64}])
def scratch_scale(out: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, m: u32, n: u32) -> None:
    """The kernel's parameters."""


@dataclass(frozen=True)
class Config:
    threads: int


class Hip(Kernel):
    name, module, config, Config = "hip", "scratch", CONFIG, Config

    def default(self, c):
        return Config(64)

    def candidates(self, c):
        return [Config(64), Config(128)]

    def defines(self, c, config):
        return {"THREADS": config.threads}

    def variant(self, c, config):
        kernel = scratch_scale.bind(c.device, self.defines(c, config), c.arch)
        launch = kernel.prepare((config.threads, 1, 1), self.arguments)
        return lambda m, n: launch((-(-m * n // config.threads), 1, 1), m=m, n=n)


def reference(x, scale):
    return x * scale[:, None]


OP = Op(
    "scratch_scale",
    """
    x: f32[M, N] @16
    scale: f32[M]
    -> out: f32[M, N]
    """,
    kernels=(Hip(),),
    table="M+ N",
    reference=reference,
    shapes={"published": [{"M": m, "N": 64} for m in (1, 2, 3, 4)]},
)


class Timed(TimedKernel):
    name, module, config, Config = "timed", "scratch", CONFIG, Config
    defines, variant = Hip.defines, Hip.variant
    variants = Columns([Config(64), Config(128), Config(256)])

    def space(self, c):
        return self.variants

    def traits(self, config, c):
        return (config.threads,)


class Model(TimeModel):
    units = {"launch": "us", "wave": "us a wave", "group": "us a workgroup of a CU"}
    terms, logs, traits = tuple(units), ("one",), ("threads",)

    def work(self, v, c):
        elements = c.M * c.N
        return Work((1.0, elements / 64, elements / v.threads / c.cu_num), (1.0,))


class Drawn(Op):
    def draw(self, rng):
        return {"M": rng.randint(1, 64), "N": rng.choice((64, 128, 256))}


TIMED = Drawn(
    "scratch_timed",
    """
    x: f32[M, N] @16
    scale: f32[M]
    -> out: f32[M, N]
    """,
    kernels=(Timed(),),
    table="M+ N",
    reference=reference,
    time_model=Model,
)
'''
CONFIG = {"scratch": {"srcs": ["scratch.hip"]}}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "scratch.hip").write_text(KERNEL)
    (folder / "compiler_config.json").write_text(json.dumps(CONFIG))
    (folder / "scratch.py").write_text(OP)
    spec = importlib.util.spec_from_file_location("scratch", folder / "scratch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scratch"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scratch"]
    for name in ("scratch_scale", "scratch_timed"):
        del registry._OPS[name], tuned_table.TABLES[name]


@pytest.fixture
def op(scratch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Op:
    monkeypatch.delenv("RFOPS_CONFIGS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result: Op = scratch.OP
    return result


def run(text: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert cli.main(text.split()) == status, capsys.readouterr().err
    return capsys.readouterr().out


def test_call_guards_and_plans(op: Op, scratch: ModuleType) -> None:
    x, scale = torch.randn(3, 64), torch.randn(3)
    out = torch.full_like(x, float("nan"))
    assert op.call(x, scale, out, None) is out
    torch.testing.assert_close(out, scratch.reference(x, scale))
    repeated = op.call(x, scale, None, None)  # by the plan
    torch.testing.assert_close(repeated, out)
    assert op.call(x[:0], scale[:0], None, None).shape == (0, 64)
    with pytest.raises(ValueError, match=r"scratch_scale: scale must be a \[M=3\] tensor"):
        op.call(x, torch.randn(4), None, None)
    with pytest.raises(ValueError, match="scratch_scale: x must be float32"):
        op.call(x.double(), scale, None, None)
    with pytest.raises(ValueError, match="16-byte aligned"):
        op.call(torch.randn(193)[1:].view(3, 64), scale, None, None)
    with pytest.raises(ValueError, match="out must not overlap x"):
        op.call(x, scale, x, None)
    assert op.supports(arch="gfx942") and not op.supports(arch="sm_90")
    with pytest.raises(ValueError, match="no kernel takes M=1 N=2 on sm_90: hip: no kernel for"):
        op.route(op.call_of("sm_90", M=1, N=2))


def test_opcheck(op: Op) -> None:
    result = torch.ops.rfops.scratch_scale
    torch.library.opcheck(result.default, (torch.randn(2, 64), torch.randn(2), ""))


def test_why(op: Op, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("why scratch_scale --m 3 --n 64", capsys)
    assert "decision  hip, a HIP kernel" in said and "Config(threads=64)" in said
    assert "envelope default" in said and "scratch gfx950 THREADS=64" in said


def test_profile(op: Op, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(run("profile scratch_scale --m 3 --n 64 --json", capsys))
    assert (record["kernel"], record["workgroups"]) == ("scratch_scale", 3)
    assert "nothing is launched" in run("profile scratch_scale --m 0 --n 64", capsys)


def test_build_and_ls(op: Op, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("build scratch --arch gfx942,gfx950", capsys)
    assert "scratch gfx942 THREADS=64" in said and "2 of 2" in said
    rows = [line.split() for line in run("ls", capsys).splitlines()]
    (row,) = [row for row in rows if row[0] == "scratch" and row[2] == "gfx950"]
    assert row[1] == "scratch_scale" and int(row[3]) >= 1
    assert row[4] == "scratch_scale,scratch_timed"


def test_bench(op: Op, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.csv"
    said = run(f"bench scratch_scale --csv {file}", capsys)
    assert "the 3 smallest of 4 shapes" in said and "geometric mean" in said
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["shape"] for row in rows] == ["m=1 n=64", "m=2 n=64", "m=3 n=64"]
    for m, row in enumerate(rows, start=1):
        assert int(row["bytes"]) == 2 * 4 * m * 64 + 4 * m and row["bound"] == "bytes"
        assert row["kind"] == "estimated" and float(row["us"]) > float(row["floor us"]) > 0


def test_bench_of_a_wrong_kernel(
    op: Op, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(op, "reference", lambda x, scale: x * scale[:, None] * 1.001)
    assert cli.main(["bench", "scratch_scale", "--shape", "2", "64"]) == 1
    assert "scratch_scale m=2 n=64: hip is WRONG: out:" in capsys.readouterr().err


def test_tune(
    op: Op,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = run(f"tune scratch_scale --out {tmp_path} --shape 3 64", capsys)
    assert "2 variants" in said and [*tmp_path.iterdir()] == [tmp_path / "scratch_scale.csv"]
    assert "done before" in run(f"tune scratch_scale --out {tmp_path} --shape 3 64", capsys)
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    assert "exact row" in run("why scratch_scale --m 3 --n 64", capsys)
    x, scale = torch.randn(3, 64), torch.randn(3)
    torch.testing.assert_close(op.call(x, scale, None, None), x * scale[:, None])


# ---------------------------------------------------------------- an op with a time model


def test_tune_of_a_model(
    op: Op,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Six calls of three variants each; a run of the first five fits what is there."""
    command = f"tune scratch_timed --model --seed 3 --out {tmp_path}"
    said = run(f"{command} --shapes 6", capsys)
    assert "0 of 6 shapes were timed before" in said and "6 shapes, 18 times: regret" in said
    times = tmp_path / "scratch_timed_timings.csv"
    first = times.read_text()
    assert "5 of 5 shapes were timed before" in run(f"{command} --shapes 5", capsys)
    assert times.read_text() == first
    with (tmp_path / "scratch_timed_model.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["kernel"] for row in rows} == {"timed"}
    assert all(row["origin"] == "estimated" and "6 shapes" in row["source"] for row in rows)
    monkeypatch.setenv("RFOPS_CONFIGS", str(tmp_path))
    assert "predicted" in run("why scratch_timed --m 3 --n 64", capsys)
    assert "at least 5 shapes with times on gfx950" in failed(
        f"tune scratch_timed --model --shapes 2 --out {tmp_path / 'few'}", capsys
    )


def test_prune_judges_rows(op: Op, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dropped: rows that do as the op does without, or as the nearest does, whose figures of others
    stay. Replaced: one whose variant is slower than another. A quicker one stays, with the new
    time; rows that do not run, and those of other chips and origins, stay as they are."""
    file = tmp_path / "scratch_timed.csv"
    head = "arch,cu_num,m,n,kernel,config,us,figures,origin,source\n"
    near = "gfx950,256,2,64,timed,threads=64,3,aiter_us=7 timed_us=3 spread=0.1,estimated,near\n"
    figures = "gfx950,256,2,64,,,,aiter_us=7,published,beside a row that was dropped: near\n"
    others = [
        "gfx942,304,3,64,timed,threads=64,,,estimated,another chip\n",
        "gfx950,256,5,32,timed,threads=64,,,measured,another origin\n",
        "gfx950,256,6,128,timed,threads=2048,,,estimated,does not run\n",
    ]
    judged = [
        "gfx950,256,3,64,timed,threads=64,9,,estimated,quicker\n",
        "gfx950,256,4,48,timed,threads=1024,9,aiter_us=8 timed_us=9,estimated,slower\n",
        "gfx950,256,1024,64,timed,threads=256,9,,estimated,its own\n",
    ]
    file.write_text(head + near + "".join(others + judged))
    timings = tmp_path / "scratch_timed_timings.csv"
    timings.write_text(
        "arch,cu_num,call,kernel,times,origin\n"
        "gfx950,256,M=3 N=64,timed,64=900 1024=1,measured\n"  # not for estimated rows
    )
    said = run(f"tune scratch_timed --prune --out {tmp_path}", capsys)
    assert "5 of 7 rows are estimated on gfx950 with 256 CUs" in said
    assert "dropped  m=2 n=64" in said and "dropped  m=1024 n=64" in said
    assert "of 5 rows 2 kept, 2 dropped, 1 replaced" in said
    assert "kept  m=6 n=128" in said and "does not run" in said and "of the best" in said
    lines = file.read_text().splitlines(keepends=True)
    assert lines[:5] == [head, figures, *others]
    rows = [line.split(",") for line in lines[5:]]
    assert [row[2:6] for row in rows] == [
        ["3", "64", "timed", "threads=64"],
        ["4", "48", "timed", "threads=64"],
    ]
    assert [row[7] for row in rows] == ["", "aiter_us=8"]
    assert all(2 < float(row[6]) < 4 and "timing model" in "".join(row[9:]) for row in rows)
    again = run(f"tune scratch_timed --prune --out {tmp_path}", capsys)
    assert "of 3 rows 3 kept, 0 dropped, 0 replaced" in again
    assert file.read_text() == "".join(lines)


def test_tune_of_a_model_without_variants(
    op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on an NVIDIA GPU, whose variants no model ranks."""
    monkeypatch.setattr(registry.ops()["scratch_timed"].kernels["timed"], "space", lambda c: None)
    said = failed(f"tune scratch_timed --model --shapes 6 --out {tmp_path}", capsys)
    assert "scratch_timed: none of 6 shapes has a time on gfx950" in said, said
    assert [*tmp_path.iterdir()] == []


def test_bench_of_regret(op: Op, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("bench scratch_timed --regret 2 --seed 3", capsys).splitlines()
    assert said[0] == "# 2 calls of seed 3" and "geometric mean" in said[3]
    ratios = [float(line.split()[0]) for line in said[1:3]]
    assert all(1 <= ratio < 2 for ratio in ratios) and all("us by timed" in s for s in said[1:3])
    assert "--regret 0: expected 1 or more" in failed("bench scratch_timed --regret 0", capsys)


def failed(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(text.split()) != 0
    return capsys.readouterr().err
