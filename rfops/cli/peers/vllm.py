"""vLLM's experts of bf16 weights as its Triton backend runs them, of a checkout of the user's or an
unpacked source distribution: lists of rows, two GEMMs with the activation between them, the sum
over a token's experts. Tiles are vLLM's tuned ones and a few more."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rfops import vgpu
from rfops.dispatch.kernel import Call
from rfops.dispatch.problem import Problem, placed
from rfops.moe.align_block_size import moe_align_block_size

from .calls import Counted, Missing, PeerCall, time_launches
from .sources import Source, library

OP = "fused_moe"
_MOE = Path("vllm/model_executor/layers/fused_moe")
KERNELS = _MOE / "fused_moe.py"
# What the sources include and csrc/peers/torch_stable.h stands for.
_EMPTY = (
    *("cuda.h", "cuda_runtime.h", "cublas_v2.h", "cub/cub.cuh"),
    *(f"torch/csrc/stable/{name}.h" for name in ("macros", "accelerator", "ops", "tensor")),
    *("torch/headeronly/util/shim_utils.h", "torch/csrc/inductor/aoti_torch/c/shim.h"),
)
_ALIGN = "csrc/moe/moe_align_sum_kernels.cu"
_SILU = "csrc/activation_kernels.cu"
ALIGN = Source("vllm_align_sum.cpp", _ALIGN, ("csrc",), _EMPTY, needs_rocm=True, needs_torch=True)
SILU = Source("vllm_activation.cpp", _SILU, ("csrc",), _EMPTY, needs_torch=True)

Config = Mapping[str, int]
Rows = tuple[Tensor | None, Tensor, Tensor]  # by experts, the expert of each block, their number
GPUS = {"gfx942": ("MI300X",), "gfx950": ("MI355X", "MI355_OAM")}  # in names of tuned tables
# Where rows are so few, times this, as there are experts, each row is a block of its own.
_SPARSE = 4
_BLOCKS_N_K = (64, 128), (32, 256), (128, 64), (64, 64)


def check(checkout: Path) -> None:
    """Raises ValueError for a folder that has not vLLM's experts."""
    if not (checkout / KERNELS).is_file():
        raise ValueError(f"--peers {checkout}: expected a checkout of vLLM, with {KERNELS}")


def calls(problem: Problem, checkout: Path) -> Iterator[PeerCall]:
    """By each tile that fits; none for a call of which vLLM's kernels have no equal."""
    from triton.runtime.errors import OutOfResources

    c = problem.call
    is_bf16 = c.x_dtype == c.w1_dtype == torch.bfloat16
    if not is_bf16 or c.E != c.R or c.w_layout != "raw" or problem.inputs[4] is None:
        return
    vgpu.activate_triton(c.arch)
    try:
        for config in configs(c, checkout):
            try:
                yield _Experts(checkout, c, problem.inputs, config).call()
            except OutOfResources:
                continue
    finally:
        vgpu.deactivate_triton()


def configs(c: Call, checkout: Path) -> list[Config]:
    """vLLM's tuned tile where its table has one for the GPU, then others."""
    found = list[Config]()
    for gpu in GPUS[c.arch]:
        file = checkout / _MOE / f"configs/E={c.E},N={c.I},device_name=AMD_Instinct_{gpu}.json"
        if file.is_file():
            table = json.loads(file.read_text(encoding="utf-8"))
            rows = [rows for rows in table if rows.isdigit()]
            found.append(table[min(rows, key=lambda rows: abs(int(rows) - c.M))])
    rows_per_expert = -(-c.M * c.K // c.E)
    for block_m in sorted({16, min(128, max(16, 1 << (rows_per_expert - 1).bit_length()))}):
        for block_n, block_k in _BLOCKS_N_K:
            sizes = dict(BLOCK_SIZE_M=block_m, BLOCK_SIZE_N=block_n, BLOCK_SIZE_K=block_k)
            found.append({**sizes, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2})
    return found


@functools.cache
def triton_kernel(checkout: Path, name: str) -> Any:
    """A Triton function of vLLM's file, and those beside it, without what else the file imports."""
    import triton
    import triton.language as tl

    file = checkout / KERNELS
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if _is_kernel(node)]
    namespace = {"__name__": "vllm_kernels", "triton": triton, "tl": tl}
    exec(compile(tree, str(file), "exec"), namespace)  # with the file's own lines
    return namespace[name]


def _is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list
    )


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return placed(torch.zeros(shape, dtype=dtype))


