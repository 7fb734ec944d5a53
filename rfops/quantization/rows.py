"""Rows that an op computes and stores, as they are or quantised: formats, the shapes of their
results, how the lanes of a workgroup share rows (csrc/include/rfops/store/row_quant.h), and the
same in plain torch.

| quant | payload | scale | of how many elements |
|---|---|---|---|
| fp8_group | FP8 [M, K] | fp32 [M, K/128] | 128 along K, as gemm_a8w8_blockscale takes it |
| fp8_token | FP8 [M, K] | fp32 [M, 1] | a row |
| fp8_tensor | FP8 [M, K] | the caller's, fp32 [1] | all |
| mxfp4 | e2m1 [M, K/2], two a byte | e8m0 [M, K/32] | 32 along K, rounded `even` |
| mxfp8 | OCP e4m3 [M, K] | e8m0 [M, K/32] | 32 along K, rounded `up` |

Each quantises what the op computes as rounded to the dtype of its input, so that results have the
bits that the quantiser of that name gives for the op's plain result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from rfops.dispatch.declare import DTYPES, E8M0, TensorArg, fp8_of
from rfops.dispatch.guards import Guard, check_no_overlap, describe
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.strided import overlaps_itself

from . import fp8_blockscale, mxfp4, mxfp8

VEC = 8  # elements that a lane loads at once, of aligned rows
IN_TYPES = fp8_blockscale.IN_TYPES
_WAVE = 64
_MAX_WAVES = 8  # of a row
_MAX_CHUNKS = 8  # of a lane: registers
_SHARED_THREADS = 256  # of a workgroup whose waves have whole rows
_FP8 = (fp8_blockscale.OCP, fp8_blockscale.FNUZ)
WORDS = "fp8_group|fp8_token|fp8_tensor|mxfp4|mxfp8"


@dataclass(frozen=True)
class Format:
    """A quantisation: its name in device code, the elements that share a scale (0: a row), the
    payload's dtypes and the scale's."""

    define: str
    block: int
    dtypes: tuple[torch.dtype, ...]
    scale: torch.dtype = torch.float32


FORMATS = MappingProxyType(
    {
        "fp8_group": Format("kFp8Group", fp8_blockscale.BLOCK, _FP8),
        "fp8_token": Format("kFp8Token", 0, _FP8),
        "fp8_tensor": Format("kFp8Tensor", 0, _FP8),
        "mxfp4": Format("kMxfp4", mxfp8.BLOCK, DTYPES["fp4"], E8M0),
        "mxfp8": Format("kMxfp8", mxfp8.BLOCK, (fp8_blockscale.OCP,), E8M0),
    }
)


@dataclass(frozen=True)
class RowLanes:
    """How a workgroup's lanes share rows: `lanes` lanes per row, `chunks` chunks of `vec` elements
    per lane, `threads` lanes in all; `exact` where a row fills all chunks."""

    vec: int
    lanes: int
    chunks: int
    threads: int
    exact: bool

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.threads // self.lanes

    def defines(self) -> dict[str, int]:
        """The constants of the device code."""
        return {
            "VEC": self.vec,
            "LANES": self.lanes,
            "CHUNKS": self.chunks,
            "THREADS": self.threads,
            "EXACT": int(self.exact),
        }


def row_lanes(k: int, vec: int, max_waves: int = _MAX_WAVES) -> RowLanes | None:
    """The lanes of rows of k; None where a row is too long for registers.

    A long row has up to `max_waves` and the fewest chunks: for K = 7168, seven waves of two. A lone
    token is bound by latency (bf16, estimated on MI355X: 14 waves of one chunk 3.52 us, 7 of two
    3.30, 4 of four 4.00); 16384 rows to FP8 take 65.6 us, and 66.8 with two waves of seven.
    """
    units = -(-k // vec)
    if units <= _WAVE:
        lanes = 1 << max(units - 1, 0).bit_length()
        return RowLanes(vec, lanes, 1, _SHARED_THREADS, units == lanes)
    waves = -(-units // _WAVE)
    chunks = -(-waves // max_waves)
    if chunks > _MAX_CHUNKS:
        return None
    lanes = -(-waves // chunks) * _WAVE
    return RowLanes(vec, lanes, chunks, lanes, lanes * chunks == units)


@dataclass(frozen=True)
class RowStrides:
    """Row r begins at r // inner * outer_stride + r % inner * inner_stride elements."""

    outer_stride: int
    inner: int
    inner_stride: int

    @property
    def is_nested(self) -> bool:
        """Whether rows have two strides."""
        return self.inner > 1

    def split(self, inner: int) -> RowStrides:
        """Return the same rows counted in groups of `inner`; rows that have two strides stay."""
        if self.is_nested:
            return self
        return RowStrides(self.outer_stride * inner, inner, self.outer_stride)

    def is_aligned(self, itemsize: int) -> bool:
        """Return whether all rows are aligned to 16 bytes if the first one is."""
        strides = (self.outer_stride, self.inner_stride if self.is_nested else 0)
        return all(stride * itemsize % 16 == 0 for stride in strides)


