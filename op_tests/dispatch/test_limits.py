"""Where kernels end: offsets of 32 bits, grids, lists. Each takes the size before a limit and
refuses the limit itself. Sizes alone, so that no memory is needed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rfops.dispatch.guards import check_int
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op, ops
from rfops.jit.arch import ARCH_SPECS
from rfops.moe.kernels.limits import MAX_BLOCK

BYTES, BLOCKS, ROUTED = "signed 32-bit", "2^31 blocks", "2^31 routed rows"
SLOTS = "slots of routed rows"
EXPERT, HUGE = "an expert's weights", "more than a grid has"

# Op, kernel, sizes of which the first is at its limit, its step, words of the reason.
LIMITS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("quant_fp8_blockscale", "hip", {"M": 2**24, "K": 2**14, "dtype": "fp8"}, 1, BLOCKS),
    # Workgroups of 256 threads, a thread 8 elements; a program of Triton 128 blocks of 32.
    ("quant_mxfp8", "hip", {"M": 2**32, "K": 32}, 1, "more workgroups or rows"),
    ("quant_mxfp4", "hip", {"M": 2**32, "K": 32}, 1, "more workgroups or rows"),
    # 128 rows of an operand in bf16; of 16 tokens; rotary halves of a cache.
    ("mla_layer_decode", "hip", {"D": 2**23, "B": 4, "start": 0}, 32, "128 rows"),
    ("mla_layer_decode", "hip", {"V": 2**21, "B": 4, "start": 0}, 128, "128 rows"),
    ("mla_layer_decode", "hip", {"R": 2**26, "B": 4, "start": 0}, 32, "16 rows"),
    ("mla_layer_decode", "hip", {"L": 2**24, "B": 4, "start": 0}, 1, f"{2**24} rows"),
    ("mla_layer_decode", "hip", {"L": 2**23, "B": 256, "start": 0}, 1, "2^31 or more"),
    ("mla_layer_decode", "triton", {"L": 2**23, "B": 256, "start": 0}, 1, "32-bit offsets"),
    ("mla_layer_decode", "triton", {"V": 2**21, "B": 256, "start": 0}, 128, "32-bit offsets"),
    # Triton's tiles of GEMMs have up to 256 rows.
    ("gemm_a8w8_blockscale", "triton", {"K": 2**23, "x_dtype": "fp8"}, 128, "256 rows of x"),
    ("gemm_a16wfp4", "triton", {"N": 2**23, "K": 1024}, 1, "256 rows of out"),
    ("gemm_a16wfp4", "triton", {"K": 2**22, "N": 64}, 128, "256 rows of x"),
    ("gemm_afp4wfp4", "triton", {"K": 2**23, "N": 64}, 128, "256 rows of x"),
    ("gemm_mxfp8", "triton", {"M": 2**31 - 255, "K": 128}, 1, "a size of"),
    ("gemm_mxfp8", "gemv", {"N": 2**16, "M": 1, "K": 2**15}, 1, BYTES),
    ("gemm_mxfp8", "gemv", {"K": 2**15, "M": 1, "N": 2**16}, 128, BYTES),
    ("batched_gemm_a16w8_blockscale", "staged", {"M": 16 * 65535 + 1, "K": 128}, 1, "65535 tiles"),
    ("moe_router", "hip", {"D": 2**22, "E": 256, "K": 8}, 8, "256 rows of router_weight"),
    ("fused_moe_fp8", "hip", {"I": 2**15, "D": 2**15, "w1_dtype": "fp8"}, 128, EXPERT),
    ("fused_moe_fp8", "hip", {"D": 2**15, "I": 2**15, "w1_dtype": "fp8"}, 128, EXPERT),
    ("fused_moe", "hip", {"I": 2**15, "D": 2**14}, 8, EXPERT),
    ("fused_moe", "hip", {"M": 2**18, "D": 2**12, "I": 64}, 1, "x is beyond"),
    ("fused_moe", "hip", {"M": 2**23, "D": 64, "I": 64, "E": 128, "K": 8}, 1, "lists of"),
    ("fused_moe", "hip", {"M": 2**15, "D": 8, "I": 2**20, "E": 8, "K": 8}, 1, ROUTED),
    ("fused_moe", "triton", {"M": 2**26 - 256, "E": 8, "R": 7, "K": 7}, 1, SLOTS),
    ("fused_moe_tables", "triton", {"M": 2**26 - 256, "E": 8, "K": 8}, 1, SLOTS),
    ("fused_moe_mxfp8", "hip", {"I": 2**15, "D": 2**15}, 128, EXPERT),
    ("fused_moe_mxfp4", "hip", {"I": 2**16, "D": 2**15}, 128, EXPERT),
    ("fused_moe_mxfp4", "hip", {"M": 2**23 - 1, "D": 512, "I": 128}, 1, "x quantised"),
    ("fused_moe_mxfp4", "hip", {"M": 2**15, "D": 128, "I": 2**17, "E": 8, "K": 8}, 1, ROUTED),
    ("fused_moe_mxfp8", "triton", {"I": 2**15, "D": 2**15}, 32, EXPERT),
    ("fused_moe_mxfp8", "triton", {"D": 2**20, "I": 2**10}, 32, EXPERT),
    ("fused_moe_mxfp4", "triton", {"I": 2**16, "D": 2**15}, 32, EXPERT),
    ("fused_moe_mxfp4", "triton", {"D": 2**22 - 32, "I": 64}, 32, "more columns than a grid"),
    ("fused_moe", "hip", {"I": 2**22, "D": 64, "M": 1}, 8, "256 rows of x or h"),
    ("fused_moe_fp8", "triton", {"M": 2**26 - 256, "w1_dtype": "fp8", "R": 7, "K": 7}, 1, SLOTS),
    ("fused_moe_mxfp4", "triton", {"M": 2**26 - 256, "E": 8, "R": 7, "K": 7}, 1, SLOTS),
    ("fused_moe_mxfp8", "triton", {"E": 2**21 - 16, "R": 2**21 - 17, "M": 512, "K": 7}, 1, SLOTS),
]
# Arguments that no kernel takes.
OF_OPS: list[tuple[str, dict[str, Any], int, str]] = [
    ("moe_align_block_size", {"rows": 2**29 - 16 * 64, "E": 64, "block_size": 16}, 1, "topk_ids"),
    ("moe_align_block_size", {"E": 2**25 - 4, "rows": 64, "block_size": 16}, 1, "topk_ids"),
    ("grouped_gemm_mxfp8", {"ids": 2**29, "M": 64, "blocks": 2**26}, 1, "sorted_token_ids"),
    ("batched_gemm_a16w8_blockscale", {"M": 2**15, "N": 2**15, "K": 128}, 1, "the result"),
    ("batched_gemm_a16w8_blockscale", {"N": 2**15, "M": 2**15, "K": 128}, 1, "the result"),
]


def _pair(op: Op, arch: str, arguments: dict[str, Any], step: int) -> tuple[Call, Call]:
    """At the limit, and a step before."""
    first = next(iter(arguments))
    small = {name: 8 if name in "BEK" and "E" in op.declaration.sizes else 64 for name in op.asked}
    arguments = small | {name: value for name, value in arguments.items()}
    return op.call_of(arch, **arguments), op.call_of(
        arch, **(arguments | {first: arguments[first] - step})
    )


@pytest.mark.parametrize(("name", "kernel", "arguments", "step", "text"), LIMITS, ids=str)
def test_a_kernel_ends_at_its_limit(
    name: str, kernel: str, arguments: dict[str, Any], step: int, text: str
) -> None:
    own = ops()[name].kernels[kernel]
    offset, previous = _pair(
        ops()[name], "sm_90" if kernel == "staged" else "gfx950", arguments, step
    )
    assert text in str(own.unsupported_reason(offset))
    assert text not in str(own.unsupported_reason(previous))


@pytest.mark.parametrize("name", ["fused_moe", "fused_moe_fp8", "fused_moe_mxfp4"])
def test_triton_ends_before_the_layout_that_it_calls(name: str) -> None:
    """What its guard takes, moe_align_block_size takes, with blocks of the most rows."""
    op, align = ops()[name], ops()["moe_align_block_size"]
    given = {"M": 2**26 - 257, "E": 8, "R": 7, "K": 7, "D": 64, "I": 64}
    c = op.call_of("gfx950", **given, **({"w1_dtype": "fp8"} if name == "fused_moe_fp8" else {}))
    assert op.kernels["triton"].unsupported_reason(c) is None
    for rows, is_taken in ((c.M * 8, True), ((c.M + 1) * 8, False)):
        inner = align.call_of("gfx950", rows=rows, E=8, block_size=MAX_BLOCK)
        assert (align.unsupported_reason(inner, *inner.sizes.values()) is None) == is_taken


@pytest.mark.parametrize(("name", "arguments", "step", "text"), OF_OPS, ids=str)
def test_an_op_ends_at_its_limit(
    name: str, arguments: dict[str, Any], step: int, text: str
) -> None:
    op = ops()[name]
    offset, previous = _pair(op, "gfx950", arguments, step)
    refused = op.unsupported_reason(offset, *offset.sizes.values())
    assert refused is not None and refused[0] == text
    assert op.unsupported_reason(previous, *previous.sizes.values()) is None


GEMMS = [(name, kernel) for name, op in ops().items() if "gemm" in name for kernel in op.kernels]


@pytest.mark.parametrize(("name", "kernel"), GEMMS, ids=map(" ".join, GEMMS))
def test_one_row_is_something_to_compute(name: str, kernel: str) -> None:
    """And no row is not: those routes that cannot take it say so."""
    op = ops()[name]
    small: dict[str, Any] = {size: 1 for size in op.asked} | {"K": 1024}
    fp8 = {"x_dtype": "fp8", "w_dtype": "fp8"} if name == "gemm_a8w8_blockscale" else {}
    for size in ("M", "N"):
        one = op.call_of("gfx950", **small | fp8)
        assert "nothing" not in str(op.kernels[kernel].unsupported_reason(one))
        none = op.call_of("gfx950", **small | fp8 | {size: 0})
        assert op.is_empty(none) or op.kernels[kernel].unsupported_reason(none) is not None
    assert not op.is_empty(op.call_of("gfx950", **small | fp8))


@pytest.mark.parametrize(("least", "most", "said"), [(1, 2**31 - 1, "2^31 - 1"), (0, 5, "5")])
def test_an_int_ends_where_it_says(least: int, most: int, said: str) -> None:
    assert [check_int("op", "n", n, least, most) for n in (least, most)] == [least, most]
    for wrong in (least - 1, most + 1):
        with pytest.raises(ValueError, match=re.escape(f"an int from {least} to {said}, got")):
            check_int("op", "n", wrong, least, most)
    assert check_int("op", "n", 2**31 - 1) == 2**31 - 1
    for wrong in (0, 2**31):
        with pytest.raises(ValueError, match=r"an int from 1 to 2\^31 - 1, got"):
            check_int("op", "n", wrong)


X_BITS = {"gemm_a8w8_blockscale": 8, "gemm_a8wfp4": 8, "gemm_a16wfp4": 16, "gemm_afp4wfp4": 4}
IN_ROWS = [
    (name, kernel.name, bits)
    for name, bits in X_BITS.items()
    for kernel in ops()[name].kernels.values()
    if hasattr(kernel, "max_rows")
]


@pytest.mark.parametrize(("name", "kernel", "bits"), IN_ROWS, ids=str)
def test_the_rows_of_a_workgroup_end_at_2_gib(name: str, kernel: str, bits: int) -> None:
    """Of x with one row more, which loads ahead reach, and of out."""
    own, step = ops()[name].kernels[kernel], 1024
    rows = own.max_rows
    fp8 = {"x_dtype": "fp8", "w_dtype": "fp8"} if name == "gemm_a8w8_blockscale" else {}
    k = -(-(2**31) * 8 // (bits * (rows + 1) * step)) * step
    for given, back, words in (
        ({"K": k, "M": 4, "N": 64}, step, f"{rows} rows of "),
        ({"N": -(-(2**30) // rows), "M": 4, "K": 1024}, 1, f"{rows} rows of out"),
    ):
        offset, previous = _pair(ops()[name], own.compiled.spec.archs[-1], given | fp8, back)
        assert words in str(own.unsupported_reason(offset)), given
        assert words not in str(own.unsupported_reason(previous)), given


# Op, tile, bytes of a stage's operands, and of what is widened where no instruction takes FP4.
STAGED = [
    ("gemm_a8w8_blockscale", {"block_m": 64, "block_n": 128}, (64 + 128) * 128, 0),
    ("gemm_afp4wfp4", {"block_m": 64, "block_n": 128, "block_k": 256}, 192 * 128, 192 * 256),
    ("mla_layer_decode", {"block_n": 32, "block_k": 64}, 2 * (16 + 64) * 64, 0),
    ("mla_layer_decode", {"block_n": 128, "block_k": 128}, 2 * (16 + 128) * 128, 0),
    ("fused_moe", {"block_m": 64, "block_n": 64, "block_k": 64}, 2 * (64 + 64) * 64, 0),
]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
@pytest.mark.parametrize(("name", "tile", "stage", "wide"), STAGED, ids=str)
def test_stages_of_triton_fit_in_lds(
    name: str, tile: dict[str, int], stage: int, wide: int, arch: str
) -> None:
    """On AMD one stage is in registers; 1 KB is for the rest."""
    op, own = ops()[name], ops()[name].kernels["triton"]
    small: dict[str, Any] = {size: 64 for size in op.asked} | {"start": 0, "B": 4, "E": 8}
    c = op.call_of(arch, **{k: v for k, v in small.items() if k in op.asked})
    for stages in range(1, 9):
        config = own.Config(
            **({"block_m": 16} if name == "fused_moe" else {}) | tile, stages=stages
        )
        buffers = max(1, stages - 1) if arch.startswith("gfx") else stages
        needed = stage * buffers + (0 if arch == "gfx950" else wide) + 1024
        refused = own.unsupported_config_reason(c, config)
        assert (refused is not None) == (needed > ARCH_SPECS[arch].lds_bytes), (config, refused)
        if refused is not None:
            assert str(needed) in refused
