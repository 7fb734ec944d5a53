"""`rfops selftest`: each kernel on its own, what is broken by name, and the report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rfops.cli.model_timings import call_text, given_of
from rfops.cli.selftest import cases
from rfops.cli.selftest.report import FAIL, NOT_HERE, PASS, Line, Report
from rfops.cli.timing import command, own, predict, rows
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCHS
from support.command import rfops

# Four ops of one kernel: out = 2 x, the same but for an element, a store out of bounds, no end.
HIP = """
#include "rfops/chip/types.h"
using namespace rfops;

extern "C" __global__ void doubled(f32* out, const f32* x, u32 n) {
  const u64 i = thread_id();
  if (i >= n) return;
  if (RFOPS_KIND == 3) {
    while (*(volatile const f32*)x == x[0]) {}
  }
  out[RFOPS_KIND == 2 ? i + (u64(1) << 40) : i] = RFOPS_KIND == 1 && i == 5 ? 7.0f : 2 * x[i];
}
"""
OPS = '''
from __future__ import annotations

from pathlib import Path

import torch

from rfops.dispatch.kernel import Kernel
from rfops.dispatch.op import Op
from rfops.jit import compile_ops, u32

CONFIG = Path(__file__).with_name("config.json")


@compile_ops("doubled", kernel="doubled", config=CONFIG)
def doubled_kernel(out: torch.Tensor, x: torch.Tensor, n: u32) -> None:
    """Out and x are f32[n]."""


class Hip(Kernel):
    name, module, compiler_config = "hip", "doubled", CONFIG

    def __init__(self, kind):
        self.kind = kind

    def defines(self, c, config):
        return {"KIND": self.kind}

    def variant(self, c, config):
        launch = doubled_kernel.bind(c.device, self.defines(c, config), c.arch).prepare(
            (256, 1, 1), self.arguments
        )
        return lambda n: launch((1, 1, 1), n=n)


def ref(x):
    return 2 * x


for kind, name in enumerate(("works", "wrong", "faults", "hangs")):
    Op(
        name,
        "x: f32[N]\\n-> out: f32[N]",
        kernels=(Hip(kind),),
        reference=ref,
        shapes={"all": [{"N": 100}]},
    )
'''


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file of ops, three of which are broken."""
    (tmp_path / "doubled.hip").write_text(HIP)
    (tmp_path / "config.json").write_text('{"doubled": {"srcs": ["doubled.hip"]}}')
    file = tmp_path / "broken.py"
    file.write_text(OPS)
    return file


