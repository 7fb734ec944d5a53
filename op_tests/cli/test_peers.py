"""`rfops bench OP --peers` over checkouts of our own: of several calls the quickest is told, launch
by launch, and what of it could not be had."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import rfops
from rfops import cli
from rfops.cli import bench, peers
from rfops.cli.peers import aiter, vllm
from rfops.cli.peers.aiter import FAMILIES
from rfops.cli.peers.calls import PeerCall
from rfops.cli.timing import predict
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, call_on
from support.vgpu.hip import compile_hip

CPU = torch.device("cpu")
OP = "gemm_a8w8_blockscale"
SOURCE = """
struct Arguments { unsigned long slots[2 * 34]; };
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


def write_table(folder: Path, name: str, columns: str, lines: list[str]) -> None:
    """A table of kernels, and the code object of those that are there."""
    folder.mkdir(parents=True)
    (folder / "both.co").write_bytes(compile_hip(SOURCE, "gfx950", folder))
    with (folder / name).open("w", newline="") as stream:
        csv.writer(stream).writerows(line.split() for line in (columns, *lines))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A kernel of tiles 32 x 128 that may be split, a slower one of 64 x 128, one that is not
    there."""
    folder = tmp_path / "hsa/gfx950/fp8gemm_blockscale"
    lines = ["32 128 1 quick both.co", "64 128 0 slow both.co", "96 128 0 gone gone.co"]
    columns = "tile_m tile_n splitK knl_name co_name"
    write_table(folder, "fp8gemm_bf16_blockscale.csv", columns, lines)
    return tmp_path


@pytest.fixture
def experts_checkout(tmp_path: Path) -> Path:
    """A kernel that wants rows sorted and x quantised, and one that does all itself."""
    folder = tmp_path / "hsa/gfx950/fmoe/silu"
    lines = ["32 128 0 quick both.co", "1 128 1 slow both.co"]
    columns = "subGU_m subGU_n flat knl_name co_name"
    write_table(folder, "fmoe_bf16_blockscaleFp8_g1u1_silu.csv", columns, lines)
    return tmp_path


def call(**sizes: int) -> Call:
    return call_on(ops()[OP], sizes, CPU)


def test_the_quickest_tile_and_split(checkout: Path) -> None:
    calls = {found.name: found for found in aiter.calls(OP, call(M=64, N=256, K=1024), checkout)}
    assert {*calls} == {
        *(f"aiter 32x128 split {split}" for split in (1, 2, 3, 4)),
        "aiter 64x128 split 1",
    }
    best = min(calls.values(), key=lambda found: found.us)
    problem = Problem(ops()[OP], call(M=64, N=256, K=1024), is_light=True)
    assert peers.best(problem, checkout) == best
    # A split clears the output first, which takes a launch.
    assert best.name == "aiter 32x128 split 1" and [*dict(best.launches)] == ["quick"]
    assert [*dict(calls["aiter 32x128 split 2"].launches)] == ["clearing", "quick"]
    assert calls["aiter 64x128 split 1"].us > best.us
    assert not [*aiter.calls(OP, call(M=64, N=100, K=1024), checkout)]  # no whole tiles


def test_splits_end_with_the_steps_and_the_chip(checkout: Path) -> None:
    family = FAMILIES[OP]

    def splits(**sizes: int) -> list[int]:
        found = aiter.rows(family, call(**sizes), checkout)
        return [row.split_k for row, _, _ in found if row.kernel == "quick"]

    assert splits(M=1, N=128, K=2048) == [1, 2, 3, 4, 6, 8]
    assert splits(M=1, N=128, K=512) == [1, 2]
    assert splits(M=512, N=128 * 64, K=2048) == [1]  # 1,024 workgroups, 4 a CU


def test_a_bench_with_peers(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "64", "256", "1024", "--peers", str(checkout)]
    assert cli.main(["bench", OP, *words]) == 0
    out = capsys.readouterr().out
    assert "aiter 32x128 split 1" in out and "peer over this: " in out
    lines = [line.split() for line in out.splitlines()]
    assert ["quick"] == [line[3] for line in lines if line[:1] == ["peer"] and line[2] == "us"]
    assert any(line[:1] == ["total"] for line in lines)
    assert not any(line[:1] == ["lacking"] for line in lines)


@pytest.mark.parametrize(
    ("op", "checkout_name", "device", "says"),
    [
        ("rms_norm", "hsa", "cpu", "others' kernels are known for gemm_a8w8_blockscale, .*; not"),
        ("fused_moe", "hsa", "cpu", "expected a checkout of vLLM, with vllm/"),
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


# ---------------------------------------------------------------- whole calls of experts

SIZES = dict(M=4, D=256, I=128, E=4, K=2)
AITER_HEADER = f"{aiter.SORT.folders[-1]}/aiter_tensor.h"
AITER_TENSOR = """
#pragma once
#include <hip/hip_runtime.h>
#include <cstdint>
#include <optional>
#include <stdexcept>
enum AiterDtype {
  AITER_DTYPE_fp8, AITER_DTYPE_bf16, AITER_DTYPE_fp32, AITER_DTYPE_fp4x2, AITER_DTYPE_i32,
  AITER_DTYPE_u8
};
struct aiter_tensor_t {
  void* ptr; size_t numel_; int ndim; int64_t shape[8], strides[8]; AiterDtype dtype_;
  int device_id;
};
"""
AITER_SORT = """
#include "aiter_tensor.h"
using T = aiter_tensor_t;
static __global__ void sort_rows(int* counts) { counts[0] = 32; }
int moe_sorting_opus_get_workspace_size(int, int, int, int) { return 0; }
void moe_sorting_opus_fwd(T& ids, T& weights, T& rows, T&, T& experts, T& counts, T& out, int e,
                          int block, std::optional<T>, std::optional<T>, std::optional<T> space) {
  const bool is_right = ids.shape[0] == 4 && ids.shape[1] == 2 && weights.numel_ == 8 &&
                        rows.numel_ == 4 * 2 + 4 * 32 - 2 && experts.numel_ == 5 && e == 4 &&
                        out.strides[0] == 256 && block == 32 && !space;
  if (!is_right) throw std::runtime_error("other sizes");
  sort_rows<<<1, 64>>>(static_cast<int*>(counts.ptr));
}
"""
AITER_QUANT = """
#include "rocprim/rocprim.hpp"
#include "aiter_tensor.h"
namespace aiter {
using T = aiter_tensor_t;
void dynamic_per_token_scaled_quant(T&, const T& x, T&, std::optional<T>, bool, std::optional<T>,
                                    int) {
  throw std::runtime_error(x.shape[0] == 8 && x.shape[1] == 128 ? "no FP8 here" : "other sizes");
}
void dynamic_per_group_scaled_quant(T&, const T&, T&, int, bool, std::optional<T>, int) {}
void mxfp4_moe_sort_hip(T&, const T&, const T&, const T&, int, int) {}
}
"""


def write_sources(checkout: Path, texts: dict[str, str]) -> None:
    """By their paths."""
    for name, text in texts.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)


def experts_calls(checkout: Path) -> dict[str, PeerCall]:
    """By name."""
    c = call_on(ops()["fused_moe_fp8"], SIZES, CPU)
    return {found.name: found for found in aiter.calls("fused_moe_fp8", c, checkout)}


def test_experts_of_which_only_the_kernel_is_there(experts_checkout: Path) -> None:
    calls = experts_calls(experts_checkout)
    whole, flat = calls["aiter 32x128"], calls["aiter 1x128"]
    assert [*dict(whole.launches)] == ["clearing", "quick"]
    assert whole.uncounted == (
        "moe_sorting: the checkout has no csrc/py_itfs_cu/moe_sorting_opus_kernels.cu",
        "quantisation of x: the checkout has no csrc/kernels/quant_kernels.cu",
    )
    assert [*dict(flat.launches)] == ["slow"] and flat.uncounted == ()
    assert whole.us == pytest.approx(sum(us for _, us in whole.launches))


@pytest.mark.sweep
def test_experts_with_a_sort_that_is_built(experts_checkout: Path) -> None:
    write_sources(
        experts_checkout,
        {
            AITER_HEADER: AITER_TENSOR,
            aiter.SORT.needs: AITER_SORT,
            aiter.QUANT.needs: AITER_QUANT,
        },
    )
    whole = experts_calls(experts_checkout)["aiter 32x128"]
    assert [*dict(whole.launches)] == ["moe_sorting", "quick"]
    assert all(us > 0 for _, us in whole.launches)
    assert whole.uncounted == ("quantisation of x: no FP8 here",)


@pytest.mark.sweep
def test_a_source_that_does_not_compile(experts_checkout: Path) -> None:
    broken = {AITER_HEADER: AITER_TENSOR, aiter.SORT.needs: "nothing_known x;"}
    write_sources(experts_checkout, broken)
    uncounted = experts_calls(experts_checkout)["aiter 32x128"].uncounted
    assert "moe_sorting_opus_kernels.cu does not compile" in uncounted[0]
    assert "unknown type name 'nothing_known'" in uncounted[0]


# Of the kernel's parameters those that vLLM's has in every version; it adds nothing up.
VLLM_KERNEL = """
import vllm.something_that_is_not_installed
from vllm.triton_utils import tl, triton

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def fused_moe_kernel(a_ptr, b_ptr, c_ptr, b_bias_ptr, stride_cm, stride_new, EM,
                     MUL_ROUTED_WEIGHT: tl.constexpr, BLOCK_SIZE_M: tl.constexpr,
                     BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
                     GROUP_SIZE_M: tl.constexpr, OTHER: tl.constexpr, N, K, num_valid_tokens,
                     topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr,
                     num_tokens_post_padded_ptr, stride_am, stride_ak, stride_be, stride_bk,
                     stride_bn, stride_cn, naive_block_assignment: tl.constexpr,
                     SPLIT_K: tl.constexpr, top_k: tl.constexpr, compute_type: tl.constexpr):
    if not OTHER and b_bias_ptr is None:
        tl.store(c_ptr + tl.program_id(0), helper(tl.load(a_ptr)))
