"""batched_gemm_a16w8_blockscale: out[b] = x[b] @ (w[b] * scale)^T with 16-bit x and e4m3 w that has
a scale for each block of 128 x 128: the absorbed weights of MLA. Triton on every architecture.

A tuned row of the shape, or of one near it, names the kernel and its config; else
kernels/a16w8/triton.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from rfops.dispatch.guards import OUT_DTYPES, check_dtype, describe
from rfops.dispatch.kernel import Call, Run
from rfops.dispatch.op import Op
from rfops.dispatch.problem import grid
from rfops.dispatch.routing import Decision, KernelSelector
from rfops.dispatch.strided import check_apart, extent, extent_of, overlaps_itself, strides_of
from rfops.dispatch.time_model import Array, Layer, Variants
from rfops.dispatch.tuned_table import serving
from rfops.jit import UnsupportedArch
from rfops.triton import launch

from .kernels.a16w8.config import SCALE_BLOCK, Config, Shape, TilesConfig
from .kernels.a16w8.triton import (
    MAX_ROWS,
    Bmm,
    Rows,
    Staged,
    Tiles,
    convert_instructions,
    order,
    shape_of,
    takes_bmm,
)
from .terms import GemmModel, chip_of

__all__ = ["batched_gemm_a16w8_blockscale", "batched_gemm_a16w8_blockscale_ref"]

OCP, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
MAX_BATCH_BYTES = 2**31  # of one batch: offsets inside it are signed 32-bit
ARCHS = ("gfx942", "gfx950", "sm_89 and later")


class _BatchedGemm(Op):
    def is_empty(self, c: Call) -> bool:
        return 0 in c.sizes.values()

    def flops(self, c: Call) -> int:
        return int(2 * c.B * c.M * c.N * c.K)

    def order(self, c: Call) -> Sequence[str]:
        """By predicted times where the model ranks kernels; large problems go to torch.bmm."""
        assert self.time_model is not None, "it is declared with one"
        ranked = tuple(self.time_model.rank(c)) or order(c)
        return ("bmm", *ranked) if takes_bmm(c) else ranked

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """An absorbed product of MLA's heads on a GPU, or now and then a larger one."""
        layers = _STREAMED if rng.random() < _STREAMED_CALLS else _ABSORBED
        b, n, k = rng.choice(layers)
        while True:
            m = round(math.exp(rng.uniform(0, math.log(_MOST_M))))
            if b * m * n * k <= _MAX_WORK:
                return {"B": b, "M": m, "N": n, "K": k}

    def peer(self, c: Call) -> tuple[str, Callable[[], object]]:
        """On weights dequantised beforehand: twice the bytes."""
        x, w, scale = c.given("x", "w", "w_scale")
        w = w.view(OCP) if w.dtype == torch.uint8 else w
        values = torch.empty(w.shape, dtype=x.dtype, device=x.device)
        for one, codes, factors in zip(values, w, scale, strict=True):
            full = factors.repeat_interleave(SCALE_BLOCK, 0)[: c.N]
            one.copy_(codes.float() * full.repeat_interleave(SCALE_BLOCK, 1)[:, : c.K])
        return "torch_bmm", lambda: torch.bmm(x, values.mT)

    def run_empty(self, c: Call) -> Run:
        return lambda out, *_inputs: out.zero_() if out.numel() else None  # K may be 0

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        b, m, n, _k = sizes
        if 0 not in sizes:
            _check_arch(c)
        out = c.tensors.get("out")
        if out is not None:
            if 0 not in (b, m, n) and overlaps_itself((b, m, n), strides_of(out, (b, m, n))):
                expected = "a tensor with each element in a place of its own"
                actual = f"{describe(out)} with strides {list(out.strides)}"
                return "out", expected, actual, "pass one that is not expanded, or none"
        elif m * n * c.dtype.itemsize >= MAX_BATCH_BYTES:
            return "the result", "smaller than 2 GiB a batch", f"M={m}, N={n}", "split x along M"
        for name, shape in _shapes(Shape(*sizes)).items():
            tensor = c.tensors.get(name)
            strides = (0, shape[2], 1) if tensor is None else strides_of(tensor, shape)
            dtype = c.dtype if name == "out" else getattr(c, f"{name}_dtype")
            size = extent(shape[1:], strides[1:], dtype.itemsize)
            if size >= MAX_BATCH_BYTES:
                limit = "the kernel's offsets inside one are signed 32-bit"
                lies = "" if tensor is None else f" with strides {list(tensor.strides)}"
                actual = f"{describe(tensor)}{lies}: {size} bytes"
                fix = "split it and call the op on the parts"
                return name, f"smaller than 2 GiB a batch ({limit})", actual, fix
        return None

    def finish_run(self, c: Call, run: Run) -> Run:
        """Check a given out for overlaps with the inputs, which may lie between the rows of a
        strided one."""
        is_bytes, has_out = c.w_dtype == torch.uint8, c.has("out")
        if not is_bytes and not has_out:
            return run
        pairs = [(c.tensors.get(n), sizes) for n, sizes in _shapes(shape_of(c)).items()]
        extents = [extent_of(t, sizes) for t, sizes in pairs if t is not None]
        names = "x", "w", "w_scale"

        def checked(
            out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor
        ) -> None:
            if has_out:
                check_apart(self.name, out, extents, names, (x, w, w_scale))
            run(out, x, w.view(OCP) if is_bytes else w, w_scale)

        return checked

    def route(self, c: Call, router: KernelSelector | None = None) -> Decision:
        if serving(c.arch) is None:
            raise UnsupportedArch(self.name, c.arch, ARCHS)
        return super().route(c, router)


