"""A wrong argument ends in our own error: op, argument, expected, got. All ops by all of their
arguments that are no tensors, by values of every kind."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

import rfops
from rfops import compat
from rfops.gemm.kernels.a16w8.config import BmmConfig, RowsConfig
from rfops.gemm.kernels.mxfp8.gemv import GemvConfig
from rfops.gemm.kernels.mxfp8.mfma import MfmaConfig
from rfops.jit.launch import launcher
from rfops.moe.kernels.grouped.hip import MoeConfig
from rfops.triton.tiles import TritonConfig
from support.engine_project import Project
from support.warm_ops import OPS

BF16 = torch.bfloat16
GROUPED = (
    "a_q",
    "a_scale",
    "w",
    "w_scale",
    "sorted_token_ids",
    "expert_ids",
    "num_tokens_post_padded",
    "num_valid_tokens",
    "top_k",
    "block_m",
    "out_dtype",
    "a_div",
)
BAD: dict[str, Any] = {
    "None": None, "1.5": 1.5, "4.0": 4.0, "(1, 2)": (1, 2), "[3]": [3], "1e60": 1e60,
    "10^60": 10**60, "10^5000": 10**5000, "nan": math.nan, "'x'": "x", "True": True, "2^40": 2**40,
    "-1": -1, "np.float64": np.float64(4), "np.bool": np.bool_(True), "array": np.ones((2, 2)),
    "tensor": torch.ones(2, 2, dtype=torch.int32), "torch.int8": torch.int8, "dtype": np.float32,
}  # fmt: skip


def named(op: str) -> dict[str, Any]:
    """A good call's arguments by name."""
    dense = dict(zip(("x", "w", "x_scale", "w_scale"), OPS["gemm_mxfp8"][0](), strict=True))
    batched = OPS["batched_gemm_a16w8_blockscale"][0]()
    result: dict[str, Callable[[], dict[str, Any]]] = {
        "gemm_mxfp8": lambda: {**dense, "dtype": BF16},
        "batched_gemm_a16w8_blockscale": lambda: {
            **dict(zip(("x", "w", "w_scale"), batched, strict=True)), "dtype": BF16
        },
        "gemm_a8w8_blockscale": lambda: {
            **dict(zip(("x", "w", "x_scale", "w_scale"), OPS[op.removesuffix("_ref")][0](),
                       strict=True)), "dtype": BF16
        },
        "grouped_gemm_mxfp8": lambda: dict(
            zip(GROUPED, OPS["grouped_gemm_mxfp8"][0](), strict=True)
        ),
        "mla_decode": lambda: dict(zip(("q", "kv", "kv_indptr", "kv_indices", "sm_scale"),
                                       OPS["mla_decode"][0](), strict=True)),
        "moe_align_block_size": lambda: {
            "topk_ids": torch.zeros(3, 2, dtype=torch.int32), "block_size": 4, "num_experts": 4
        },
        "quant_mxfp8": lambda: {"x": torch.ones(2, 32), "rounding": "up"},
        "mxfp8_gemv": lambda: {
            "xq": dense["x"], "x_scale": dense["x_scale"], "wq": dense["w"],
            "w_scale": dense["w_scale"], "out_dtype": BF16,
        },
    }  # fmt: skip
    return result[op.removesuffix("_ref")]()