"""
VLLM_SILU = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <torch/csrc/stable/tensor.h>
static __global__ void silu(__hip_bfloat16* out) { out[0] = 1.0f; }
void silu_and_mul(torch::stable::Tensor& out, torch::stable::Tensor& input) {
  STD_TORCH_CHECK(input.size(0) == 8 && input.size(-1) == 256 && out.stride(0) == 128, "sizes");
  const cudaStream_t stream = nullptr;
  silu<<<1, 64, 0, stream>>>(out.mutable_data_ptr<__hip_bfloat16>());
}
"""


@pytest.fixture
def vllm_checkout(tmp_path: Path) -> Path:
    file = tmp_path / vllm.KERNELS
    file.parent.mkdir(parents=True)
    file.write_text(VLLM_KERNEL)
    return tmp_path


def test_experts_of_vllm(vllm_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "_BLOCKS_N_K", ((64, 64),))
    problem = Problem(ops()["fused_moe"], call_on(ops()["fused_moe"], SIZES, CPU), is_light=True)
    (found,) = vllm.calls(problem, vllm_checkout)
    assert found.name == "vLLM 16x64x64"
    assert [*dict(found.launches)] == ["gate and up GEMM", "down GEMM"]
    assert [text.partition(":")[0] for text in found.uncounted] == [
        "moe_align_block_size",
        "silu_and_mul",
        "moe_sum",
    ]
    assert peers.best(problem, vllm_checkout) is not None


