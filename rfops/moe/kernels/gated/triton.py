"""fused_moe with biases and every activation of act_mul in Triton, for weights of every format:
rows sorted by moe_align_block_size, gate and up with biases and activation, down with its bias, the
sum of kernels/bf16. Without a copy to the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rfops.dispatch.config import Allowed, powers
from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.quantization.fp8_blockscale import FNUZ
from rfops.triton import launch
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import TileConfig, spec_of, stages_in_lds, unsupported_arch_reason

from ...align_block_size import moe_align_block_size
from ...experts import layout_sizes, with_shared
from ..bf16.triton import LAYOUT, add_rows
from ..limits import refuses_slots, refuses_weights

_KERNELS = "rfops.moe.kernels.gated.triton_kernels"
_BLOCK_N, _MAX_COLUMNS = 64, 65535
_BLOCK_K = {"16-bit": 64}  # of others 128
_BITS = {"16-bit": 16, "mxfp4": 4}  # of others 8
_FP8_GROUP = 128  # elements of K that share a scale


@dataclass(frozen=True)
class GatedMoeTritonConfig(TileConfig):
    """A variant of triton_kernels.py: the tiles of both products."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 2

    ALLOWED: ClassVar[Allowed] = {**TileConfig.ALLOWED, "block_k": powers(32, 256)}


@dataclass(frozen=True)
class StoredWeights:
    """Weights as a call has them, and how rows become the other operand."""

    form: str  # 16-bit, mxfp4, mxfp8 or fp8
    call: Call  # of the format's op, checked
    w1: Tensor  # [E, 2I, D]
    w2: Tensor  # [E, D, I]
    w1_scale: Tensor | None
    w2_scale: Tensor | None
    # Of rows of x or h, contiguous: the kernels' rows, and their scales where the form has any.
    operand: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    is_weight_only: bool = False  # rows are not quantised


@dataclass(frozen=True)
class Epilogue:
    """What the kernels make of an expert's products, beside the biases' types (None: none)."""

    activation: str
    interleaved: bool
    alpha: float
    limit: float
    beta: float
    bias1_dtype: torch.dtype | None
    bias2_dtype: torch.dtype | None


def unsupported_reason(form: str, c: Call) -> str | None:
    """Why Triton does not take a call with weights of this form; None if it does."""
    if reason := launch.missing() or unsupported_arch_reason(c.arch):
        return reason
    if c.D == 0 or c.I == 0 or c.E == 0:
        return f"D={c.D}, I={c.I}, E={c.E}: nothing to multiply"
    if reason := refuses_weights(c, _BITS.get(form, 8)) or refuses_slots(c):
        return reason
    if ceil(max(c.D, c.I), _BLOCK_N) > _MAX_COLUMNS:
        return f"D={c.D}, I={c.I}: more columns than a grid has"
    if form == "fp8" and c.w1_dtype != fp8_of(c.arch):
        return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
    if form == "fp8" and c.arch.startswith("sm_") and int(c.arch[3:]) < 89:
        return f"{c.arch} has no FP8"
    return None


def unsupported_config_reason(form: str, c: Call, config: GatedMoeTritonConfig) -> str | None:
    """Why the kernels have no such variant for the call; None if they do."""
    if form == "fp8" and config.block_k != _FP8_GROUP:
        return f"block_k must be {_FP8_GROUP}, elements of K that share an FP8 scale"
    if ceil(max(c.D, c.I), config.block_n) > _MAX_COLUMNS:
        return f"D={c.D}, I={c.I}: more columns than a grid has"
    operand_bytes = 1 if form == "fp8" else 2  # MX weights are widened to bf16
    stages = stages_in_lds(config.stages, c.arch)
    lds_bytes = operand_bytes * (config.block_m + config.block_n) * config.block_k * stages
    available = spec_of(c.arch).lds_bytes
    if lds_bytes > available:
        return f"about {lds_bytes} bytes of LDS, {c.arch} has {available}"
    return None


def default(form: str, c: Call) -> GatedMoeTritonConfig:
    """Tiles as high as an expert has rows, up to 64."""
    rows = ceil(c.M * (c.K + c.E - c.R), max(c.E, 1))
    block_m = min(64, max(16, 1 << (rows - 1).bit_length()))
    return GatedMoeTritonConfig(block_m, _BLOCK_N, _BLOCK_K.get(form, 128))