INT, DTYPE, CONFIG, FLAG, MODE = "int", "dtype", "config", "flag", "rounding"
DENSE = {"dtype": DTYPE, "config": CONFIG}
ROWS = {"num_valid_tokens": INT, "top_k": INT, "block_m": INT, "a_div": INT, "out_dtype": DTYPE}
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "gemm_mxfp8": (rfops.gemm_mxfp8, DENSE),
    "gemm_mxfp8_ref": (rfops.gemm_mxfp8_ref, {"dtype": DTYPE}),
    "gemm_a8w8_blockscale": (rfops.gemm_a8w8_blockscale, DENSE),
    "gemm_a8w8_blockscale_ref": (rfops.gemm_a8w8_blockscale_ref, {"dtype": DTYPE}),
    "batched_gemm_a16w8_blockscale": (rfops.batched_gemm_a16w8_blockscale, DENSE),
    "batched_gemm_a16w8_blockscale_ref": (
        rfops.batched_gemm_a16w8_blockscale_ref,
        {"dtype": DTYPE},
    ),
    "grouped_gemm_mxfp8": (rfops.grouped_gemm_mxfp8, {**ROWS, "config": CONFIG}),
    "grouped_gemm_mxfp8_ref": (rfops.grouped_gemm_mxfp8_ref, ROWS),
    "moe_align_block_size": (
        rfops.moe_align_block_size,
        {
            "block_size": INT,
            "num_experts": INT,
            "pad_sorted_ids": FLAG,
            "ignore_invalid_experts": FLAG,
        },
    ),
    "quant_mxfp8": (rfops.quant_mxfp8, {"rounding": MODE}),
    "mla_decode": (rfops.mla_decode, {"qo_len": INT, "causal": FLAG, "config": CONFIG}),
    "mxfp8_gemv": (compat.mxfp8_gemv, {"out_dtype": DTYPE}),
    "compat.grouped_gemm_mxfp8": (compat.grouped_gemm_mxfp8, ROWS),
}
CASES = [(name, argument) for name, (_, kinds) in FUNCTIONS.items() for argument in kinds]
# What is good, or None for "not engaged", of BAD.
FINE = {
    CONFIG: {"None"},
    FLAG: {"True", "np.bool"},
    "compat": {"torch.int8"},
}


