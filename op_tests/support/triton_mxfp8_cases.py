"""Problems of the Triton MX-FP8 kernels, dense and grouped, and their exact results: shared by the
tests, the bench and the tuner.

The tolerance is compare.py's: a product passes through 32 roundings in its block, one for each step
along K, one for each part that ran beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rfops.dispatch.compare import HALF_ULP, assert_within, tolerance
from rfops.quantization.mxfp8 import dequant_mxfp8
from rfops.triton.tiles import TritonConfig
from support.calls import prepare, prepare_grouped

NVIDIA = torch.cuda.is_available() and torch.version.cuda is not None
E4M3 = torch.float8_e4m3fn
NAN_CODE = 0x7F
# (K, N) of one GPU of four: qkv, o_proj, gate_up, mlp_down
MODEL_SHAPES = [(6144, 2304), (2048, 6144), (6144, 1536), (1536, 6144)]


@dataclass
class Side:
    """One operand, [rows, K] or [E, rows, K], inside a buffer whose other bytes are NaN."""

    payload: torch.Tensor  # uint8
    scale: torch.Tensor

    @property
    def exact(self) -> torch.Tensor:
        return dequant_mxfp8(self.payload.view(E4M3), self.scale, torch.float64)


def inside_nan(values: torch.Tensor, filler: int, pad: int) -> torch.Tensor:
    """The same values as rows of a wider, longer buffer full of `filler`."""
    *batch, rows, columns = values.shape
    buffer = values.new_full((*batch, rows + 3, columns + pad), filler)
    view = buffer[..., 1 : rows + 1, :columns]
    return view.copy_(values)


def random_side(shape: tuple[int, ...], device: torch.device, seed: int, pad: int = 64) -> Side:
    """All codes but NaN; scales over 2^-6..2^6, so that a block from a wrong place shows."""
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + shape[-1] * 101 + shape[-2])
    kind = {"generator": generator, "dtype": torch.uint8, "device": device}
    codes = torch.randint(0, 254, shape, **kind)
    codes += codes >= NAN_CODE
    scale = torch.randint(121, 134, (*shape[:-1], shape[-1] // 32), **kind)
    if pad == 0:
        return Side(codes, scale)
    return Side(inside_nan(codes, NAN_CODE, pad), inside_nan(scale, 255, pad // 32))


def poisoned(m: int, n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[m, n] inside a larger NaN buffer: `assert_border` then sees a write outside."""
    return torch.full((m + 2, n + 8), math.nan, dtype=dtype, device=device)[1 : m + 1, :n]


def assert_border(out: torch.Tensor) -> None:
    buffer = torch.as_strided(out, (out.shape[0] + 2, out.shape[1] + 8), out.stride(), 0).clone()
    buffer[1 : out.shape[0] + 1, : out.shape[1]] = math.nan
    assert buffer.isnan().all(), (
        f"written outside of out: {(~buffer.isnan()).nonzero()[:8].tolist()}"
    )


def assert_close(actual: torch.Tensor, x: Side, w: Side, parts: int = 64) -> None:
    """Against float64; values beyond the dtype's range are infinite."""
    exact, total = x.exact @ w.exact.T, x.exact.abs() @ w.exact.abs().T
    assert_equal_within(actual, exact, total, x.payload.shape[1], parts)


def assert_equal_within(
    actual: torch.Tensor, exact: torch.Tensor, total: torch.Tensor, k: int, parts: int = 64
) -> None:
    overflows = exact.abs() > torch.finfo(actual.dtype).max * (1 + HALF_ULP[actual.dtype])
    # NVIDIA's matrix units truncate where others round: twice half an ULP
    depth = (32 + k // 32 + parts) * (2 if NVIDIA else 1)
    bound = tolerance(exact, total, depth, actual.dtype)
    assert_within(actual, torch.where(overflows, exact.sign() * math.inf, exact), bound)


def dense(
    x: Side,
    w: Side,
    config: TritonConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    (m, k), n = x.payload.shape, w.payload.shape[0]
    device = x.payload.device
    out = poisoned(m, n, dtype, device) if out is None else out
    run = prepare("triton", device, m, n, k, config, dtype)
    run(out, x.payload.view(E4M3), w.payload.view(E4M3), x.scale, w.scale)
    return out


# ---------------------------------------------------------------- grouped


@dataclass
class Routing:
    """Rows by expert, padded to blocks; what lies beyond the padded count is garbage."""

    sorted_ids: torch.Tensor
    expert_ids: torch.Tensor
    num_padded: torch.Tensor
    num_valid: int
    block_m: int

    def to(self, device: torch.device) -> Routing:
        tensors = (t.to(device) for t in (self.sorted_ids, self.expert_ids, self.num_padded))
        return Routing(*tensors, self.num_valid, self.block_m)


def route(experts: list[int], block_m: int, worst_case: int = 3) -> Routing:
    """experts[i]: the expert of flat id i; `worst_case` blocks follow that are not in use."""
    ids, blocks = [], []
    for expert in sorted(set(experts)):
        rows = [i for i, row_expert in enumerate(experts) if row_expert == expert]
        rows += [len(experts) + 3] * (-len(rows) % block_m)  # any id >= num_valid is padding
        ids += rows
        blocks += [expert] * (len(rows) // block_m)
    count = torch.tensor([len(ids)], dtype=torch.int32)
    ids += [1] * (worst_case * block_m)
    blocks += [0] * worst_case
    integers = (torch.tensor(values, dtype=torch.int32) for values in (ids, blocks))
    return Routing(*integers, count, len(experts), block_m)


def grouped(
    a: Side,
    w: Side,
    routing: Routing,
    a_div: int,
    weights: torch.Tensor | None,
    config: TritonConfig | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    (e, n, k), device = w.payload.shape, w.payload.device
    routing = routing.to(device)
    out = poisoned(routing.num_valid, n, dtype, device)
    run = prepare_grouped(
        "triton",
        device,
        routing.num_valid,
        n,
        k,
        e,
        a_div,
        a_div,
        weights is not None,
        routing.block_m,
        dtype,
        config=config,
    )
    run(
        out,
        a.payload.view(E4M3),
        a.scale,
        w.payload.view(E4M3),
        w.scale,
        routing.sorted_ids,
        routing.expert_ids,
        routing.num_padded,
        weights,
    )
    return out


def assert_grouped(
    actual: torch.Tensor,
    a: Side,
    w: Side,
    experts: list[int],
    a_div: int,
    weights: torch.Tensor | None,
) -> None:
    """Row i is a[i / a_div] @ w[experts[i]]^T times its weight; zeros without an expert."""
    a_exact, used = a.exact, {}
    exact, total = (
        torch.zeros(actual.shape, dtype=torch.float64, device=actual.device) for _ in "et"
    )
    for row, expert in enumerate(experts):
        if 0 <= expert < len(w.payload):
            if expert not in used:
                used[expert] = Side(w.payload[expert], w.scale[expert]).exact
            factor = 1.0 if weights is None else weights[row].double()
            exact[row] = used[expert] @ a_exact[row // a_div] * factor
            total[row] = (used[expert].abs() @ a_exact[row // a_div].abs() * factor).abs()
    assert_equal_within(actual, exact, total, a.payload.shape[1])
    assert_border(actual)