class _Experts:
    """One call by one tile."""

    def __init__(self, checkout: Path, c: Call, inputs: list[Any], config: Config) -> None:
        self.checkout, self.c, self.config = checkout, c, config
        self.x, self.w1, self.w2, weights, ids = inputs[:5]
        self.weights, self.ids = weights.contiguous(), placed(ids.to(torch.int32).contiguous())
        self.block, self.counted = config["BLOCK_SIZE_M"], Counted()

    def call(self) -> PeerCall:
        c, counted = self.c, self.counted
        num_rows = c.M * c.K
        gate_up, hidden, parts = (_empty(num_rows, n) for n in (2 * c.I, c.I, c.D))
        rows = self._rows()
        self._gemm("gate and up GEMM", rows, a_ptr=self.x, b_ptr=self.w1, c_ptr=gate_up)
        with counted.launch("silu_and_mul"):
            self._launch("silu_and_mul", SILU, "peer_silu_mul", (hidden, gate_up), (num_rows, c.I))
        self._gemm("down GEMM", rows, a_ptr=hidden, b_ptr=self.w2, c_ptr=parts)
        with counted.launch("moe_sum"):
            sizes = c.M, c.K, c.D
            self._launch("moe_sum", ALIGN, "peer_sum", (parts, _empty(c.M, c.D)), sizes)
        tile = "x".join(str(self.config[f"BLOCK_SIZE_{side}"]) for side in "MNK")
        return counted.call(f"vLLM {tile}")

    def _launch(
        self,
        label: str,
        source: Source,
        name: str,
        tensors: tuple[Tensor, ...],
        sizes: tuple[int, ...],
    ) -> None:
        """Raises Missing."""
        built = library(source, self.checkout, self.c.arch)
        addresses = (tensor.data_ptr() for tensor in tensors)
        self.counted.add(time_launches(label, functools.partial(built, name, *addresses, *sizes)))

    def _rows(self) -> Rows:
        c, block = self.c, self.block
        num_rows = c.M * c.K
        if num_rows * _SPARSE <= c.E:
            self.counted.uncounted.append("number of rows: torch.full of one number")
            return None, self.ids.view(-1), torch.tensor([num_rows * block], dtype=torch.int32)
        max_rows = num_rows + c.E * (block - 1)
        max_rows = min(num_rows * block, max_rows) if num_rows < c.E else max_rows
        blocks = -(-max_rows // block)
        rows, experts, count = (_empty(n, dtype=torch.int32) for n in (max_rows, blocks, 1))
        label, sizes = "moe_align_block_size", (c.M, c.K, c.E, block, max_rows)
        try:
            self._launch(label, ALIGN, "peer_align", (self.ids, rows, experts, count), sizes)
        except Missing as error:
            self.counted.uncounted.append(f"{label}: {error}")
            rows, experts, count = moe_align_block_size(self.ids, block, c.E, None, True)
        return rows, experts, count

    def _gemm(self, label: str, rows: Rows, a_ptr: Tensor, b_ptr: Tensor, c_ptr: Tensor) -> None:
        """Arguments by the names of the kernel's parameters; others are none, 0 or False."""
        import triton.language as tl

        is_first, (sorted_rows, experts, count) = a_ptr is self.x, rows
        max_rows = self.c.M * self.c.K * self.block
        if sorted_rows is not None:
            is_few = a_ptr.shape[0] < self.block
            top_k = self.c.K if is_first else 1
            few_rows = a_ptr.shape[0] * top_k * self.block
            max_rows = min(len(sorted_rows), few_rows) if is_few else len(sorted_rows)
        arguments = dict(
            a_ptr=a_ptr,
            b_ptr=b_ptr,
            c_ptr=c_ptr,
            topk_weights_ptr=self.weights,
            sorted_token_ids_ptr=sorted_rows,
            expert_ids_ptr=experts,
            num_tokens_post_padded_ptr=count,
            N=b_ptr.shape[1],
            K=b_ptr.shape[2],
            EM=max_rows,
            num_valid_tokens=self.c.M * self.c.K,
            stride_am=a_ptr.stride(0),
            stride_ak=1,
            stride_be=b_ptr.stride(0),
            stride_bk=1,
            stride_bn=b_ptr.stride(1),
            stride_cm=c_ptr.stride(0),
            stride_cn=1,
            naive_block_assignment=sorted_rows is None,
            SPLIT_K=1,
            MUL_ROUTED_WEIGHT=not is_first,
            top_k=self.c.K if is_first else 1,
            compute_type=tl.bfloat16,
            **self.config,
        )
        kernel = triton_kernel(self.checkout, "fused_moe_kernel")
        for parameter in kernel.params:
            rest = False if parameter.is_constexpr else 0
            arguments.setdefault(parameter.name, None if parameter.name.endswith("_ptr") else rest)
        num_groups = -(-max_rows // self.block) * -(-b_ptr.shape[1] // self.config["BLOCK_SIZE_N"])
        start = functools.partial(kernel[(num_groups,)], **arguments)
        self.counted.add(time_launches(label, start, results=False))
