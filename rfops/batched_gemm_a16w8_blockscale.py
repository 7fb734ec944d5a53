"""batched_gemm_a16w8_blockscale: out[b] = x[b] @ (w[b] * scale)^T with 16-bit x and e4m3 w that has
a scale for each block of 128 x 128: the absorbed weights of MLA. Triton on every architecture."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from . import routing
from .batched_gemm_a16w8_route import ARCHS, OP, decide, route, why
from .guards import Guard, check_dtype, describe, show
from .jit import Plans, UnsupportedArch
from .registration import must_dispatch, register
from .triton import batched_gemm_a16w8_blockscale as routes
from .triton import launch
from .triton.batched_gemm_a16w8_blockscale import (
    SCALE_BLOCK,
    BmmConfig,
    Config,
    RowsConfig,
    Shape,
    StagedConfig,
    TilesConfig,
)

__all__ = [
    "BmmConfig",
    "RowsConfig",
    "StagedConfig",
    "TilesConfig",
    "batched_gemm_a16w8_blockscale",
    "batched_gemm_a16w8_blockscale_ref",
    "route",
    "supports",
    "why",
]

X_DTYPES = (torch.bfloat16, torch.float16)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OCP, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
MAX_BATCH_BYTES = 2**31  # of one batch: offsets inside it are signed 32-bit


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call of one key needs. `run` is None where out is empty, or zeros (K=0)."""

    shape: tuple[int, int, int]
    run: routes.Launch | None
    extents: tuple[int, ...]  # bytes from the first element to the end: x, w, w_scale, out