def row_strides(view: Any, k: int) -> RowStrides | None:
    """Return where the rows of k elements of a tensor or view begin; None where the elements of a
    row are not contiguous, or the rows have more than two strides. Without a view: contiguous
    rows."""
    if view is None or view.is_contiguous():
        return RowStrides(k, 1, 0)
    sizes, strides = list(view.shape), [view.stride(i) for i in range(view.dim())]
    if (strides[-1] != 1 and sizes[-1] != 1) or min(strides) < 0:
        return None
    levels: list[tuple[int, int]] = []  # (size, stride) of leading dimensions, the outermost first
    for size, stride in zip(sizes[:-1], strides[:-1], strict=True):
        if size == 1:
            continue
        if levels and levels[-1][1] == size * stride:
            levels[-1] = (levels[-1][0] * size, stride)
        else:
            levels.append((size, stride))
    if len(levels) > 2:
        return None
    if len(levels) == 2:
        return RowStrides(levels[0][1], levels[1][0], levels[1][1])
    return RowStrides(levels[0][1] if levels else k, 1, 0)


class RowQuantOp(Op):
    """An op that stores rows of K elements by `quant`, into payload and scale."""

    def call_of(self, arch: str = "gfx950", cu_num: int | None = None, **values: Any) -> Call:
        quant = values.get("quant", next(iter(FORMATS)))
        default = default_dtype(quant, arch)
        defaults = {"dtype": default, "static_scale": quant == "fp8_tensor", **values}
        return super().call_of(arch, cu_num, **defaults)

    def row_size(self, columns: int) -> int:
        """Return the elements of a row of results for rows of x of `columns`, the op's last
        size."""
        return columns

    def result_sizes(self, c: Call) -> Mapping[str, int]:
        *_, columns = c.sizes.values()
        return {**c.sizes, **quant_sizes(c, c.M, self.row_size(columns))}

    def dtype_of(self, arg: TensorArg, c: Call) -> torch.dtype:
        return FORMATS[c.quant].scale if arg.name == "scale" else super().dtype_of(arg, c)

    def unsupported_reason(self, c: Call, *sizes: int) -> tuple[str, str, str, str] | None:
        return quant_refusal(c, self.row_size(sizes[-1]))


def default_dtype(quant: str, arch: str) -> torch.dtype:
    """Return the payload's default dtype: for FP8 with fp32 scales the one that the architecture's
    matrix cores multiply."""
    return fp8_of(arch) if quant.startswith("fp8") else FORMATS[quant].dtypes[0]


def quant_sizes(c: Call, rows: int, k: int) -> Mapping[str, int]:
    """Return the sizes of payload [rows, columns] and scale [scale_rows, scale_columns]."""
    format = FORMATS[c.quant]
    groups = k // format.block if format.block else 1
    scale = (rows, groups) if c.quant != "fp8_tensor" else (0, 0)
    scale = scale[::-1] if c.transpose_scale else scale
    columns = k // 2 if c.quant == "mxfp4" else k
    return {"columns": columns, "scale_rows": scale[0], "scale_columns": scale[1]}


def store_numbers(c: Call, rows: int, k: int) -> dict[str, int]:
    """Return the launch's numbers that say where payload and scale are stored: strides between
    rows, in bytes and in elements, and between groups along K."""
    sizes = quant_sizes(c, rows, k)
    scale = (1, rows) if c.transpose_scale else (sizes["scale_columns"], 1)
    return {"out_outer": sizes["columns"], "scale_row": scale[0], "scale_k": scale[1]}


def row_refusal(c: Call) -> tuple[str, str, str, str] | None:
    """Return a refusal of a residual whose dtype is not that of x, or None."""
    if c.tensors.get("residual") is None or c.residual_dtype == c.x_dtype:
        return None
    x_dtype, residual_dtype = (str(d).removeprefix("torch.") for d in (c.x_dtype, c.residual_dtype))
    return "residual", f"{x_dtype}, as x is", residual_dtype, "convert it first"


