"""`rfops bench OP --peers` over a checkout of our own: of two kernels the quicker is told."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import rfops
from rfops import cli
from rfops.cli import peers
from rfops.cli.peers import FAMILIES
from rfops.cli.timing import predict
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import ops
from rfops.dispatch.problem import call_on
from support.vgpu.hip import compile_hip

CPU = torch.device("cpu")
OP = "gemm_a8w8_blockscale"
SOURCE = """
struct Arguments { unsigned long slots[32]; };
template <int kCount>
__attribute__((device)) inline void wait() {
  for (int i = 0; i < kCount; ++i) __builtin_amdgcn_s_sleep(8);
}
extern "C" __attribute__((global)) void quick(Arguments) { wait<4>(); }
extern "C" __attribute__((global)) void slow(Arguments) { wait<400>(); }
"""


@pytest.fixture(autouse=True)
def gfx950(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_VGPU_ARCH", "gfx950")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A kernel of tiles 32 x 128 that may be split, a slower one of 64 x 128, one that is not
    there."""
    folder = tmp_path / "hsa/gfx950/fp8gemm_blockscale"
    folder.mkdir(parents=True)
    (folder / "both.co").write_bytes(compile_hip(SOURCE, "gfx950", tmp_path))
    lines = [
        ("32", "128", "1", "quick", "both.co"),
        ("64", "128", "0", "slow", "both.co"),
        ("96", "128", "0", "gone", "gone.co"),
    ]
    with (folder / "fp8gemm_bf16_blockscale.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["tile_m", "tile_n", "splitK", "knl_name", "co_name"])
        table.writerows(lines)
    return tmp_path


def call(**sizes: int) -> Call:
    return call_on(ops()[OP], sizes, CPU)


def test_the_quickest_tile_and_split(checkout: Path) -> None:
    times = dict(peers.timed(OP, call(M=64, N=256, K=1024), checkout))
    assert {*times} == {
        *(f"aiter 32x128 split {split}" for split in (1, 2, 3, 4)),
        "aiter 64x128 split 1",
    }
    name, us = min(times.items(), key=lambda item: item[1])
    assert peers.best(OP, call(M=64, N=256, K=1024), checkout) == (name, us)
    # A split clears the output first, which takes a launch.
    assert name == "aiter 32x128 split 1" and times["aiter 64x128 split 1"] > us
    assert peers.best(OP, call(M=64, N=100, K=1024), checkout) is None  # no whole tiles


def test_splits_end_with_the_steps_and_the_chip(checkout: Path) -> None:
    family = FAMILIES[OP]

    def splits(**sizes: int) -> list[int]:
        found = peers.rows(family, call(**sizes), checkout)
        return [row.split_k for row, name in found if row.kernel == "quick"]

    assert splits(M=1, N=128, K=2048) == [1, 2, 3, 4, 6, 8]
    assert splits(M=1, N=128, K=512) == [1, 2]
    assert splits(M=512, N=128 * 64, K=2048) == [1]  # 1,024 workgroups, 4 a CU


def test_a_bench_with_peers(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "64", "256", "1024", "--peers", str(checkout)]
    assert cli.main(["bench", OP, *words]) == 0
    out = capsys.readouterr().out
    assert "aiter 32x128 split 1" in out and "peer over this: " in out


@pytest.mark.parametrize(
    ("op", "checkout_name", "device", "says"),
    [
        ("rms_norm", "hsa", "cpu", "aiter's kernels are known for gemm_a8w8_blockscale, .*; not"),
        (OP, "none", "cpu", "expected a checkout of aiter, with a folder hsa"),
        (OP, "hsa", "cuda", "timed on the virtual GPU: --device cpu"),
    ],
)
def test_refusals(op: str, checkout_name: str, device: str, says: str, tmp_path: Path) -> None:
    (tmp_path / checkout_name).mkdir()
    with pytest.raises(ValueError, match=says):
        peers.check(op, tmp_path, device)


def test_families_are_of_ops_and_of_known_arguments() -> None:
    assert {*FAMILIES} <= {*ops()} and rfops.gemm_a8w8_blockscale is not None
    assert {family.op for family in FAMILIES.values()} <= {*predict.FAMILIES}