@pytest.mark.sweep
def test_experts_of_vllm_with_an_activation_that_is_built(
    vllm_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "_BLOCKS_N_K", ((64, 64),))
    write_sources(vllm_checkout, {vllm.SILU.needs: VLLM_SILU})
    problem = Problem(ops()["fused_moe"], call_on(ops()["fused_moe"], SIZES, CPU), is_light=True)
    (found,) = vllm.calls(problem, vllm_checkout)
    assert [*dict(found.launches)] == ["gate and up GEMM", "silu_and_mul", "down GEMM"]


def test_few_rows_are_blocks_of_their_own_in_vllm(
    vllm_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "_BLOCKS_N_K", ((64, 64),))
    op = ops()["fused_moe"]
    problem = Problem(op, call_on(op, SIZES | dict(M=1, E=8), CPU), is_light=True)
    (found,) = vllm.calls(problem, vllm_checkout)
    assert found.uncounted[0] == "number of rows: torch.full of one number"
    problem = Problem(op, call_on(op, SIZES | dict(w_layout="16x16"), CPU), is_light=True)
    assert [*vllm.calls(problem, vllm_checkout)] == []  # vLLM's kernel wants them raw


def test_tiles_of_vllms_tables_come_first(vllm_checkout: Path) -> None:
    folder = (vllm_checkout / vllm.KERNELS).parent / "configs"
    folder.mkdir()
    tuned = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 4}
    text = json.dumps({"triton_version": "3.4", "1": {}, "8": tuned, "64": {}})
    (folder / "E=4,N=128,device_name=AMD_Instinct_MI355_OAM.json").write_text(text)
    c = call_on(ops()["fused_moe"], SIZES | dict(M=6), CPU)
    found = vllm.configs(c, vllm_checkout)
    assert found[0] == tuned and len(found) == 5
    assert len(vllm.configs(call_on(ops()["fused_moe"], SIZES, CPU), vllm_checkout.parent)) == 4


def test_lines_of_launches() -> None:
    peer = {"peer us": 30.0, "peer launch times": "10 us sort; 20 us experts"}
    row = peer | {"launch times": "15 us all", "us": 15.0, "peer lacks": "quant: gone"}
    assert bench.launch_lines(row) == [
        "  this    15 us all",
        "  peer    10 us sort",
        "  peer    20 us experts",
        "  total   this 15 us, peer 30 us, peer over this 2",
        "  lacking of the peer, not counted: quant: gone",
    ]
    assert bench.launch_lines({"us": 15.0}) == []


def test_a_call_that_no_kernel_of_the_peer_takes(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tiles have 128 columns."""
    assert cli.main(["bench", OP, "--shape", "8", "72", "128", "--peers", str(checkout)]) == 0
    out = capsys.readouterr().out
    assert "lacking of the peer, not counted: a kernel that takes this call" in out
    assert "peer over this" not in out