# Not with out=3: where out's rows lie between those of an input, it is within its span.
_PLANS = Plans(sizes="B M N K", shapes=("B,M,K", "B,N,K", "B,N^128,K^128", "B,M,N"))


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
    are exact and sums are fp32; the route bmm rounds w * w_scale to bfloat16 before, and takes a
    workspace of at most 512 MiB, or of one batch's weights in bfloat16 if these are more, from
    torch's allocator. Deterministic for one config. Raises ValueError for what does not fit,
    UnsupportedArch where there is no kernel, ConfigError for a table that cannot be read.
    """
    plan = None
    if not is_dynamo_compiling():  # which traces Python, and cannot trace `find`
        plan = _PLANS.find(x, w, w_scale, out, dtype, config)
    if plan is None:
        check_dtype(OP, "dtype", dtype, OUT_DTYPES)
        if must_dispatch(x, w, w_scale, out):
            done = _dispatch(x, w, w_scale, dtype, out, config)
            if done is not None:
                return done
        plan = _add_plan(x, w, w_scale, dtype, out, config)
    if out is None:
        out = torch.empty(*plan.shape, dtype=dtype, device=x.device)
    else:
        _check_no_overlap(plan.extents, (x, w, w_scale), out)
    if plan.run is not None:
        plan.run(out, x, w.view(OCP) if w.dtype == torch.uint8 else w, w_scale)
    elif out.numel():
        out.zero_()  # K is 0
    return out


def _add_plan(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: Config | None,
) -> _Plan:
    shape = _check(x, w, w_scale, dtype, out)
    tensors = (x, w, w_scale) if out is None else (x, w, w_scale, out)
    extents = tuple(map(_extent, tensors))
    if out is not None:
        _check_no_overlap(extents, (x, w, w_scale), out)
    if config is not None:
        _check_config(config, shape, x)
    if 0 in shape:
        plan = _Plan((shape.b, shape.m, shape.n), None, extents)
    else:
        arch = _check_arch(x.device, w.dtype)
        family = _Family(tensors, arch, dtype, config)
        plan = family.plan(shape, extents)
        _PLANS.add_family(family, x, w, w_scale, out, dtype, config)
    _PLANS.add(plan, x, w, w_scale, out, dtype, config)
    return plan


class _Family:
    """Makes the plans of calls that differ in sizes alone."""

    def __init__(
        self,
        tensors: tuple[torch.Tensor, ...],
        arch: str,
        dtype: torch.dtype,
        config: Config | None,
    ) -> None:
        self.device, self.x_dtype = tensors[0].device, tensors[0].dtype
        self.arch, self.dtype, self.config = arch, dtype, config
        self.item_sizes = [tensor.element_size() for tensor in tensors]
        self.strides = [None if t.is_contiguous() else t.stride() for t in tensors]

    def __call__(self, b: int, m: int, n: int, k: int) -> _Plan | None:
        """None where the guards, which do not look at sizes alone, have to say why not."""
        shape = Shape(b, m, n, k)
        extents = self._extents(shape)
        refused = self.config is not None and routes.refuses(
            shape, self.x_dtype, self.config, self.arch
        )
        return None if extents is None or refused else self.plan(shape, extents)

    def _extents(self, shape: Shape) -> tuple[int, ...] | None:
        b, m, n, k = shape
        blocks = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
        if m * n * self.dtype.itemsize >= MAX_BATCH_BYTES:
            return None
        extents = []
        sizes = (b, m, k), (b, n, k), (b, *blocks), (b, m, n)
        for (_, rows, columns), strides, size in zip(
            sizes, self.strides, self.item_sizes, strict=False
        ):
            batch, row, one = strides or (rows * columns, columns, 1)
            inside = 1 + (rows - 1) * row + (columns - 1) * one
            if inside * size >= MAX_BATCH_BYTES:
                return None
            extents.append((inside + (b - 1) * batch) * size)
        is_strided_out = len(self.strides) == len(sizes) and self.strides[-1] is not None
        if is_strided_out and _overlaps_itself(sizes[-1], self.strides[-1]):
            return None
        return tuple(extents)

    def plan(self, shape: Shape, extents: tuple[int, ...]) -> _Plan:
        chosen = self.config
        if chosen is None:
            found, chosen = decide(shape, self.x_dtype, self.arch)
            routing.say(lambda: f"{OP} {shape} on {self.arch}", found)
        run = routes.prepare(self.device, shape, chosen)
        return _Plan((shape.b, shape.m, shape.n), run, extents)


def supports(
    *,
    arch: str,
    dtype: torch.dtype = torch.bfloat16,
    shape: tuple[int, int, int, int] | None = None,
    w_dtype: torch.dtype = OCP,
) -> bool:
    """Whether the op gives a result of `dtype` on `arch` (gfx942, gfx950, sm_90, ...) for a shape
    (B, M, N, K) and weights of `w_dtype`."""
    b, m, n, k = shape or (1, 1, 1, 1)
    if dtype not in OUT_DTYPES or min(b, m, n, k) < 0 or routes.family(arch) is None:
        return False
    if 2 * m * k >= MAX_BATCH_BYTES or n * k >= MAX_BATCH_BYTES:
        return False
    if m * n * dtype.itemsize >= MAX_BATCH_BYTES:
        return False
    return w_dtype in (OCP, torch.uint8) or (w_dtype == FNUZ and arch == "gfx942")


batched_gemm_a16w8_blockscale.supports = supports  # type: ignore[attr-defined]


# ---------------------------------------------------------------- guards


def _check(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
) -> Shape:
    guard = Guard(OP, max_bytes=None)
    guard.tensor("x", x, ("B", "M", "K"), X_DTYPES)
    guard.tensor("w", w, ("B", "N", "K"), (OCP, FNUZ, torch.uint8), "quantise it")
    sizes = guard.sizes
    sizes["N/128"] = -(-sizes["N"] // SCALE_BLOCK)
    sizes["K/128"] = -(-sizes["K"] // SCALE_BLOCK)
    one = "pass one scale for each block of 128 x 128"
    guard.tensor("w_scale", w_scale, ("B", "N/128", "K/128"), (torch.float32,), one)
    tensors = {"x": x, "w": w, "w_scale": w_scale}
    if out is not None:
        guard.tensor("out", out, ("B", "M", "N"), (dtype,), "pass one of that dtype, or none")
        if _overlaps_itself(out.shape, out.stride()):
            guard.fail(
                "out",
                "a tensor with each element in a place of its own",
                f"{describe(out)} with strides {list(out.stride())}",
                "pass one that is not expanded, or none",
            )
        tensors["out"] = out
    elif sizes["M"] * sizes["N"] * dtype.itemsize >= MAX_BATCH_BYTES:
        got = f"M={sizes['M']}, N={sizes['N']}"
        guard.fail("the result", "smaller than 2 GiB a batch", got, "split x along M")
    for name, tensor in tensors.items():
        if tensor.numel() and _extent(tensor[0]) >= MAX_BATCH_BYTES:
            guard.fail(
                name,
                "smaller than 2 GiB a batch (the kernel's offsets inside one are signed 32-bit)",
                f"{describe(tensor)} with strides {list(tensor.stride())}: "
                f"{_extent(tensor[0])} bytes",
                "split it and call the op on the parts",
            )
    return Shape(sizes["B"], sizes["M"], sizes["N"], sizes["K"])


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of the one that lies farthest."""
    if tensor.numel() == 0:
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in pairs)) * tensor.element_size()


