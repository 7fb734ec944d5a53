"""aiter.utility.dtypes: torch dtypes by aiter's short names, and readers of command-line arguments.

`fp8` is that of the device's architecture: e4m3fnuz on gfx942, e4m3fn on gfx950."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from rfops.dispatch.declare import E8M0, FP4
from rfops.moe.moe_dropins import ActivationType, QuantType
from rfops.quantization.fp8_blockscale import fp8_of_device

from .chip_info import current_device

i4x2 = torch.uint8
fp4x2 = FP4
fp8_e8m0 = E8M0
fp16 = torch.float16
bf16 = torch.bfloat16
fp32 = torch.float32
u8, u32, u64 = torch.uint8, torch.uint32, torch.uint64
i8, i16, i32, i64 = torch.int8, torch.int16, torch.int32, torch.int64


def get_dtype_fp8() -> torch.dtype:
    """Return the FP8 dtype of the current device's matrix instructions."""
    return fp8_of_device(current_device())


fp8 = get_dtype_fp8()
_NAMES = "fp8 fp8_e8m0 fp16 bf16 fp32 i4x2 fp4x2 u32 i32 i16 i8 u8 i64 u64"
d_dtypes: Mapping[str, torch.dtype] = MappingProxyType(
    {name: globals()[name] for name in _NAMES.split()}
)


def _parsed(text: str, convert: Callable[[str], Any]) -> Any:
    """Return one value, or a tuple of them where `text` has a comma, brackets allowed."""
    try:
        values = [convert(word.strip()) for word in text.strip("()").split(",") if word.strip()]
    except (KeyError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} has no meaning here: {error}") from error
    return values[0] if len(values) == 1 and "," not in text else tuple(values)


def str2bool(text: str | bool) -> bool:
    """Read yes/no, true/false, t/f, y/n, 1/0, in any case."""
    words = {"yes": True, "true": True, "t": True, "y": True, "1": True}
    words |= {"no": False, "false": False, "f": False, "n": False, "0": False}
    value = text if isinstance(text, bool) else words.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(f"expected yes or no, got {text!r}")
    return value


def str2tuple(text: str) -> int | tuple[int, ...]:
    """Read `512` as an int, `512,` and `512,1024` as tuples."""
    result: int | tuple[int, ...] = _parsed(text, int)
    return result


def str2Dtype(text: str) -> Any:
    """Read names of d_dtypes, of QuantType in any case, and none."""
    quants = {name.lower(): value for name, value in QuantType.__members__.items()}
    values_by_name: dict[str, Any] = {**quants, **d_dtypes}

    def convert(word: str) -> Any:
        return (
            None
            if word.lower() == "none"
            else values_by_name.get(word) or values_by_name[word.lower()]
        )

    return _parsed(text, convert)


def str2ActivationType(text: str) -> ActivationType:
    """Read a member of ActivationType, in any case."""
    return ActivationType[text.capitalize()]