class Watch(TorchFunctionMode):
    """Sends calls to torch's dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("way", ["eager", "dispatched", "warm"])
@pytest.mark.parametrize(("name", "argument"), CASES)
def test_bad_values(name: str, argument: str, way: str) -> None:
    function, kinds = FUNCTIONS[name]
    op = name.removeprefix("compat.")
    good = named(op)
    if way == "warm":
        function(**good)
    fine = set(FINE.get(kinds[argument], ()))
    if (name.startswith("compat") or name == "mxfp8_gemv") and kinds[argument] == DTYPE:
        fine |= FINE["compat"]  # None: HIP writes no such dtype
    with Watch() if way == "dispatched" else contextlib.nullcontext():
        for shown, bad in BAD.items():
            if shown in fine:
                function(**{**good, argument: bad})
                continue
            with pytest.raises(ValueError, match=rf"^{op}: {argument} must be .*, got ") as error:
                function(**{**good, argument: bad})
            assert len(str(error.value)) < 400, shown
            assert error.value.__cause__ is None, "ours, not somebody else's in our words"


def test_numpys_integers_are_ints() -> None:
    for name in (
        "grouped_gemm_mxfp8",
        "moe_align_block_size",
        "compat.grouped_gemm_mxfp8",
        "grouped_gemm_mxfp8_ref",
    ):
        function, kinds = FUNCTIONS[name]
        good = named(name.removeprefix("compat."))
        expected = function(**good)
        for kind in (np.int64, np.uint8, np.int32):
            ints = {offset: kind(good[offset]) for offset in kinds if kinds[offset] == INT}
            actual = function(**{**good, **ints})
            for one, other in zip(actual, expected, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (GemvConfig, {"lanes": 64, "rows": 2, "steps": 1, "waves": 1}),
        (MfmaConfig, {"m_tiles": 1, "n_tiles": 1, "steps": 1, "waves": 1, "split": 1}),
        (MoeConfig, {"tile_n": 16, "columns": 1, "steps": 1, "waves": 2}),
        (TritonConfig, {"block_m": 16, "block_n": 16, "block_k": 32, "warps": 1}),
        (RowsConfig, {"tile_n": 16, "tile_k": 128}),
        (BmmConfig, {"workspace_mib": 512, "tile_n": 32}),
    ],
)
def test_configs(kind: Callable[..., Any], good: dict[str, int]) -> None:
    other = {"method": "blocks"} if kind is TritonConfig else {}
    kind(**good, **other)
    for field in good:
        for shown, bad in BAD.items():
            with pytest.raises(ValueError, match=rf"Config.*{field}|is .*, got") as error:
                kind(**{**good, **other, field: bad})
            assert len(str(error.value)) < 400, shown


# ---------------------------------------------------------------- torch.ops: config as text

NOTATION = {
    "gemm_mxfp8": "'gemv lanes=... rows=... steps=... waves=...', 'mfma .*'triton method=...",
    "gemm_a8w8_blockscale": "'stream .*'pingpong .*'staged m=.*'deep m=.*'triton block_m=...",
    "grouped_gemm_mxfp8": "'moe tile_n=... columns=... steps=... waves=...', 'triton method=...",
    "batched_gemm_a16w8_blockscale": "'rows tile_n=... .*'tiles .*'staged .*'bmm workspace_mib=...",
}
WRONG = (
    "nonsense", "nonsense a=1", " ", "gemv", "moe", "tiles", "torch", "{}", "gemv\nlanes=1",
    "gemv lanes=7 rows=1 steps=1 waves=1", "gemv lanes=x rows=1 steps=1 waves=1",
    "gemv lanes=64 lanes=64 rows=1 steps=1 waves=1", "triton method=blocks", "rows tile_n=3",
    "moe tile_n=16 columns=1 steps=1 waves=1 x=2", "bmm tile_n", "x" * 10_000,
)  # fmt: skip


@pytest.mark.parametrize("op", NOTATION)
@pytest.mark.parametrize("with_out", [False, True])
def test_config_text(op: str, with_out: bool) -> None:
    make, shape = OPS[op]
    args = make()
    overload = getattr(torch.ops.rfops, f"{op}_out" if with_out else op)
    if op == "grouped_gemm_mxfp8":
        args = (*args, None, None)
    else:
        args = (*args, BF16)
    if op == "gemm_a8w8_blockscale":
        args = (*args, "raw")
    remaining = (torch.full(shape, 7.0, dtype=BF16),) if with_out else ()
    overload(*args, "", *remaining)
    for text in WRONG:
        message = (
            rf"^{op}: config must be '' for .*{NOTATION[op]}.*, got {re.escape(repr(text)[:20])}"
        )
        with pytest.raises(ValueError, match=message) as error:
            overload(*args, text, *remaining)
        assert len(str(error.value)) < 900


def test_config_text_that_is_good() -> None:
    x, w, *scales = OPS["gemm_mxfp8"][0]()
    text = "gemv lanes=64 rows=2 steps=1 waves=1"
    actual = torch.ops.rfops.gemm_mxfp8(x, w, *scales, BF16, text)
    assert torch.equal(actual, rfops.gemm_mxfp8(x, w, *scales, config=GemvConfig(64, 2, 1, 1)))


# ---------------------------------------------------------------- a kernel's own arguments


def test_launch(project: Project) -> None:
    """Through ctypes and the native launcher alike."""
    bound = project.op().bind("cpu")
    assert launcher.native() is not None or launcher.build(), "RFOPS_LOG=debug says why"
    x, out = torch.ones(64), torch.empty(64)
    for launch in (bound.launch, lambda *args: type(bound).launch(bound, *args)):
        for offset, name, expected, fine in (
            (
                2,
                "a",
                "a number that a float of 32 bits holds",
                {"1.5", "4.0", "nan", "True", "2^40", "-1", "np.float64", "np.bool"},
            ),
            (3, "n", "an int from -2147483648 to 2147483647", {"True", "-1"}),
            (0, "out", "a tensor or None", {"None", "tensor"}),
        ):
            for shown, bad in BAD.items():
                if shown in fine:
                    continue
                args = [out, x, 2.0, 64]
                args[offset] = bad
                with pytest.raises(
                    ValueError, match=f"^axpy: argument {name} must be {expected}, got"
                ):
                    launch((1, 1, 1), (64, 1, 1), tuple(args))
        for bad in (None, 5, 1.5):
            with pytest.raises(ValueError, match=r"^axpy: args must be a tuple of arguments, got"):
                launch((1, 1, 1), (64, 1, 1), bad)


def test_a_symbolic_size_stays_one() -> None:
    """A size that a compiled function reads from a tensor; checks would ask for its value."""
    args = list(OPS["grouped_gemm_mxfp8"][0]())

    def call(rows: torch.Tensor) -> torch.Tensor:
        return rfops.grouped_gemm_mxfp8(*args[:7], rows.item(), *args[8:])

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for rows in (6, 5):
            assert torch.equal(compiled(torch.tensor(rows)), call(torch.tensor(rows)))
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True):
        size = env.create_unbacked_symint()
        actual = rfops.grouped_gemm_mxfp8(*args[:7], size, *args[8:])
    assert str(actual.shape[0]) == str(size), "not a number"
