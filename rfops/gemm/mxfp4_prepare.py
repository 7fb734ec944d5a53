"""What goes before the MXFP4 kernels that want x quantised and scales shuffled, where they are not:
a launch that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rfops.dispatch.heuristic import ceil
from rfops.dispatch.kernel import Call, Run, RunOf
from rfops.dispatch.workspace import Workspace
from rfops.jit import compile_ops, u32
from rfops.jit.arch import Arch
from rfops.quantization.mxfp8 import BLOCK

from .mxfp4_launch import TYPES, Config, Fp4Kernel, Rows, has_16_bits, rows_of
from .mxfp4_op import RAW

STEP_K = 256
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


# By timing mode: what preparing x reaches; a launch more.
_PREPARE_TB_S, _LAUNCH_US = 3.0, 2.0


def prepare_us(m: int, k: int) -> float:
    """Of a launch that quantises x."""
    return _LAUNCH_US + 2.5 * m * k / _PREPARE_TB_S / 1e6


@dataclass
class PreparedCost:
    """A time, and what decides where times are equal."""

    us: Any
    ties: tuple[Any, ...]

    def costs(self, _chip: Arch) -> tuple[Any, ...]:
        return self.us, *self.ties


class Prepared(Fp4Kernel):
    """A kernel of K-steps of 256, behind what prepares its operands."""

    def refuses_config(self, c: Call, config: Any) -> str | None:
        if config.split > -(-c.K // STEP_K):
            return f"K={c.K} has fewer than {config.split} steps of {STEP_K}"
        return None

    def grid(self, c: Call, config: Any, items: int) -> tuple[int, tuple[int, ...]]:
        """Workgroups for so many tiles and parts of K, and what the kernel is told of them."""
        return items, ()

    def defines(self, c: Call, config: Any) -> Mapping[str, Any]:
        common = self.common_defines(c)
        own = {name.upper(): value for name, value in vars(config).items()}
        own |= {name: common[name] for name in ("OUT", "BIAS", "SHUFFLED")}
        return {**own, "X_SHUFFLED": int(has_16_bits(c)), **self.kind(c, config, c.K)}

    def kind(self, c: Call, config: Any, k: int) -> Mapping[str, int]:
        return {"TAIL": int(k % STEP_K != 0)}

    def variant(self, c: Call, config: Config) -> RunOf:
        launches: dict[tuple[int, ...], Callable[..., Run]] = {}
        prepare = _Prepare(c)

        def launch_of(k: int) -> Callable[..., Run]:
            kind = self.kind(c, config, k)
            key = tuple(kind.values())
            if key not in launches:
                bound = self.compiled.bind(c.device, {**self.defines(c, config), **kind}, c.arch)
                launch = bound.prepare((config.threads, 1, 1), (0, 1, 2, 3, 4, 5, 6, 7))
                launches[key] = launch
            return launches[key]

        launch_of(c.K)

        def run_of(m: int, n: int, k: int, *_others: int) -> Run:
            items = config.tiles(m, n) * config.split
            groups, told = self.grid(c, config, items)
            rows = prepare.rows(k)
            main = launch_of(k)((groups, 1, 1), (m, n, k, *rows, *told))
            words = items * config.words if config.split > 1 else 0
            return prepare.run(main, m, n, k, words, items // config.split if words else 0)

        return run_of


class _Prepare:
    """What goes before the loop of a call: x quantised, scales shuffled, where they are not."""

    def __init__(self, c: Call) -> None:
        self.c, self.is_16 = c, has_16_bits(c)
        defines = {"X": "bf16", "ROUNDING": "Even"}
        self.raw = [name for name in (("w_scale",) if self.is_16 else ("w_scale", "x_scale"))
                    if getattr(c, f"{name}_layout") == RAW]  # fmt: skip
        if self.is_16:
            defines = {"X": TYPES[c.x_dtype], "ROUNDING": c.rounding.capitalize()}
            bound = prepare_x.bind(c.device, defines, c.arch)
            self.quantise = bound.prepare((256, 1, 1), (0, 1, 2))
        if self.raw:
            bound = prepare_scale.bind(c.device, defines, c.arch)
            self.shuffle = bound.prepare((256, 1, 1), (0, 1))

    def rows(self, k: int) -> Rows:
        columns = ceil(k, 8 * BLOCK) * 8
        own = rows_of(self.c, k)
        return Rows(k // 2 if self.is_16 else own.x, own.w, columns, columns)

    def run(self, main: Run, m: int, n: int, k: int, words: int, tiles: int) -> Run:
        """Of the op's tensors: result, x, w, [x_scale], w_scale, bias."""
        own, columns = rows_of(self.c, k), ceil(k, 8 * BLOCK)
        u8, sizes = torch.uint8, {"x_scale": m, "w_scale": n}
        parts: dict[str, tuple[int, torch.dtype]] = {}
        if self.is_16:
            parts["x"] = ceil(m, 32) * 32 * (k // 2), u8
            parts["x_scale"] = ceil(m, 32) * 256 * columns, u8
        for name in self.raw:
            parts[name] = ceil(sizes[name], 32) * 256 * columns, u8
        if words:
            parts["words"] = words, torch.float32
        workspace = Workspace(self.c.device, *parts.values(), zeros=tiles)
        is_16, names = self.is_16, tuple(parts)

        def grid(rows: int) -> tuple[int, int, int]:
            return ceil(ceil(rows, 32) * columns, 4), 1, 1

        quantise = self.quantise(grid(m), (m, k, own.x)) if is_16 else None
        shuffles = [
            (name, self.shuffle(grid(sizes[name]), (sizes[name], k, getattr(own, name))))
            for name in self.raw
        ]

        def run(out: torch.Tensor, *inputs: torch.Tensor) -> None:
            if is_16:
                x, w, w_scale, bias = inputs
                given = {"x": x, "w_scale": w_scale}
            else:
                x, w, x_scale, w_scale, bias = inputs
                given = {"x": x, "x_scale": x_scale, "w_scale": w_scale}
            scratch = workspace()
            made = dict(zip(names, scratch, strict=False))
            if quantise is not None:
                quantise(made["x"], made["x_scale"], x)
            for name, shuffle in shuffles:
                shuffle(made[name], given[name])
            use = {**given, **made}
            sums = use.get("words", out)
            counts = scratch[-1] if words else out
            main(w, use["w_scale"], use["x"], use["x_scale"], out, bias, sums, counts)

        return run
