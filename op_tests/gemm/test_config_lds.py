"""What a config says of its LDS is what the compiler gives its kernel, but for a word that the
workgroups of a split share: by it variants are refused and predicted."""

from __future__ import annotations

from typing import Any

import pytest

from rfops.dispatch.op import ops
from rfops.gemm.a8w8_stream import StreamConfig
from rfops.gemm.kernels.mxfp4.stream import StreamConfig as Fp4StreamConfig
from rfops.gemm.mxfp4_op import x_bits
from rfops.gemm.mxfp8_mfma import MfmaConfig
from support.assembly import lds_bytes

FP8 = {"x_dtype": "fp8", "w_dtype": "fp8"}
CONFIGS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("gemm_a8w8_blockscale", "stream", StreamConfig(1, 1, 4, 4, 2, 4), FP8),  # lines are more
    ("gemm_a8w8_blockscale", "stream", StreamConfig(1, 2, 2, 7, 2), FP8),  # sums are more
    ("gemm_mxfp8", "mfma", MfmaConfig(1, 1, 1, 4, 2), {}),
    *[
        (name, "stream", Fp4StreamConfig(1, *more), {})
        for name in ("gemm_a16wfp4", "gemm_a8wfp4", "gemm_afp4wfp4")
        for more in ((1, 2, 4), (2, 1, 2), (3, 2, 2, 2))  # staging is more, of one tile; sums are
    ],
]


@pytest.mark.parametrize(("name", "kernel", "config", "more"), CONFIGS, ids=str)
def test_lds_of_a_config(name: str, kernel: str, config: Any, more: dict[str, Any]) -> None:
    own = ops()[name].kernels[kernel]
    c = ops()[name].call_of("gfx950", M=16, N=2112, K=7168, **more)
    assert own.unsupported_reason(c) is None and own.unsupported_config_reason(c, config) is None
    taken = lds_bytes(own.module, "gfx950", own.defines(c, config))
    said = config.lds_bytes
    if isinstance(config, Fp4StreamConfig):
        said = config.lds_bytes(x_bits(c))
    assert taken <= said <= taken + 16, (taken, said)
