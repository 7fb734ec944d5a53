"""aiter.ops.shuffle: rfops' layouts as plain tensors, which engines keep as parameters.

A shuffled weight carries the mark `is_shuffled`, by which fused_moe knows its layout; a copy of the
tensor loses the mark, as with aiter."""

from __future__ import annotations

import torch
from torch import Tensor

from rfops.dispatch.guards import Guard, describe
from rfops.jit.errors import show
from rfops.quantization import shuffle as layouts

WAVE = 64  # lanes
_ONE = 127  # e8m0 of 1


def shuffle_weight(
    x: Tensor,
    layout: tuple[int, int] = (16, 16),
    use_int4: bool = False,
    is_guinterleave: bool = False,
    gate_up: bool = False,
    pad_k_to: int = 0,
) -> Tensor:
    """Return x [..., rows, columns] in tiles of 16 rows by 16 bytes, same shape and dtype, marked.

    With is_guinterleave, x [E, N, bytes] is in the layout of aiter's a16w4 kernels, whose tiles of
    gate and up rows alternate where gate_up. With pad_k_to, columns are padded with zeros to a
    multiple of it. Raises ValueError for int4 and for other layouts.
    """
    if use_int4:
        Guard("shuffle_weight").fail("use_int4", "False", "True", "rfops has no int4 kernels")
    if is_guinterleave:
        tiles = _lane_tiles(x, layout[0], gate_up)
        tiles.is_shuffled = True  # type: ignore[attr-defined]
        return tiles
    columns = x.shape[-1]
    padding = -columns % pad_k_to if pad_k_to else 0
    if padding:
        dtype, x = x.dtype, x.contiguous()
        x = torch.nn.functional.pad(x.view(torch.uint8), (0, padding * x.itemsize)).view(dtype)
    result = _marked(layouts.shuffle_weight(x, layout).data)
    if pad_k_to:
        result.aiter_original_k = columns  # type: ignore[attr-defined]
        result.aiter_padded_k = columns + padding  # type: ignore[attr-defined]
    return result


def _marked(x: Tensor) -> Tensor:
    """Mark a result, and record its bytes, by which fused_moe knows a copy in a parameter again."""
    from rfops.plugins import layouts as plugin_layouts  # a room that may import this one

    x.is_shuffled = True  # type: ignore[attr-defined]
    plugin_layouts.note(x, plugin_layouts.SHUFFLED)
    return x


def _lane_tiles(x: Tensor, lanes: int, gate_up: bool) -> Tensor:
    """Return bytes [E, N, K] as [E, N/lanes (gate and up by turns), K/(16 * 64/lanes), 64/lanes,
    lanes, 16]: a lane of a wave loads 16 bytes of a row."""
    data = x.contiguous().view(torch.uint8)
    experts, rows, columns = data.shape
    k_lanes = WAVE // lanes
    halves = 2 if gate_up else 1
    if rows % (lanes * halves) or columns % (16 * k_lanes):
        Guard("shuffle_weight").fail(
            "x",
            f"[E, N, bytes] with N a multiple of {lanes * halves}, bytes of {16 * k_lanes}",
            describe(x),
            "pad it with zeros",
        )
    tiles = data.view(experts, halves, rows // lanes // halves, lanes, -1, k_lanes, 16)
    return tiles.permute(0, 2, 1, 4, 5, 3, 6).reshape(data.shape).view(x.dtype)


def shuffle_scale(
    src: Tensor | None,
    experts_cnt: int | None = None,
    is_guinterleave: bool = False,
    gate_up: bool = False,
) -> Tensor | None:
    """Return e8m0 scales [rows, K/32] in tiles of 32 rows by 8 blocks, padded to 256 rows by 8
    blocks; None and fp32 scales as they are.

    With is_guinterleave, src [E * N, K/32] of experts_cnt experts, a multiple of 32 rows each, is
    in the layout of aiter's a16w4 kernels, blocks padded to 8; gate and up rows alternate where
    gate_up.
    """
    if src is None or src.dtype is torch.float32:
        return src
    if not is_guinterleave:
        return layouts.shuffle_scale(src).data
    if experts_cnt is None or src.dim() != 2 or src.shape[0] % (32 * experts_cnt):
        Guard("shuffle_scale").fail(
            "experts_cnt", "E of src [E * 32 n, K/32]", show(experts_cnt), f"src is {describe(src)}"
        )
    data = src.contiguous().view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, -data.shape[1] % 8), value=_ONE)
    rows, blocks = data.shape
    if gate_up:  # row 16 of a tile is the up row of its row 0
        tiles = data.view(experts_cnt, 2, -1, 16, blocks // 8, 2, 4).permute(0, 2, 4, 6, 3, 5, 1)
    else:
        tiles = data.view(experts_cnt, -1, 2, 16, blocks // 8, 2, 4).permute(0, 1, 4, 6, 3, 5, 2)
    return tiles.reshape(rows, blocks).view(src.dtype)


def e8m0_shuffle(scale: Tensor | None) -> Tensor | None:
    """aiter.utility.fp4_utils.e8m0_shuffle: shuffle_scale by its former name."""
    return shuffle_scale(scale)


def e8m0_unshuffle(scale: Tensor) -> Tensor:
    """Return the rows of what e8m0_shuffle made, padding included."""
    return layouts.unshuffle_scale(scale, *scale.shape)


def shuffle_weight_a16w4(src: Tensor, NLane: int, gate_up: bool) -> Tensor:
    """Return shuffle_weight(src, is_guinterleave=True) for tiles of NLane rows."""
    return shuffle_weight(src, (NLane, 16), is_guinterleave=True, gate_up=gate_up)


def shuffle_scale_a16w4(src: Tensor, experts_cnt: int, gate_up: bool) -> Tensor | None:
    """Return shuffle_scale(src, experts_cnt, is_guinterleave=True)."""
    return shuffle_scale(src, experts_cnt, True, gate_up)


def moe_shuffle_weight(
    src: Tensor,
    experts_cnt: int | None = None,
    is_guinterleave: bool = False,
    gate_up: bool = False,
    layout: tuple[int, int] = (16, 16),
) -> Tensor:
    """Return shuffle_weight of an expert weight; experts_cnt is not looked at."""
    return shuffle_weight(src, layout, False, is_guinterleave, gate_up)


moe_shuffle_scale = shuffle_scale