def check_out_of_rows(name: str, out: Any, *inputs: Any) -> None:
    """Check that a result of rows is the first input itself or overlaps no input, because rows are
    written in no order. Raises ValueError."""
    if out is None:
        return
    if overlaps_itself(out.shape, out.stride()):
        Guard(name).fail(
            "out",
            "of elements with places of their own",
            describe(out),
            "pass one that is not expanded",
        )
    x = inputs[0]
    is_x = out.data_ptr() == x.data_ptr() and out.shape == x.shape and out.stride() == x.stride()
    named_tensors = dict(zip(("x", "weight", "residual"), inputs, strict=False))
    named_inputs = {
        n: t for n, t in named_tensors.items() if t is not None and not (is_x and n == "x")
    }
    check_no_overlap(name, "out", out, named_inputs)


def payload_dtype(quant: str, x: Any) -> torch.dtype:
    """Return the payload's dtype of a call that names none, by the device of x; for an unknown
    `quant`, which the op refuses, any."""
    if quant not in FORMATS or not isinstance(x, torch.Tensor):
        return fp8_blockscale.OCP
    if not quant.startswith("fp8") or x.device.type not in ("cpu", "cuda"):
        return FORMATS[quant].dtypes[0]
    return fp8_blockscale.fp8_of_device(x.device)


def quantised(
    payload: torch.Tensor,
    scale: torch.Tensor,
    static_scale: torch.Tensor | None,
    transpose_scale: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a call returns: the payload, and the scale as [M, groups], or the caller's
    static_scale."""
    if static_scale is not None:
        return payload, static_scale
    return payload, scale.T if transpose_scale else scale


def fit_scale(c: Call) -> Mapping[str, Any]:
    """Return the static scale of a random problem, None where the call has none."""
    scale = torch.full((1,), 1 / 64) if c.has("static_scale") else None
    return {"static_scale": scale}


def quant_refusal(c: Call, k: int) -> tuple[str, str, str, str] | None:
    """Return a refusal of a row size `k`, dtype or scale that does not fit the quantisation, or
    None."""
    format = FORMATS[c.quant]
    if format.block and k % format.block:
        expected = f"a multiple of {format.block} for quant {c.quant!r}"
        return "K", expected, f"K={k}", "pad it with zeros, or take fp8_token"
    if c.dtype not in format.dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in format.dtypes)
        dtype_name = str(c.dtype).removeprefix("torch.")
        return "dtype", f"{names} for quant {c.quant!r}", dtype_name, "pass one of these"
    if c.has("static_scale") != (c.quant == "fp8_tensor"):
        expected = "a tensor for quant 'fp8_tensor', and None for others"
        return "static_scale", expected, f"quant={c.quant!r}", "pass it where it is used"
    if c.transpose_scale and c.quant != "fp8_group":
        return "transpose_scale", "False but for fp8_group", f"quant={c.quant!r}", "leave it out"
    return None


def quantise_rows(
    y: torch.Tensor,
    quant: str,
    static_scale: torch.Tensor | None,
    transpose_scale: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise y [M, K] in plain torch; return payload and scale with the same bits as HIP's. For
    fp8_tensor the scale is empty, because the caller has it."""
    k = y.shape[-1]
    if quant == "fp8_group":
        return fp8_blockscale.reference(y, 1, transpose_scale, dtype)
    if quant == "fp8_token":
        payload, scale = fp8_blockscale.quantise_tiles(y.float()[:, None, None], dtype)
        return payload.view(y.shape), scale
    if quant == "fp8_tensor":
        assert static_scale is not None
        max_value = fp8_blockscale.max_of(dtype)
        scaled = (y.float() * (1.0 / static_scale)).clamp(-max_value, max_value)
        return scaled.to(dtype), static_scale.new_empty(0, 0)
    payload = y.new_empty(*y.shape[:-1], k // 2 if quant == "mxfp4" else k, dtype=dtype)
    scale = y.new_empty(*y.shape[:-1], k // mxfp8.BLOCK, dtype=E8M0)
    if quant == "mxfp4":
        mxfp4._quantise(payload, scale, y, mxfp4.ROUNDING["even"])
    else:
        mxfp8._quantise(payload, scale, y, mxfp8.ROUNDING["up"])
    return payload, scale
