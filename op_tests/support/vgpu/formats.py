"""Number formats of 16 bits and fewer in numpy, from their definitions: every code's value, and
rounding by search among the values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest


@dataclass(frozen=True)
class Format:
    """specials: what a code may mean besides a number: "ieee", "nan_only", "fnuz" or "finite"."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    specials: str

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @cached_property
    def values(self) -> np.ndarray:
        """float64 value of every code."""
        codes = np.arange(1 << self.bits)
        magnitude = codes & (self.sign - 1)
        field, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        scaled = fraction + np.where(field > 0, 1 << self.mantissa, 0)
        power = np.maximum(field, 1) - self.bias - self.mantissa
        out = np.ldexp(scaled.astype(np.float64), power)
        if self.specials == "ieee":
            top = field == (1 << self.exponent) - 1
            out = np.where(top, np.where(fraction > 0, np.nan, np.inf), out)
        elif self.specials == "nan_only":
            out = np.where(magnitude == self.sign - 1, np.nan, out)
        out = np.where(codes & self.sign, -out, out)
        return np.where(codes == self.sign, np.nan, out) if self.specials == "fnuz" else out

    @cached_property
    def magnitudes(self) -> np.ndarray:
        """The finite non-negative values, ascending; the index is the code."""
        values = self.values[: self.sign]
        return values[np.isfinite(values)]

    def encode_exact(self, values: np.ndarray) -> np.ndarray:
        """Codes of values that the format holds."""
        offset = np.searchsorted(self.magnitudes, np.abs(values))
        assert np.array_equal(self.magnitudes[offset], np.abs(values)), self.name
        return np.where(values < 0, offset | self.sign, offset).astype(np.uint32)

    def round(self, x: np.ndarray, *, saturate: bool = False) -> np.ndarray:
        """Codes of float64 values rounded to nearest even; -1 where the result is a NaN."""
        magnitude, negative = np.abs(x), np.signbit(x)
        grid = self.magnitudes
        step = grid[-1] - grid[-2]
        extended_grid = np.append(grid, grid[-1] + step)  # the first value that does not fit
        upper_idx = np.clip(
            np.searchsorted(extended_grid, np.nan_to_num(magnitude, nan=0.0)), 1, len(grid)
        )
        low, high = extended_grid[upper_idx - 1], extended_grid[upper_idx]
        middle = (low + high) / 2
        up = (magnitude > middle) | ((magnitude == middle) & (upper_idx % 2 == 0))
        code = np.where(up, upper_idx, upper_idx - 1)
        return self._finish(code, magnitude, negative, saturate=saturate)

    def round_random(
        self, x: np.ndarray, seed: np.ndarray, *, saturate: bool = False
    ) -> np.ndarray:
        """Codes of float32 values rounded by `seed`: the high bits of the seed are added below the
        last kept bit of the significand, aligned (and cut) to the smallest normal exponent."""
        x64 = np.asarray(x, np.float64)
        magnitude, negative = np.abs(x64), np.signbit(x64)
        finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
        drop = 23 - self.mantissa
        _, exponent = np.frexp(np.maximum(finite, np.finfo(np.float32).tiny))
        lowest = np.maximum(exponent - 1, 1 - self.bias)
        significand = np.floor(np.ldexp(finite, 23 - lowest)).astype(np.int64)
        rounded = (significand + (np.asarray(seed, np.int64) >> (32 - drop))) >> drop
        code = rounded + ((lowest - (1 - self.bias)).astype(np.int64) << self.mantissa)
        code = np.where(np.isfinite(magnitude), code, 1 << 20)
        return self._finish(code, magnitude, negative, saturate=saturate)

    def _finish(
        self, code: np.ndarray, magnitude: np.ndarray, negative: np.ndarray, *, saturate: bool
    ) -> np.ndarray:
        largest = len(self.magnitudes) - 1
        if saturate or self.specials == "finite":
            overflow = largest
        else:
            overflow = largest + 1 if self.specials == "ieee" else -1
        code = np.where(code > largest, overflow, code)
        if self.specials == "fnuz":
            negative = negative & (code != 0)
        code = np.where((code >= 0) & negative, code | self.sign, code)
        nan = negative * self.sign + largest if self.specials == "finite" else -1
        return np.where(np.isnan(magnitude), nan, code)


F16 = Format("f16", 5, 10, 15, "ieee")
BF16 = Format("bf16", 8, 7, 127, "ieee")
E4M3 = Format("e4m3", 4, 3, 7, "nan_only")
E5M2 = Format("e5m2", 5, 2, 15, "ieee")
E4M3_FNUZ = Format("e4m3fnuz", 4, 3, 8, "fnuz")
E5M2_FNUZ = Format("e5m2fnuz", 5, 2, 16, "fnuz")
E2M3 = Format("e2m3", 2, 3, 1, "finite")
E3M2 = Format("e3m2", 3, 2, 3, "finite")
E2M1 = Format("e2m1", 2, 1, 1, "finite")


