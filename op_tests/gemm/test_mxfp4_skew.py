"""The MXFP4 kernel whose sums leave a part at a time: against float64, run after run of tiles."""

from __future__ import annotations

import itertools

import pytest
import torch

import rfops
from rfops.gemm.kernels.mxfp4.skew import Skew, SkewConfig
from support.assembly import assembly, code_bytes, counted, number
from support.mxfp4_problems import OPS, Problem, assert_correct, random_problem, run

pytestmark = pytest.mark.requires_gfx950
OP = OPS["gemm_afp4wfp4"]
SHAPE = 600, 528, 2560  # nine tiles: of eight workgroups one makes two, a run or not by group_n


@pytest.fixture(autouse=True)
def _few_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_CUS", "8")


def test_values() -> None:
    """A run of two tiles and runs of one; nothing spilled, no bank conflict."""
    problem = random_problem(*SHAPE).quantised()
    with rfops.vgpu.profile() as p:
        got = run("skew", problem.shuffled(), SkewConfig(1))
    main = p.launches[-1]
    assert main.vgpr_spills == main.sgpr_spills == main.scratch_bytes_per_lane == 0
    assert main.lds_conflict_cycles == 0
    assert_correct(got, problem)


@pytest.mark.sweep
@pytest.mark.parametrize("group_n", [1, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_way(dtype: torch.dtype, group_n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands raw and shuffled, quantised before or by the op, rows that end within a lane's: to
    the same bits in any order of waves. Nothing for the checks to find."""
    m, n, k = SHAPE
    raw = random_problem(m, n, k)
    problem = raw.quantised()
    with rfops.vgpu.check() as c:
        got = run("skew", problem, SkewConfig(group_n), dtype)
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    assert_correct(got, problem)
    monkeypatch.setenv("RFOPS_VGPU_SCHEDULE", "random:1")
    for same in (problem.shuffled(), raw):
        assert torch.equal(run("skew", same, SkewConfig(group_n), dtype), got)
    ragged = random_problem(257, 264, 3072).quantised()
    assert_correct(run("skew", ragged, SkewConfig(group_n), dtype), ragged)


@pytest.mark.sweep
@pytest.mark.parametrize("units", [8, 9])
def test_long_runs(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiles and more of a workgroup, of an odd number of pairs; each a run where XCDs have
    unequal numbers of workgroups. A scale of 255 stays in its row and column."""
    monkeypatch.setenv("RFOPS_VGPU_CUS", str(units))
    problem = random_problem(1600, 1040, 2560).quantised()
    assert isinstance(problem.w_scale, torch.Tensor) and isinstance(problem.x_scale, torch.Tensor)
    problem.w_scale[1039, -1] = 255
    problem.x_scale.view(torch.uint8)[700, 3] = 255
    with rfops.vgpu.check() as c:
        got = run("skew", problem, SkewConfig(1))
    assert not c.findings, "\n".join(str(finding) for finding in c.findings)
    expected = torch.zeros(1600, 1040, dtype=torch.bool)
    expected[:, 1039] = expected[700] = True
    assert torch.equal(got.isnan(), expected)
    assert_correct(got, problem)


def test_result_at_an_odd_address() -> None:
    """The loop makes it."""
    problem = random_problem(20, 136, 2560).quantised()
    memory = torch.full((20 * 136 + 257,), -7.0, dtype=torch.bfloat16)
    out = memory[129 : 129 + 20 * 136].view(20, 136)
    with rfops.vgpu.profile() as p:
        run("skew", problem, SkewConfig(), out=out)
    assert p.launches[-1].kernel == "mxfp4_loop"
    assert_correct(out, problem)
    assert (memory[:129] == -7).all() and (memory[129 + 20 * 136 :] == -7).all()


@pytest.mark.parametrize(
    ("problem", "dtype", "match"),
    [
        (random_problem(8, 64, 2048), torch.bfloat16, "K=2048 is no multiple of 512 from 2560 on"),
        (random_problem(8, 64, 2816), torch.bfloat16, "K=2816 is no multiple of 512"),
        (random_problem(8, 68, 2560), torch.bfloat16, "N=68, are no multiple of 16 bytes"),
        (random_problem(8, 64, 2560, bias=torch.float32), torch.bfloat16, "bias has no room"),
    ],
)
def test_what_is_not_taken(problem: Problem, dtype: torch.dtype, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        run("skew", problem.quantised(), SkewConfig(), dtype)
    c = OP.call_of("gfx942", M=4096, N=4096, K=4096)
    assert "no kernel for gfx942" in str(Skew().refuses(c))
    with pytest.raises(ValueError, match="group_n is 1 to 16"):
        SkewConfig(17)


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((8192, 8192, 8192), "skew"),
        ((4096, 4096, 8192), "loop"),
        ((8192, 8192, 1024), "loop"),
        ((256, 65536, 8192), "deep"),
        ((32, 57344, 8192), "deep"),
        ((32, 16384, 8192), "stream"),
        ((16, 57344, 8192), "stream"),
    ],
)
def test_where_it_is_chosen(shape: tuple[int, int, int], first: str) -> None:
    """Where workgroups make two tiles and more; the others of few rows, or few columns."""
    layouts = {"w_layout": "16x16", "w_scale_layout": "32x8", "x_scale_layout": "32x8"}
    c = OP.call_of(**dict(zip("MNK", shape, strict=True)), **layouts)
    assert next(name for name in OP.order(c) if OP.kernels[name].refuses(c) is None) == first


@pytest.mark.sweep
def test_steps() -> None:
    """From barrier to barrier of the loop, which is a K-step in which no sums leave: what has to
    be, in slots that the matrix cores leave; where they leave, from accumulation registers."""
    layouts = {"w_layout": "16x16", "w_scale_layout": "32x8", "x_scale_layout": "32x8"}
    c = OP.call_of(M=8192, N=8192, K=8192, **layouts)
    defines = Skew().defines(c, SkewConfig())
    lines = assembly("mxfp4_skew", "gfx950", defines)
    barriers = [i for i, line in enumerate(lines) if line == "s_barrier"]
    steps = [counted(lines[a:b]) for a, b in itertools.pairwise(barriers)]
    plain = [s for s in steps if number(s, "v_mfma") == 128 and not number(s, "buffer_store")]
    counts = min(plain, key=lambda counts: sum(counts.values()))
    assert counts["ds_read_b128"] == 32
    assert counts["ds_write_b128"] == counts["buffer_load_dwordx4"] == 16
    assert counts["buffer_load_dword"] == 8
    assert sum(counts.values()) <= 2 * 128 + 40, counts
    assert number(counts, r"v_(?!mfma)|s_nop") <= 8, counts
    every = counted(lines)
    # A plain pair, four where parts change tiles, and as much as two where a run begins, and ends.
    assert number(every, "v_mfma") == (2 + 8 + 4 + 4) * 128, every
    assert number(every, r"v_accvgpr|scratch_|v_pk_") == 0, every
    assert sum(line.startswith("ds_write_b128") and " a[" in line for line in lines) == 8 * 16
    # What is beyond the instruction cache comes anew in each turn: 8,000 clk a step, estimated.
    for is_shuffled in (0, 1):
        of_layout = {**defines, "SHUFFLED": is_shuffled, "X_SHUFFLED": is_shuffled}
        assert code_bytes("mxfp4_skew", "gfx950", of_layout) <= 64 << 10
