"""What a config says of its LDS is what the compiler gives its kernel, but for a word that the
workgroups of a split share: by it variants are refused and predicted."""

from __future__ import annotations

from typing import Any

import pytest

from rfops.dispatch.op import ops
from rfops.gemm.a8w8_stream import StreamConfig
from rfops.gemm.mxfp8_mfma import MfmaConfig
from support.assembly import lds_bytes

FP8 = {"x_dtype": "fp8", "w_dtype": "fp8"}
CONFIGS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("gemm_a8w8_blockscale", "stream", StreamConfig(1, 1, 4, 4, 2, 4), FP8),  # lines are more
    ("gemm_a8w8_blockscale", "stream", StreamConfig(1, 2, 2, 7, 2), FP8),  # sums are more
    ("gemm_mxfp8", "mfma", MfmaConfig(1, 1, 1, 4, 2), {}),
]


@pytest.mark.parametrize(("name", "kernel", "config", "more"), CONFIGS, ids=str)
def test_lds_of_a_config(name: str, kernel: str, config: Any, more: dict[str, Any]) -> None:
    own = ops()[name].kernels[kernel]
    c = ops()[name].call_of("gfx950", M=16, N=2112, K=7168, **more)
    assert own.refuses(c) is None and own.refuses_config(c, config) is None
    taken = lds_bytes(own.module, "gfx950", own.defines(c, config))
    assert taken <= config.lds_bytes <= taken + 16, (taken, config.lds_bytes)
