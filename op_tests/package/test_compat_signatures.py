"""Drop-ins have their callees' parameters, order and defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import zipfile
from pathlib import Path

import pytest

from rfops import compat
from rfops.compat.aiter import names
from support.aiter_signatures import AITER, IMPORTABLE, VLLM, parameters_of

# What a drop-in has behind those of e404860: arguments of other aiters.
MORE = {
    "fused_moe": ["unused"],
    "mla_decode_fwd": ["others"],
    "topk_gating": ["num_shared_experts"],
}
# By name alone: of mla_decode_fwd's last arguments those of context parallelism are not its own.
UNORDERED = {"mla_decode_fwd"}


@pytest.mark.parametrize("name", [*AITER, *VLLM])
def test_parameters_and_defaults(name: str) -> None:
    own = dict(inspect.signature(getattr(compat, name)).parameters)
    theirs = parameters_of(name)
    for parameter in theirs:
        if name in UNORDERED and parameter.name not in own:
            continue
        result = own[parameter.name]
        assert result.default == parameter.default, (parameter.name, result.default)
        assert result.kind == parameter.kind
    if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
        with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
            getattr(compat, name)(unknown=1)
    if name not in UNORDERED:
        assert list(own) == [p.name for p in theirs] + MORE.get(name, [])


@pytest.mark.parametrize("name", IMPORTABLE)
def test_importable_names_have_aiters_parameters(name: str) -> None:
    module, _, leaf = name.rpartition(".")
    provider, _, own = names.SERVED[module][leaf].partition(":")
    result = inspect.signature(getattr(importlib.import_module(provider), own)).parameters.values()
    expected = parameters_of(name)
    assert [(p.name, p.default, p.kind) for p in result] == [
        (p.name, p.default, p.kind) for p in expected
    ]


def test_each_drop_in_of_a_recorded_library_is_recorded() -> None:
    elsewhere = {
        "ActivationType",
        "BatchMLAPagedAttentionWrapper",
        "QuantType",
        "flash_mla_with_kvcache",
        "get_mla_metadata",
        "get_mla_metadata_info_v1",
        "get_mla_metadata_v1",
        "grouped_gemm_mxfp8",
        "mxfp8_gemv",
    }
    assert set(compat.__all__) == {*AITER, *VLLM, *elsewhere}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("decode_attention_fwd", "vllm/v1/attention/ops/triton_decode_attention.py"),
        ("moe_align_block_size", "vllm/model_executor/layers/fused_moe/moe_align_block_size.py"),
    ],
)
def test_what_is_recorded_is_in_the_wheel(name: str, file: str) -> None:
    wheels = os.environ.get("RFOPS_TEST_WHEELS", "")
    results = sorted(Path(wheels).glob("vllm-*.whl")) if wheels else []
    if not results:
        pytest.skip("RFOPS_TEST_WHEELS has no wheel of vllm: pip download --no-deps vllm")
    tree = ast.parse(zipfile.ZipFile(results[-1]).read(file))
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    *_overloads, function = functions
    assert ast.unparse(_bare(function.args)) == ast.unparse(
        ast.parse(f"def f({VLLM[name]}): ...").body[0].args  # type: ignore[attr-defined]
    )


def _bare(args: ast.arguments) -> ast.arguments:
    for arg in (*args.args, *args.kwonlyargs):
        arg.annotation = None
    return args
