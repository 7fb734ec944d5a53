"""gemm_mxfp8: y = x @ w^T for OCP MX-FP8, the decode path of a linear layer (gfx950)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from rfops.guards import Guard, check_layout, check_no_overlap
from rfops.jit import compile_ops, u32
from rfops.quant_mxfp8 import BLOCK, E8M0, E8M0_BIAS, E8M0_NAN, FP8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rfops.jit import BoundKernel

OP = "gemm_mxfp8"
MAX_M = 16
ALIGN = 16  # bytes: a lane's load
WAVE = 64  # lanes
CUS = 256  # compute units of an MI355X; only the heuristic's balance depends on it
# (N, K) of linear layers that `rfops build` prepares kernels for, at every M.
PREBUILT_SHAPES = ((2304, 6144), (6144, 2048), (1536, 6144), (6144, 1536))
SCALE_DTYPES = tuple(dict.fromkeys((torch.uint8, E8M0)))


@compile_ops("mxfp8_gemv", variants=lambda _arch: _prebuilt())
def mxfp8_gemv(
    out: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    n: u32,
    k: u32,
) -> None:
    """csrc/mxfp8_gemv.hip: the shapes stand there; M and the config are compile-time constants."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class GemvConfig:
    """A variant of the kernel; its head comment says what each means."""

    lanes: int  # lanes along K, 16 bytes of w each: 64, 32 or 16
    rows: int  # rows of w that a lane sums at once
    steps: int  # steps along K in flight at once
    waves: int  # waves of a workgroup, side by side along K

    @property
    def tile_n(self) -> int:
        return self.rows * WAVE // self.lanes

    def defines(self, m: int) -> dict[str, int]:
        return {
            "M": m,
            "LANES": self.lanes,
            "ROWS": self.rows,
            "STEPS": self.steps,
            "WAVES": self.waves,
        }

    @staticmethod
    @lru_cache(maxsize=256)
    def from_heuristic(m: int, n: int, k: int) -> GemvConfig:
        """What a shape without a tuned row uses: the fewest VALU slots on the busiest SIMD among
        the variants that keep enough bytes in flight (see `_cost`)."""
        return min(_candidates(m), key=lambda config: _cost(config, m, n, k))


def _prebuilt() -> list[dict[str, int]]:
    """The distinct variants of PREBUILT_SHAPES."""
    cases = itertools.product(range(1, MAX_M + 1), PREBUILT_SHAPES)
    pairs = [(m, GemvConfig.from_heuristic(m, n, k)) for m, (n, k) in cases]
    return [config.defines(m) for m, config in dict.fromkeys(pairs)]


def _candidates(m: int) -> Iterator[GemvConfig]:
    """Variants that fit the register file: a step holds 4 VGPRs for each row of x and of w."""
    steps = (1, 2) if m <= 4 else (1,)
    for values in itertools.product((64, 32, 16), (4, 3, 2, 1), steps, range(1, 9)):
        yield GemvConfig(*values)


# The cost's unit is a VALU slot, 4 clocks of a SIMD at 2.4 GHz; in one, HBM delivers 13.3 KB.
_BYTES_PER_SLOT = 13_333
# 0.8 us from a load to its use. At 8 TB/s that is 6.4 MB in flight over the chip, 25 KB a CU.
_LATENCY_SLOTS = 480
# Dispatch: 2 clocks a wave and XCD (measured by others on MI300X), 32 CUs to an XCD, 4 SIMDs to
# a CU: one more wave on each SIMD costs as much as 64 slots.
_DISPATCH_SLOTS = 64