# B, N and K: w_uk and w_uv of MLA's heads on a GPU, of latent dimension 512 and heads of 128 or
# 192; and larger weights.
_ABSORBED = tuple((b, *nk) for b in (8, 16, 32, 64, 128) for nk in ((512, 128), (128, 512)))
_STREAMED = ((16, 2048, 512), (8, 4096, 1024), (4, 4096, 4096), (32, 1536, 512), (16, 512, 192))
_GROUP_N = TilesConfig(16, 32, 128).group_n
_STREAMED_CALLS, _MOST_M, _MAX_WORK = 0.35, 1024, 4e9


class _Model(GemmModel):
    """Of programs of few waves, whose own instructions may take longer than the CU's."""

    traits = (*GemmModel.traits, "sums_clocks")
    units: ClassVar[dict[str, str]] = {
        **GemmModel.units,
        "wave": "1: of a wave's instructions along K, of all rounds",
        "wave_convert": "1: of a wave's conversions along K, of all rounds",
        "stacked": "1: of the instructions of the SIMD with the most waves",
        "stacked_convert": "1: of the conversions of the SIMD with the most waves",
        "fabric": "1: of what XCDs load, at HBM's rate: w from each that has a tile of its rows",
        "sums": "1: of a wave's instructions that add up lanes' sums, of all rounds",
    }
    terms = tuple(units)
    logs = (*GemmModel.logs, "tile_m", "tile_n", "convert")
    factors = (
        *GemmModel.factors,
        "stacked",  # waves of the SIMD with the most
        "w_reads",  # XCDs that load the same rows of w
    )

    def prepare(self, v: Variants, c: Call) -> None:
        super().prepare(v, c)
        waves_of_simd = np.exp2(v.log_waves) / chip_of(c).simds
        v.derived = {**v.derived, "waves_of_simd": waves_of_simd}

    def layer(self, v: Variants, c: Call) -> Layer:
        layer = super().layer(v, c)
        chip = chip_of(c)
        k_us = c.K / (1e6 * chip.hbm_tb_s)  # of a byte of each element of K
        tiles_n = np.ceil(c.N / v.n)
        wave_us = self.wave_us(layer, v, c)
        terms = {
            "wave": {"rounds": wave_us * v.busy_clocks},
            "wave_convert": {"rounds": wave_us * v.convert_clocks},
            "stacked": {"stacked": wave_us * v.busy_clocks},
            "stacked_convert": {"stacked": wave_us * v.convert_clocks},
            "fabric": {
                "w_reads": c.B * c.N * k_us,
                "M": tiles_n * (c.B * c.x_dtype.itemsize * k_us),
            },
            "sums": {"rounds": wave_us * v.sums_clocks},
        }
        # Tiles of the same rows of w follow each other by `group`, and tiles are dealt out to XCDs.
        group = tiles_n if c.K <= SCALE_BLOCK else np.minimum(tiles_n, _GROUP_N)
        max_reads = chip.xcds / np.gcd(group.astype(np.int64), chip.xcds)
        return layer._replace(
            derived={**layer.derived, "max_reads": max_reads},
            terms={**layer.terms, **terms},
            logs={
                **layer.logs,
                "tile_m": np.log2(v.m),
                "tile_n": np.log2(v.n),
                "convert": math.log2(1 + convert_instructions(c)),
            },
        )

    def changes(
        self, v: Variants, c: Call, layer: Layer, factors: Sequence[Array], logs: Sequence[Array]
    ) -> Array:
        *common, stacked, w_reads = factors
        excluded = super().changes(v, c, layer, common, logs)
        np.divide(common[5], layer.derived["groups_of_m"], out=w_reads)
        np.minimum(w_reads, layer.derived["max_reads"], out=w_reads)
        np.multiply(common[3], v.derived["waves_of_simd"], out=stacked)
        np.ceil(stacked, out=stacked)
        return excluded

    def batches(self, c: Call) -> int:
        return int(c.B)

    def static(self, c: Call) -> tuple[Any, ...]:
        return *super().static(c), min(c.M, MAX_ROWS + 1), convert_instructions(c)

    def bytes_of(self, c: Call) -> tuple[float, float, float]:
        return c.x_dtype.itemsize, 1, c.dtype.itemsize


