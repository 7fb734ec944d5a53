"""The means of stand-ins, without an engine."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from rfops.engines import standins, tally


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that is not there, with one name in one module of it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    standins.absent({"not_there": {}, "not_there.ops": {"answer": 42}})
    yield "not_there"
    for name in [name for name in sys.modules if name.partition(".")[0] == "not_there"]:
        del sys.modules[name]


def test_names_of_an_absent_package(package: str) -> None:
    ops = importlib.import_module(f"{package}.ops")
    assert ops.answer == 42
    kernel = importlib.import_module(f"{package}.below.here").kernel
    assert isinstance(kernel, type) and isinstance(kernel.MODE, type)  # annotations and defaults
    for name, refusing in (("kernel", kernel), ("kernel.MODE", kernel.MODE)):
        with pytest.raises(NotImplementedError, match=rf"not_there\.below\.here\.{name}: "):
            refusing(1, dim=2)
    assert not hasattr(ops, "__wrapped__")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there_either")


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        ("MLA decode", "vllm.v1.attention.ops.triton_decode_attention._fwd_kernel_stage2"),
        ("experts", "sglang.fused_moe_kernel"),
        ("experts", "matmul_ogs_swiglu_dflt._matmul_ogs"),
        ("FP8 linears", "sglang._w8a8_block_fp8_matmul"),
    ],
)
def test_a_share_counts_what_was_left(family: str, kernel: str) -> None:
    """Of aiter's functions what the plugin left; of the engine's own its kernel's launches."""
    launches = {"experts": 4}.get(family, 2)
    callee = {
        "MLA decode": "aiter.mla.mla_decode_fwd",
        "experts": "aiter.fused_moe.fused_moe",
        "FP8 linears": "aiter.gemm_a8w8_blockscale",
    }[family]
    counts = {
        tally.RFOPS: Counter({callee: 5, "another": 7}),
        tally.TRITON: Counter({kernel: launches, "sglang._fwd_kernel_stage2": 9}),
    }
    assert tally.share(counts, {}, family) == (5, 7)
    left = {f"{callee}: a reason": 3, "vllm.v1.attention: its kernel counts": 4, "another": 1}
    assert tally.share(counts, left, family) == (5, 10)
