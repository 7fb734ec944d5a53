"""`rfops run --engine sglang`: SGLang's own Engine generates tokens on the virtual GPU, and they
are the fp32 model's. Tiny models with random weights (support/engine_models.py)."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from support import engine_models
from support.engine_runs import (
    EXPERTS,
    FP8,
    FP8_CACHE,
    LINEARS,
    MLA,
    Case,
    check_release,
    check_server,
    check_tokens,
)

needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None,
    reason="no SGLang: pip install --no-deps sglang==0.5.23; .ci/engines.txt has what it imports",
)

AITER = {"attention_backend": "aiter"}
IN_CACHE = {**AITER, "kv_cache_dtype": "fp8_e4m3"}
IN_FP8 = (MLA, EXPERTS, FP8)
CASES = {
    "deepseek, gfx942": Case("deepseek", "gfx942", (MLA, EXPERTS), AITER),
    "deepseek-fp8": Case("deepseek-fp8", "gfx950", IN_FP8, AITER, LINEARS),
    "qwen3-moe": Case("qwen3-moe", "gfx950", (EXPERTS,), {"attention_backend": "triton"}),
    # SGLang 0.5.23's Triton decode sees a key fewer of a sliding window than its prefill.
    "gpt-oss-mxfp4": Case(
        engine_models.WIDE, "gfx950", (EXPERTS,), {"attention_backend": "triton"}
    ),
}
SWEEP = {
    "deepseek": Case("deepseek", "gfx950", (MLA, EXPERTS), AITER),
    "deepseek, FP8 cache": Case("deepseek", "gfx950", (MLA, EXPERTS), IN_CACHE, FP8_CACHE),
    "deepseek-fp8, gfx942": Case("deepseek-fp8", "gfx942", IN_FP8, AITER, LINEARS),
}


@needs_sglang
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.sweep) for c in SWEEP)]
)
def test_tokens_are_the_models(case: str, models: Path) -> None:
    check_tokens("sglang", (CASES | SWEEP)[case], models)


@needs_sglang
@pytest.mark.sweep
def test_a_server_answers(models: Path) -> None:
    folder, prompt = engine_models.make("deepseek", models / "deepseek"), [5, 9, 100, 7]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", folder]
    command += ["--skip-tokenizer-init", "--disable-cuda-graph", "--attention-backend=aiter"]
    command += ["--context-length=128", "--max-total-tokens=1024", "--max-running-requests=4"]
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    request = {"input_ids": prompt, "sampling_params": sampling}
    answer, report = check_server("sglang", command, "/generate", request)
    tokens = answer["output_ids"]
    assert len(tokens) == 4
    misses, _ = engine_models.misses(folder, [prompt], [tokens], {})
    assert all(miss.gap <= miss.bound for miss in misses), misses
    assert re.search(r"by rfops: MLA decode (\d+) of \1 calls, experts (\d+) of \2 calls", report)


def test_another_release_is_refused(tmp_path: Path) -> None:
    check_release("sglang", "0.5.23", tmp_path)