OP = _BatchedGemm(
    "batched_gemm_a16w8_blockscale",
    """
    x: bf16|f16[B, M, K] strided
    w: e4m3|e4m3fnuz|u8[B, N, K] strided
    w_scale: f32[B, N^128, K^128] strided
    dtype: bf16|f16|f32
    -> out: dtype[B, M, N] strided
    """,
    sizes="B M N K",
    table="B~ M+ N~ K~",
    shapes={
        "published": [
            *grid("N K", [(512, 128), (128, 512)], B=(16, 32, 64, 128), M=(1, 32, 128)),
            {"B": 16, "M": 8192, "N": 8192, "K": 8192},
        ],
        "streamed": grid(  # weights beyond any last-level cache
            "B N K", [(128, 2048, 512), (16, 4096, 4096), (32, 7168, 2048)], M=(1, 16, 32)
        ),
    },
    kernels=(Rows(), Tiles(), Staged(), Bmm()),
    time_model=_Model,
    hints={"w": "quantise it", "w_scale": "pass one scale for each block of 128 x 128"},
)


def batched_gemm_a16w8_blockscale(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:
    """out[b, m, n] = sum_k x[b, m, k] * w[b, n, k] * w_scale[b, n // 128, k // 128].

    Parameters
    ----------
    x : [B, M, K] bfloat16 or float16.
    w : [B, N, K] float8_e4m3fn, on gfx942 also float8_e4m3fnuz; uint8 is taken as e4m3fn's bytes.
    w_scale : [B, ceil(N/128), ceil(K/128)] float32.
    dtype : of the result; bfloat16, float16 or float32.
    out : [B, M, N], written in place where given; no two elements in one place.
    config : a RowsConfig, TilesConfig, StagedConfig or BmmConfig instead of what `rfops why` says.

    Any sizes and any strides, elements side by side along K being the fast case; one batch of each
    tensor spans less than 2 GiB. All on one device: a GPU, or the cpu (the virtual GPU). Products
    are exact and sums are fp32; the route bmm, of bfloat16 results alone, rounds w * w_scale to
    bfloat16 before, and takes a workspace of at most 512 MiB, or of one batch's weights in bfloat16
    if these are more, from torch's allocator. Deterministic for one config. Raises ValueError for
    what does not fit, UnsupportedArch where there is no kernel, ConfigError for a table that cannot
    be read.

    Source: DeepSeek-V3 Technical Report (arXiv:2412.19437), 3.3: weights with a scale for each
    block of 128 x 128.
    """
    call: Callable[..., torch.Tensor] = OP.traced if is_dynamo_compiling() else OP.call
    return call(x, w, w_scale, dtype, out, config)


batched_gemm_a16w8_blockscale.supports = OP.supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- checks


def _shapes(shape: Shape) -> dict[str, tuple[int, int, int]]:
    b, m, n, k = shape
    blocks = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    return {"x": (b, m, k), "w": (b, n, k), "w_scale": (b, *blocks), "out": (b, m, n)}


def _check_arch(c: Call) -> None:
    if serving(c.arch) is None:
        raise UnsupportedArch(OP.name, c.arch, ARCHS)
    if c.w_dtype == FNUZ and c.arch != "gfx942":
        OP.fail(
            "w",
            f"float8_e4m3fn on {c.arch}",
            "float8_e4m3fnuz, which is gfx942's",
            "convert it; fnuz's bytes as e4m3fn are twice the value, and 0x80 is fnuz's NaN",
        )
    reason = launch.missing()
    if reason:
        raise ImportError(f"{OP.name}: {reason}")


# ---------------------------------------------------------------- reference


def batched_gemm_a16w8_blockscale_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The formula of `batched_gemm_a16w8_blockscale` in plain fp32 torch, one block of K at a time.

    Takes x, w and w_scale as the op does, on any device. dtype : of the result; bfloat16, float16,
    float32 or float64. Returns [B, M, N]. Raises ValueError for another dtype, and torch's
    RuntimeError for sizes that do not fit each other.

    Source: as of the op; each block's sum is scaled before it is added.
    """
    check_dtype("batched_gemm_a16w8_blockscale_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    n, k = w.shape[1:]
    scale = w_scale.repeat_interleave(SCALE_BLOCK, 1)[:, :n]
    values = w.view(OCP) if w.dtype == torch.uint8 else w
    total = torch.zeros(x.shape[0], x.shape[1], n, dtype=torch.float32, device=x.device)
    for block in range(-(-k // SCALE_BLOCK)):
        span = slice(block * SCALE_BLOCK, (block + 1) * SCALE_BLOCK)
        dots = x[:, :, span].float() @ values[:, :, span].float().mT
        total += dots * scale[:, None, :, block]
    return total.to(dtype)


OP.reference = batched_gemm_a16w8_blockscale_ref