@pytest.mark.sweep  # it waits for a limit, which a slow machine must not reach elsewhere
def test_broken_kernels_are_named(broken: Path) -> None:
    """A wrong one, one that faults and one that hangs: each fails, the rest is judged."""
    names = ("faults", "hangs", "wrong", "works", "topk_softmax")
    files = [broken.with_name(name) for name in ("report.json", "report.html", "report.txt")]
    words = [*names, "--limit", "60", "--workers", "2", "--report", *map(str, files)]
    done = rfops("--ops", str(broken), "selftest", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(files[0].read_text())
    states = {line["name"].split(" N=")[0]: line for line in report["lines"]}
    for name, says in (
        ("faults", "HipError"),
        ("hangs", "took more than 60 s"),
        ("wrong", r"worst at \(5,\): got 7\.0"),
    ):
        for way in ("hip", "by its route"):
            line = states[f"{name} {way}"]
            assert line["state"] == FAIL and re.search(says, line["detail"]), line
    assert states["works hip"]["state"] == states["works by its route"]["state"] == PASS
    own = [line for line in report["lines"] if line["name"].startswith("topk_softmax")]
    assert len(own) == 3 and all(line["state"] == PASS for line in own)
    runtime = [line for line in report["lines"] if line["section"] == "runtime"]
    assert len(runtime) == 8 and all(line["state"] == PASS for line in runtime)
    text = files[2].read_text().splitlines()
    assert "failed:" in text and text[-1] in done.stdout.splitlines()
    page = files[1].read_text()
    assert "<h2>Failed</h2>" in page and "worst at (5,)" in page and "<script" not in page


@pytest.mark.parametrize("arch", ARCHS)
def test_every_kernel_has_a_case(arch: str) -> None:
    """A small one of each kernel, which the kernel takes, or a reason; and the op by its route."""
    for op in ops().values():
        found = list(cases.cases(op, arch, is_thin=True))
        assert {*op.kernels} <= {case.kernel for case in found}, op.name
        run = [case for case in found if not case.why_not]
        for case in run:
            kernel = case.kernel or next(iter(k.kernel for k in run if k.kernel))
            assert cases.refusal(op, kernel, arch, case.shape) is None, case
            flops, size = cases.work(op, arch, case.shape)
            assert flops <= cases.SMALL[0] and size <= cases.SMALL[1], case


def test_on_a_gpu_shapes_are_real_ones_too() -> None:
    op = ops()["gemm_mxfp8"]
    assert isinstance(op, Op)
    whole = [dict(shape) for set_ in op.shapes.values() for shape in set_]
    found = [
        case.shape for case in cases.cases(op, "gfx950", is_thin=False) if case.kernel == "mfma"
    ]
    assert len(found) == 4 and sum(shape in whole for shape in found) == 3
    assert all(shape in whole for shape in cases.shapes_timed(op, "gfx950", 4))


def test_times_side_by_side(tmp_path: Path) -> None:
    """What was measured and estimated of a call stands in a row, with the ratios."""
    report = Report("a GPU", {})
    call = "M=1 num_groups=8 scale=2.5 bias=True dtype=bf16"
    for kind, us in (("measured", 12.0), ("estimated", 10.0)):
        row = {"op": "o", "shape": "m=1", "kernel": kind[0], "us": us, "kind": kind}
        row |= {"config": "tile=2", "arch": "gfx950", "cu_num": 256, "call": call}
        row |= {"published us": 8.0, "source": "a table"}
        report.lines.append(Line("time", "o m=1", PASS, "", row=row))
    (row,) = report.times()
    assert (row["measured us"], row["estimated us"], row["published us"]) == (12.0, 10.0, 8.0)
    assert row["kernel"] == "m"
    text = "\n".join(report.conclusion())
    assert "measured over estimated: 1.20" in text and "measured over published: 1.50" in text
    assert "2 passed, 0 FAILED" in report.summary()
    file = tmp_path / "times.csv"
    report.write(file)
    (measured,) = rows.read(file, command.FORMATS).rows
    assert (
        measured.us == 12.0 and measured.kernel == "o m tile=2" and measured.gpu_model == "MI355X"
    )
    assert call_text(given_of(measured.shape)) == call


def test_wrong_words() -> None:
    for words, says in (
        (["no_such_op"], "no_such_op: no such op; there are "),
        (["--model"], "--model: pass --tuned FOLDER"),
        (["--report", "/nowhere/at/all.json"], "no folder /nowhere/at"),
    ):
        done = rfops("selftest", *words)
        assert done.returncode == 1 and says in done.stderr, done.stderr


def test_states_are_told_apart() -> None:
    lines = [Line("op", "a", state, "why") for state in (PASS, FAIL, NOT_HERE, NOT_HERE)]
    report = Report("a GPU", {}, lines, 3.4)
    assert report.summary() == "1 passed, 1 FAILED, 2 not here; 3 s"
    assert report.conclusion()[-4:-2] == ["failed:", "  op a: why"]


def test_a_measured_time_is_held_against_the_model() -> None:
    """`rfops bench timing` takes the report's rows: op, kernel, config and call."""
    line = {"rfops_op": "quant_mxfp8", "kernel": "hip", "config": "", "gpu": "gfx950", "cu": "256"}
    row = own.parse({**line, "call": "K=2048 M=64", "us": "3.5"})
    found = predict.predict(None, row)
    assert found["low"] <= found["us"] <= found["high"] and 2 < found["us"] < 10