def eight_bit(arch: str) -> dict[str, Format]:
    """The fp8 and bf8 of an architecture."""
    if arch == "gfx942":
        return {"fp8": E4M3_FNUZ, "bf8": E5M2_FNUZ}
    return {"fp8": E4M3, "bf8": E5M2}


def matches(codes: np.ndarray, expected: np.ndarray, fmt: Format) -> np.ndarray:
    """Whether codes are the wanted ones; -1 stands for any NaN."""
    nan = np.isnan(fmt.values[np.asarray(codes, np.int64)])
    return np.where(expected < 0, nan, codes == expected)


# ------------------------------------------------------------------------------ for tests


def expect(
    actual: np.ndarray, want: np.ndarray, label: str, inputs: np.ndarray | None = None
) -> None:
    wrong = np.flatnonzero(np.asarray(actual) != np.asarray(want))
    if len(wrong):
        offset = wrong[0]
        source = "" if inputs is None else f" for {inputs[offset]!r}"
        pytest.fail(
            f"{label}: {len(wrong)} of {len(actual)} wrong, first at {offset}{source}: "
            f"got {actual[offset]!r}, expected {want[offset]!r}"
        )


def expect_codes(
    actual: np.ndarray, want: np.ndarray, fmt: Format, label: str, inputs: np.ndarray
) -> None:
    fine = matches(actual, want, fmt)
    if not fine.all():
        offset = int(np.flatnonzero(~fine)[0])
        pytest.fail(
            f"{label}: {(~fine).sum()} of {len(actual)} wrong, "
            f"first at {offset} for {inputs[offset]!r}: "
            f"got code {actual[offset]:#x}, expected {want[offset]:#x}"
        )


def float_bits(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32).view(np.uint32)


def points_around(fmt: Format, scale: float = 1.0) -> np.ndarray:
    """float32 values at, next to and halfway between all values of a format, and beyond them."""
    grid = fmt.magnitudes
    top = grid[-1]
    points = np.concatenate(
        [
            grid,
            (grid[1:] + grid[:-1]) / 2,
            grid[1:2] / 4,
            top + (grid[-1] - grid[-2]) * np.array([0.25, 0.5, 0.75, 1, 2]),
            [3e38, 1e-30],
        ]
    )
    with np.errstate(over="ignore"):
        points = (points * scale).astype(np.float32)
        neighbours = [np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))]
    values = np.concatenate([points, *neighbours])
    special = np.array([np.inf, np.nan, 0.0], np.float32)
    return np.concatenate([values, -values, special, -special])


def random_floats(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(count) * np.exp2(rng.uniform(-20, 18, count))).astype(np.float32)


def wide_bits(values: np.ndarray, kind: str) -> np.ndarray:
    """Codes of float32 values rounded to a wide type."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "f32":
            return float_bits(values)
        if kind == "f16":
            return values.astype(np.float16).view(np.uint16).astype(np.uint32)
        return (float_bits(values) >> 16).astype(np.uint32)


def wide_values(codes: np.ndarray, kind: str) -> np.ndarray:
    """float64 values of wide codes."""
    if kind == "f32":
        return codes.astype(np.uint32).view(np.float32).astype(np.float64)
    if kind == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def narrow_codes(values: np.ndarray, kind: str) -> np.ndarray:
    """Wide codes of float64 values, rounded once; -1 for NaN."""
    if kind == "f32":
        with np.errstate(over="ignore", invalid="ignore"):
            codes = values.astype(np.float32).view(np.uint32).astype(np.int64)
    else:
        codes = {"f16": F16, "bf16": BF16}[kind].round(values)
    return np.where(np.isnan(values), -1, codes)


def expect_wide(actual: np.ndarray, want: np.ndarray, kind: str, label: str) -> None:
    actual = actual.astype(np.int64)
    actual = np.where(np.isnan(wide_values(actual, kind)), -1, actual)
    expect(actual, want, label)


SATURATE = "  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"  # MODE.FP16_OVFL


def small(name: str, arch: str = "gfx950") -> Format:
    return {"fp6": E2M3, "bf6": E3M2, "fp4": E2M1, **eight_bit(arch)}[name]


def next_random(state: np.ndarray) -> np.ndarray:
    return (state << np.uint32(1)) ^ np.where(state >> 31, np.uint32(0xC5), np.uint32(0))