def _check_no_overlap(
    extents: tuple[int, ...], inputs: tuple[torch.Tensor, ...], out: torch.Tensor
) -> None:
    """`out` shares no byte with an input, which other programs still read. Between the rows of a
    strided out an input may lie."""
    start = out.data_ptr()
    end = start + extents[-1]
    for tensor, extent in zip(inputs, extents, strict=False):
        other = tensor.data_ptr()
        if start < other + extent and other < end and _share_memory(out, tensor):
            name = ("x", "w", "w_scale")[[t is tensor for t in inputs].index(True)]
            Guard(OP).fail(
                "out",
                f"apart from {name}",
                f"{describe(out)} in the memory of {name} {describe(tensor)}",
                "pass another out, or none",
            )


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an address belongs to both; where that is hard to tell, yes."""
    try:
        return np.shares_memory(*map(_as_addresses, (a, b)), max_work=10_000)
    except np.exceptions.TooHardError:
        return True


def _as_addresses(tensor: torch.Tensor) -> np.ndarray:
    """An array in the tensor's place, for its addresses alone: they may be a GPU's."""
    size = tensor.element_size()
    interface = {
        "version": 3,
        "data": (tensor.data_ptr(), True),
        "shape": tuple(tensor.shape),
        "strides": tuple(size * stride for stride in tensor.stride()),
        "typestr": f"|V{size}",
    }
    return np.asarray(type("Place", (), {"__array_interface__": interface})())


def _overlaps_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides put two elements in one place, or may: sorted by stride, each must step over
    all that the smaller ones reach."""
    reach = 0
    dims = zip(sizes, strides, strict=True)
    for stride, size in sorted((stride, size) for size, stride in dims if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _check_config(config: Config, shape: Shape, x: torch.Tensor) -> None:
    _check_kind(config)
    reason = routes.refuses(shape, x.dtype, config, launch.arch_of(x.device))
    if reason:
        Guard(OP).fail("config", "one that takes the shape", f"{config}: {reason}", "pass none")


def _check_kind(config: Config) -> None:
    if not isinstance(config, Config):
        wanted = "a RowsConfig, TilesConfig, StagedConfig or BmmConfig"
        Guard(OP).fail("config", wanted, show(config), "pass one of these, or none")


def _check_arch(device: torch.device, w_dtype: torch.dtype) -> str:
    arch = launch.arch_of(device)
    if routes.family(arch) is None:
        raise UnsupportedArch(OP, arch, ARCHS)
    if w_dtype == FNUZ and arch != "gfx942":
        Guard(OP).fail(
            "w",
            f"float8_e4m3fn on {arch}",
            "float8_e4m3fnuz, which is gfx942's",
            "convert it; fnuz's bytes as e4m3fn are twice the value, and 0x80 is fnuz's NaN",
        )
    reason = launch.missing()
    if reason:
        raise ImportError(f"{OP}: {reason}")
    return arch


# ---------------------------------------------------------------- torch.ops.rfops


def _config_text(config: Config | None) -> str:
    if config is None:
        return ""
    _check_kind(config)
    return f"{routes.route_of(config)} {routing.config_text(config)}"


_config_of = functools.partial(routing.given_config, OP, tuple(routes.ROUTES.items()))


def _functional(
    x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, dtype: torch.dtype, config: str
) -> torch.Tensor:
    return batched_gemm_a16w8_blockscale(x, w, w_scale, dtype, None, _config_of(config))


def _mutating(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    config: str,
    out: torch.Tensor,
) -> None:
    batched_gemm_a16w8_blockscale(x, w, w_scale, dtype, out, _config_of(config))


def _fake(
    x: torch.Tensor, w: torch.Tensor, _w_scale: torch.Tensor, dtype: torch.dtype, _config: str
) -> torch.Tensor:
    return x.new_empty((x.shape[0], x.shape[1], w.shape[1]), dtype=dtype)


_INPUTS = "Tensor x, Tensor w, Tensor w_scale, ScalarType dtype, str config"
_op = register(f"{OP}({_INPUTS}) -> Tensor", _functional, _fake)
_op_out = register(f"{OP}_out({_INPUTS}, Tensor(a!) out) -> ()", _mutating, lambda *_args: None)


def _dispatch(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    config: Config | None,
) -> torch.Tensor | None:
    """The call as torch's op; None if an argument is none of a tensor, which the guards refuse."""
    tensors = (x, w, w_scale) if out is None else (x, w, w_scale, out)
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    text = _config_text(config)
    if out is None:
        result: torch.Tensor = _op(x, w, w_scale, dtype, text)
        return result
    _op_out(x, w, w_scale, dtype, text, out)
    return out


# ---------------------------------------------------------------- reference


def batched_gemm_a16w8_blockscale_ref(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The formula in plain fp32 torch, one block of K at a time, on any device."""
    check_dtype(f"{OP}_ref", "dtype", dtype, (*OUT_DTYPES, torch.float64))
    n, k = w.shape[1:]
    scale = w_scale.repeat_interleave(SCALE_BLOCK, 1)[:, :n]
    values = w.view(OCP) if w.dtype == torch.uint8 else w
    total = torch.zeros(x.shape[0], x.shape[1], n, dtype=torch.float32, device=x.device)
    for block in range(-(-k // SCALE_BLOCK)):
        span = slice(block * SCALE_BLOCK, (block + 1) * SCALE_BLOCK)
        dots = x[:, :, span].float() @ values[:, :, span].float().mT
        total += dots * scale[:, None, :, block]
    return total.to(dtype)
