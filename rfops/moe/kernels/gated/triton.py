"""fused_moe with biases and every activation of act_mul in Triton, for weights of every format:
rows sorted by moe_align_block_size, gate and up with biases and activation, down with its bias, the
sum of kernels/bf16. Without a copy to the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rfops.dispatch.declare import fp8_of
from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call
from rfops.quantization.fp8_blockscale import FNUZ
from rfops.triton import launch
from rfops.triton.bound import BoundTriton
from rfops.triton.kernel import unsupported_arch_reason

from ...align_block_size import moe_align_block_size
from ...experts import layout_sizes, with_shared
from ..bf16.triton import LAYOUT, add_rows
from ..limits import refuses_slots, refuses_weights

_KERNELS = "rfops.moe.kernels.gated.triton_kernels"
_BLOCK_N, _MAX_COLUMNS = 64, 65535
_BLOCK_K = {"16-bit": 64}  # of others 128
_BITS = {"16-bit": 16, "mxfp4": 4}  # of others 8


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


def unsupported_reason(stored: StoredWeights) -> str | None:
    """Why Triton does not take the call; None if it does."""
    c, bits = stored.call, _BITS.get(stored.form, 8)
    if reason := launch.missing() or unsupported_arch_reason(c.arch):
        return reason
    if c.D == 0 or c.I == 0 or c.E == 0:
        return f"D={c.D}, I={c.I}, E={c.E}: nothing to multiply"
    if reason := refuses_weights(c, bits) or refuses_slots(c):
        return reason
    if ceil(max(c.D, c.I), _BLOCK_N) > _MAX_COLUMNS:
        return f"D={c.D}, I={c.I}: more columns than a grid has"
    if stored.form == "fp8" and c.w1_dtype != fp8_of(c.arch):
        return f"{c.arch} multiplies {fp8_of(c.arch)}, not {c.w1_dtype}"
    if stored.form == "fp8" and c.arch.startswith("sm_") and int(c.arch[3:]) < 89:
        return f"{c.arch} has no FP8"
    return None


def run(
    x: Tensor,
    stored: StoredWeights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    epilogue: Epilogue,
) -> Tensor:
    """[M, D] of x's dtype, of a call that unsupported_reason takes."""
    c = stored.call
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    layouts = c.w_layout != "raw", c.values.get("scale_layout", "raw") != "raw"
    form = "fp8_fnuz" if stored.form == "fp8" and c.w1_dtype == FNUZ else stored.form
    types = x.dtype, topk_ids.dtype
    launches = _launches(form, c.arch, c.device, tuple(c.sizes.items()), types, layouts, epilogue)
    launches(out, x, stored, topk_weights, topk_ids, biases)
    return out


class _Launches:
    """The launches of one shape; temporaries come from torch's allocator."""

    def __init__(self, form: str, c: Call, shuffled: tuple[bool, bool], epilogue: Epilogue) -> None:
        self.experts, self.shared, self.columns = c.E, c.E - c.R, c.I
        all_k = c.K + self.shared
        rows = ceil(c.M * all_k, max(c.E, 1))  # of an expert
        self.block_m = min(64, max(16, 1 << (rows - 1).bit_length()))
        constants = {
            "BLOCK_M": self.block_m,
            "BLOCK_N": _BLOCK_N,
            "BLOCK_K": _BLOCK_K.get(form, 128),
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
        self.slots, blocks = layout_sizes(self.num_ids, self.block_m, c.E, True)
        gate_up = BoundTriton(_KERNELS, "gate_up", c.device, constants | activation, 4, 2)
        self.gate_up = gate_up.prepare(f"h x x_scale w w_scale bias {LAYOUT}")(
            (blocks, ceil(c.I, _BLOCK_N), 1),
            sizes=(self.num_ids, c.I, c.D, all_k),
            pair_step=2 if epilogue.interleaved else 1,
            up_offset=1 if epilogue.interleaved else c.I,
        )
        down = BoundTriton(_KERNELS, "down", c.device, constants, 4, 2)
        self.down = down.prepare(f"y h h_scale w w_scale bias {LAYOUT}")(
            (blocks, ceil(c.D, _BLOCK_N), 1), sizes=(self.num_ids, c.D, c.I)
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
        if self.shared:
            ids = with_shared(topk_weights, topk_ids, self.experts, self.shared)[1]
        layout = moe_align_block_size(ids, self.block_m, self.experts, None, True)
        # Slots of blocks that are not in use are quantised too, and so must be numbers.
        make = x.new_empty if stored.form == "16-bit" else x.new_zeros
        h, y = make((self.slots, self.columns)), x.new_empty((self.num_ids, x.shape[1]))
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
) -> _Launches:
    return _Launches(form, Call(arch, 1, device, dict(sizes), {}, {}), shuffled, epilogue)