def run(
    x: Tensor,
    stored: StoredWeights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    epilogue: Epilogue,
    config: GatedMoeTritonConfig | None = None,
) -> Tensor:
    """[M, D] of x's dtype, of a call and a config that the unsupported reasons take."""
    c = stored.call
    config = default(stored.form, c) if config is None else config
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    layouts = c.w_layout != "raw", c.values.get("scale_layout", "raw") != "raw"
    form = "fp8_fnuz" if stored.form == "fp8" and c.w1_dtype == FNUZ else stored.form
    if form.startswith("mx") and not c.arch.startswith("gfx"):
        form += "_native"  # triton_product.py
    types = x.dtype, topk_ids.dtype
    kind = c.arch, c.device, tuple(c.sizes.items()), types, layouts
    launches = _launches(form, *kind, epilogue, config)
    launches(out, x, stored, topk_weights, topk_ids, biases)
    return out


class _Launches:
    """The launches of one shape; temporaries come from torch's allocator."""

    def __init__(
        self,
        form: str,
        c: Call,
        shuffled: tuple[bool, bool],
        epilogue: Epilogue,
        config: GatedMoeTritonConfig,
    ) -> None:
        self.experts, self.num_shared, self.columns = c.E, c.E - c.R, c.I
        all_k = c.K + self.num_shared
        self.block_m, block_n = config.block_m, config.block_n
        constants = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": config.block_k,
            "FORM": form,
            "SHUFFLED": shuffled[0],
            "SHUFFLED_SCALES": shuffled[1],
        }
        is_swiglu = epilogue.activation == "swiglu"
        activation = {
            "ACTIVATION": epilogue.activation,
            "ALPHA": float(epilogue.alpha) if is_swiglu else 0.0,
            "LIMIT": float(epilogue.limit) if is_swiglu else 0.0,
            "BETA": float(epilogue.beta) if is_swiglu else 0.0,
        }
        self.num_ids = c.M * all_k
        self.num_slots, blocks = layout_sizes(self.num_ids, self.block_m, c.E, True)
        launched = config.warps, config.stages
        gate_up = BoundTriton(_KERNELS, "gate_up", c.device, constants | activation, *launched)
        self.gate_up = gate_up.prepare(f"h x x_scale w w_scale bias {LAYOUT}")(
            (blocks, ceil(c.I, block_n), 1),
            sizes=(self.num_ids, c.I, c.D, all_k),
            pair_step=2 if epilogue.interleaved else 1,
            up_offset=1 if epilogue.interleaved else c.I,
        )
        down = BoundTriton(_KERNELS, "down", c.device, constants, *launched)
        self.down = down.prepare(f"y h h_scale w w_scale bias {LAYOUT}")(
            (blocks, ceil(c.D, block_n), 1), sizes=(self.num_ids, c.D, c.I)
        )
        self.add = add_rows(c)

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        stored: StoredWeights,
        topk_weights: Tensor,
        topk_ids: Tensor,
        biases: tuple[Tensor | None, Tensor | None],
    ) -> None:
        ids = topk_ids
        if self.num_shared:
            ids = with_shared(topk_weights, topk_ids, self.experts, self.num_shared)[1]
        layout = moe_align_block_size(ids, self.block_m, self.experts, None, True)
        # Slots of blocks that are not in use are quantised too, and so must be numbers.
        is_quantised = stored.form != "16-bit" and not stored.is_weight_only
        make = x.new_zeros if is_quantised else x.new_empty
        h, y = make((self.num_slots, self.columns)), x.new_empty((self.num_ids, x.shape[1]))
        w1, w2, w1_scale, w2_scale = (
            w if w is None or (w.is_floating_point() and w.itemsize > 1) else w.view(torch.uint8)
            for w in (stored.w1, stored.w2, stored.w1_scale, stored.w2_scale)
        )
        bias1, bias2 = (bias if bias is None else bias.contiguous() for bias in biases)
        self.gate_up(h, *stored.operand(x.contiguous()), w1, w1_scale, bias1, *layout)
        self.down(y, *stored.operand(h), w2, w2_scale, bias2, *layout)
        self.add(out, y, topk_weights, topk_ids)


@functools.lru_cache(maxsize=256)
def _launches(
    form: str,
    arch: str,
    device: torch.device,
    sizes: tuple[tuple[str, int], ...],
    _types: tuple[torch.dtype, torch.dtype],  # launches take tensors of one type each
    shuffled: tuple[bool, bool],
    epilogue: Epilogue,
    config: GatedMoeTritonConfig,
) -> _Launches:
    return _Launches(form, Call(arch, 1, device, dict(sizes), {}, {}), shuffled, epilogue, config)