def _cost(config: GemvConfig, m: int, n: int, k: int) -> tuple[int, int, int, int]:
    """Order of preference: least time, be it of HBM, of the busiest SIMD's instructions, or of one
    wave after the other, each waiting for its loads; fewest such waits; fewest rows of w on one
    CU; fewest slots.

    Slots are those of the compiled kernel: per 16 bytes of w in a lane 8 conversions and 2 for the
    NaN scale, and per row of x 8 dot products and 4 for the block's scale; 11 per 16 bytes of x.
    """
    rounds = _ceil(k, config.lanes * ALIGN * config.steps * config.waves)
    sums = config.rows * m
    per_step = config.rows * (10 * _ceil(m, 8) + 12 * m) + 11 * m
    per_wave = rounds * config.steps * per_step + 3 * sums + 40
    groups = _ceil(n, config.tile_n)
    waves_per_cu = _ceil(groups, CUS) * config.waves
    slots = _ceil(waves_per_cu, 4) * (per_wave + _DISPATCH_SLOTS)

    registers = 20 + config.steps * 5 * (m + config.rows) + sums + 8 * min(m, 8)
    resident = 4 * min(8, 512 // registers)  # waves of a CU
    batches = _ceil(waves_per_cu, resident)
    chain = batches * (per_wave + rounds * _LATENCY_SLOTS)
    time = max(slots, chain, n * k // _BYTES_PER_SLOT)
    return time, batches * rounds, _ceil(groups, CUS) * config.tile_n, slots


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call of one key needs: the bound kernel and its grid; no kernel if out is empty."""

    m: int
    n: int
    k: int
    kernel: BoundKernel | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


_PLANS: dict[tuple[object, ...], _Plan] = {}
_MAX_PLANS = 1024


def gemm_mxfp8(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    *,
    config: GemvConfig | None = None,
) -> torch.Tensor:
    """out[m, n] = sum_b 2^(x_scale[m, b] + w_scale[n, b] - 254) * sum_{k in b} x[m, k] * w[n, k].

    Parameters
    ----------
    x : [M, K] float8_e4m3fn, M at most 16, K a multiple of 32.
    w : [N, K] float8_e4m3fn.
    x_scale, w_scale : [M, K/32] and [N, K/32] e8m0 (uint8 or float8_e8m0fnu); 255 is NaN.
    dtype : of the result; bfloat16.
    out : [M, N], written in place where given.
    config : a kernel variant instead of the heuristic's.

    All tensors are contiguous, below 2 GiB and on one device (a gfx950, or the cpu: the virtual
    GPU); x and w start at a multiple of 16 bytes. Deterministic for one config. Raises ValueError
    for what does not fit, UnsupportedArch where there is no kernel.
    """
    key: tuple[object, ...]
    try:
        key = (x.shape, w.shape, x_scale.shape, w_scale.shape, x.dtype, w.dtype, x_scale.dtype,
               w_scale.dtype, x.device, w.device, x_scale.device, w_scale.device, dtype,
               config)  # fmt: skip
        if out is not None:
            key = (*key, out.shape, out.dtype, out.device)
    except AttributeError:
        key = ()  # not tensors: the guards say so
    plan = _PLANS.get(key) or _add_plan(key, x, w, x_scale, w_scale, dtype, out, config)

    _check_pointers(x, w, x_scale, w_scale, out)
    if out is None:
        out = torch.empty((plan.m, plan.n), dtype=dtype, device=x.device)
    if plan.kernel is not None:
        plan.kernel.launch(
            grid=plan.grid,
            block=plan.block,
            args=(out, x, w, x_scale, w_scale, plan.n, plan.k),
        )
    return out


def _add_plan(
    key: tuple[object, ...],
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: GemvConfig | None,
) -> _Plan:
    m, n, k = _check(x, w, x_scale, w_scale, dtype, out)
    config = config or GemvConfig.from_heuristic(m, n, k)
    kernel = mxfp8_gemv.bind(device=x.device, defines=config.defines(m)) if m and n else None
    grid = (_ceil(n, config.tile_n), 1, 1)
    plan = _Plan(m, n, k, kernel, grid, (config.waves * WAVE, 1, 1))
    if len(_PLANS) >= _MAX_PLANS:
        _PLANS.pop(next(iter(_PLANS)))
    _PLANS[key] = plan
    return plan


def _check(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
) -> tuple[int, int, int]:
    guard = Guard(OP)
    fp8 = "quantise it with rfops.quant_mxfp8 (float8_e4m3fnuz and e5m2 have other values)"
    guard.tensor("x", x, ("M", "K"), (FP8,), fp8)
    guard.tensor("w", w, ("N", "K"), (FP8,), fp8)
    m, n, k = guard.sizes["M"], guard.sizes["N"], guard.sizes["K"]
    if k == 0 or k % BLOCK:
        guard.fail("K", f"a positive multiple of {BLOCK}", f"K={k}", "pad x and w with zeros")
    if m > MAX_M:
        guard.fail("M", f"at most {MAX_M}", f"M={m}", f"split x into chunks of {MAX_M} rows")
    guard.sizes["K/32"] = k // BLOCK
    raw = "pass the e8m0 bytes, one per 32 elements of K"
    guard.tensor("x_scale", x_scale, ("M", "K/32"), SCALE_DTYPES, raw)
    guard.tensor("w_scale", w_scale, ("N", "K/32"), SCALE_DTYPES, raw)
    if dtype != torch.bfloat16:
        guard.fail("dtype", "bfloat16", str(dtype), "convert the result")
    if out is not None:
        guard.tensor("out", out, ("M", "N"), (dtype,), "pass one of that dtype, or none")
    _check_pointers(x, w, x_scale, w_scale, out)  # here too: refuse before anything is built
    return m, n, k


def _check_pointers(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    out: torch.Tensor | None,
) -> None:
    """What can differ between two calls of one plan."""
    check_layout(OP, "x", x, ALIGN)
    check_layout(OP, "w", w, ALIGN)
    check_layout(OP, "x_scale", x_scale, 1)
    check_layout(OP, "w_scale", w_scale, 1)
    if out is not None:
        check_layout(OP, "out", out, out.element_size())
        inputs = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}
        check_no_overlap(OP, out, inputs)


def gemm_mxfp8_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The formula of `gemm_mxfp8` in plain fp32 torch, block by block, on any device."""
    x_byte = x_scale.view(torch.uint8).to(torch.int32)
    w_byte = w_scale.view(torch.uint8).to(torch.int32)
    total = torch.zeros(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    for block in range(x.shape[1] // BLOCK):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        dots = x[:, span].to(torch.float32) @ w[:, span].to(torch.float32).T
        x_e, w_e = x_byte[:, block, None], w_byte[None, :, block]
        is_nan = (x_e == E8M0_NAN) | (w_e == E8M0_NAN)
        scaled = _ldexp(dots, x_e + w_e - 2 * E8M0_BIAS)
        total += scaled.masked_fill(is_nan, float("nan"))
    return total.to(dtype)


def _ldexp(value: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """value * 2^exponent for |exponent| <= 254, in two exact factors that fp32 can hold."""
    half = exponent >> 1
    for part in (half, exponent - half):
        value = value * ((part + E8M0_BIAS).clamp(min=1) << 23).view(torch.float32)
    return value
