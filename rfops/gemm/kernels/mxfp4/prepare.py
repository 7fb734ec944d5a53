"""The MXFP4 kernels that need x quantized and scales shuffled, and the launches that do so where
operands are given otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.steps import Step, run_steps
from rfops.jit import compile_ops, u32
from rfops.quantization.mxfp8 import BLOCK

from ...mxfp4_op import RAW, STEP_K
from ..variant import Variant
from .launch import TYPES, Fp4Kernel, Rows, has_16_bits, rows_of

RAW_ALIGN = 8  # bytes of a row of raw scales: those of a K-step

# What `rfops build` makes: bf16.
_PREPARE: dict[str, int | str] = {"X": "bf16", "ROUNDING": "Even"}


@compile_ops("mxfp4_prepare", kernel="mxfp4_prepare_x", variants=lambda _arch: [_PREPARE])
def prepare_x(
    payload: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, m: u32, k: u32, x_row: u32
) -> None:
    """csrc/gemm/mxfp4_prepare.hip: the shapes stand there."""


@compile_ops("mxfp4_prepare", kernel="mxfp4_prepare_scale", variants=lambda _arch: [_PREPARE])
def prepare_scale(
    shuffled: torch.Tensor, scale: torch.Tensor, rows: u32, k: u32, pitch: u32
) -> None:
    """csrc/gemm/mxfp4_prepare.hip: the shapes stand there."""


class Prepared(Fp4Kernel):
    """A kernel with K-steps of 256, launched after its operands are prepared."""

    def unsupported_config_reason(self, c: Call, config: Any) -> str | None:
        if config.split > -(-c.K // STEP_K):
            return f"K={c.K} has fewer than {config.split} steps of {STEP_K}"
        return None

    def grid(self, c: Call, config: Any, items: int) -> tuple[int, Mapping[str, int]]:
        """The workgroups for so many tiles and splits of K, and further scalars of the kernel."""
        return items, {}

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        common = self.common_defines(c)
        defines = {name.upper(): value for name, value in vars(config).items()}
        defines |= {name: common[name] for name in ("OUT", "BIAS", "SHUFFLED")}
        return {**defines, "X_SHUFFLED": int(has_16_bits(c)), **self.kind(c, config, c.K)}

    def kind(self, c: Call, config: Any, k: int) -> Mapping[str, int]:
        raw = {name for name in raw_scales(c) if self.reads_raw(c, config, name, k)}
        is_raw = {"RAW_SCALES": int("w_scale" in raw), "X_RAW_SCALES": int("x_scale" in raw)}
        return {"TAIL": int(k % STEP_K != 0), **is_raw}

    def reads_raw(self, c: Call, config: Any, name: str, k: int) -> bool:
        """Whether the kernel takes raw scales of this operand as they are."""
        row = getattr(rows_of(c, k), f"{name}_row")
        return not (k % STEP_K or row % RAW_ALIGN or c.align(name) % RAW_ALIGN)

    def variant(self, c: Call, config: Variant) -> RunOf:
        """x quantized and scales shuffled where they are not, then the kernel; it is built at the
        first K of its kind."""
        defines = self.defines(c, config)

        def run_of(m: int, n: int, k: int, *_sizes: int) -> Run:
            tiles = config.tiles(m, n)
            groups, scalars = self.grid(c, config, tiles * config.split)
            raw = [name for name in raw_scales(c) if self.reads_raw(c, config, name, k)]
            operands = _Operands(c, m, n, k, raw)
            workspace, zeros = operands.workspace(), {}
            if config.split > 1:
                workspace["workspace"] = tiles * config.split * config.words, torch.float32
                zeros["counts"] = tiles
            rows = operands.rows()._asdict()
            main = Step(
                self.compiled,
                {**defines, **self.kind(c, config, k)},
                config.threads,
                groups,
                {"m": m, "n": n, "k": k, **rows, **scalars, **operands.sources()},
            )
            return run_steps(
                c.device,
                self.arguments,
                [*operands.steps(), main],
                arch=c.arch,
                workspace=workspace,
                zeros=zeros,
            )

        return run_of


def share_prepared(c: Call, reads_raw: bool) -> float:
    """The share of the operands that other kernels prepare, where a kernel reads raw scales or
    does not."""
    raw, quantized = len(raw_scales(c)), int(has_16_bits(c))
    shuffled = 0 if reads_raw and c.K % STEP_K == 0 else raw
    return (quantized + shuffled) / max(1, quantized + raw)


def raw_scales(c: Call) -> list[str]:
    """The arguments of a call that are raw scales."""
    names = ("w_scale",) if has_16_bits(c) else ("w_scale", "x_scale")
    return [name for name in names if getattr(c, f"{name}_layout") == RAW]


class _Operands:
    """The operands of one call as these kernels want them: x in MXFP4, scales shuffled but for
    those that the kernel takes `raw`. What is not so is made by a launch of its own, in the
    workspace, as `<name>_made`."""

    def __init__(self, c: Call, m: int, n: int, k: int, raw: Sequence[str]) -> None:
        self.c, self.k, self.is_16, self.columns = c, k, has_16_bits(c), ceil(k, 8 * BLOCK)
        self.sizes = {"x_scale": m, "w_scale": n}
        self.shuffled = [name for name in raw_scales(c) if name not in raw]
        self.given_rows, self.raw = rows_of(c, k), raw

    def workspace(self) -> dict[str, tuple[int, torch.dtype]]:
        scales = [*(["x_scale"] if self.is_16 else []), *self.shuffled]
        prepared_bytes = {
            f"{name}_made": ceil(self.sizes[name], 32) * 256 * self.columns for name in scales
        }
        if self.is_16:
            prepared_bytes["x_made"] = ceil(self.sizes["x_scale"], 32) * 32 * (self.k // 2)
        return {name: (size, torch.uint8) for name, size in prepared_bytes.items()}

    def sources(self) -> dict[str, str]:
        """The kernel's arguments that are in the workspace."""
        return {name.removesuffix("_made"): name for name in self.workspace()}

    def rows(self) -> Rows:
        """Return the row strides of the operands that the kernel reads."""
        given, columns = self.given_rows, self.columns * 8
        return Rows(
            self.k // 2 if self.is_16 else given.x_row,
            given.w_row,
            given.w_scale_row if "w_scale" in self.raw else columns,
            given.x_scale_row if "x_scale" in self.raw else columns,
        )

    def steps(self) -> list[Step]:
        steps = [self._shuffle(name) for name in self.shuffled]
        return [self._quantize(), *steps] if self.is_16 else steps

    def _groups(self, scale: str) -> int:
        return int(ceil(ceil(self.sizes[scale], 32) * self.columns, 4))

    def _defines(self) -> Mapping[str, int | str]:
        """The constants of the module; without x of 16 bits those that `rfops build` makes."""
        if not self.is_16:
            return _PREPARE
        return {"X": TYPES[self.c.x_dtype], "ROUNDING": self.c.rounding.capitalize()}

    def _quantize(self) -> Step:
        return Step(
            prepare_x,
            self._defines(),
            256,
            self._groups("x_scale"),
            {
                "payload": "x_made",
                "scale": "x_scale_made",
                "m": self.sizes["x_scale"],
                "k": self.k,
                "x_row": self.given_rows.x_row,
            },
        )

    def _shuffle(self, name: str) -> Step:
        return Step(
            prepare_scale,
            self._defines(),
            256,
            self._groups(name),
            {
                "shuffled": f"{name}_made",
                "scale": name,
                "rows": self.sizes[name],
                "k": self.k,
                "pitch": getattr(self.given_rows, f"{name}_row"),
            },
        )
