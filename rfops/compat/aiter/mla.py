"""aiter's metadata for persistent MLA kernels: rfops' kernel shares tokens out itself, so there is
nothing to plan, and buffers are as small as torch allows."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

from rfops import compat


class MlaVersion(IntEnum):
    """aiter's, by name and number."""

    V32, V40 = 0, 1


def get_ps_metadata_info_v1(*_args: Any, **_kwargs: Any) -> tuple[Any, ...]:
    """Return shape and dtype of the six buffers that get_ps_metadata_v1 takes."""
    return compat.get_mla_metadata_info_v1()


def get_ps_metadata_v1(*_args: Any, **_kwargs: Any) -> None:
    """Plan nothing: mla_decode_fwd ignores metadata. (Of aiter's two readers of these buffers the
    other, mla_prefill_ps_asm_fwd, is not served.)"""


def get_meta_param(*_args: Any, **_kwargs: Any) -> tuple[int, torch.Tensor | None]:
    """Return the number of KV splits and their offsets: one, and none."""
    return 1, None
