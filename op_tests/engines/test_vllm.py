"""`rfops run --engine vllm`: vLLM's own engine generates tokens on the virtual GPU, and they are
the fp32 model's. Tiny models with random weights (support/engine_models.py)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
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

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="no vLLM: pip install --no-deps vllm==0.33.0; .ci/engines.txt has what it imports",
)

RFOPS_MLA = {"attention_backend": "RFOPS_MLA"}
IN_CACHE = {**RFOPS_MLA, "kv_cache_dtype": "fp8"}
EMULATED = {"moe_backend": "emulation"}  # which the plugin computes: x and h in MXFP4 too
CASES = {
    "deepseek": Case("deepseek", "gfx950", (MLA, EXPERTS), RFOPS_MLA),
    "deepseek, gfx942": Case("deepseek", "gfx942", (MLA, EXPERTS), RFOPS_MLA),
    "deepseek, FP8 cache": Case("deepseek", "gfx950", (MLA, EXPERTS), IN_CACHE, FP8_CACHE),
    "deepseek-fp8": Case("deepseek-fp8", "gfx950", (MLA, EXPERTS, FP8), RFOPS_MLA, LINEARS),
    "deepseek-fp8, gfx942": Case("deepseek-fp8", "gfx942", (MLA, EXPERTS, FP8), RFOPS_MLA, LINEARS),
    "qwen3-moe": Case("qwen3-moe", "gfx950", (EXPERTS,)),
    "qwen3-moe-mxfp4": Case("qwen3-moe-mxfp4", "gfx950", (EXPERTS,), {}, {"experts": "mxfp4"}),
    "gpt-oss-mxfp4": Case("gpt-oss-mxfp4", "gfx950", (EXPERTS,)),
    "gpt-oss-mxfp4, emulated": Case(
        "gpt-oss-mxfp4", "gfx950", (EXPERTS,), EMULATED, {"experts": "mxfp4"}
    ),
    "qwen3-moe, gfx942": Case("qwen3-moe", "gfx942", (EXPERTS,)),
}


SWEEP = {
    "gpt-oss-mxfp4, gfx942": Case("gpt-oss-mxfp4", "gfx942", (EXPERTS,)),
    "gpt-oss-mxfp4, emulated, gfx942": Case(
        "gpt-oss-mxfp4", "gfx942", (EXPERTS,), EMULATED, {"experts": "mxfp4"}
    ),
}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.sweep) for c in SWEEP)]
)
def test_tokens_are_the_models(case: str, models: Path) -> None:
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CACHE_ROOT": str(models / "vllm")}
    check_tokens("vllm", (CASES | SWEEP)[case], models, **env)


def test_a_server_answers(models: Path) -> None:
    """An OpenAI-compatible request on the loopback."""
    folder, prompt = engine_models.make("deepseek", models / "deepseek"), [5, 9, 100, 7]
    command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--served-model-name=tiny"]
    command += ["--skip-tokenizer-init", "--enforce-eager", "--attention-backend=RFOPS_MLA"]
    command += ["--max-model-len=128", "--kv-cache-memory-bytes=16777216"]
    request = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    request |= {"ignore_eos": True, "detokenize": False, "return_token_ids": True}
    answer, report = check_server(
        "vllm", command, "/v1/completions", request, VLLM_CACHE_ROOT=str(models / "vllm")
    )
    tokens = answer["choices"][0]["token_ids"]
    assert len(tokens) == 4 and answer["usage"]["completion_tokens"] == 4
    misses, _ = engine_models.misses(folder, [prompt], [tokens], {})
    assert all(miss.gap <= miss.bound for miss in misses), misses
    assert re.search(r"by rfops: MLA decode (\d+) of \1 calls, experts (\d+) of \2 calls", report)


def test_another_release_is_refused(tmp_path: Path) -> None:
    check_release("vllm", "0.33.0", tmp_path)


def test_the_backend_reaches_a_process_without_plugins() -> None:
    """vLLM sends its config to the engine's process, which unpickles it before it loads plugins."""
    write = (
        "import pickle, sys, torch; torch.version.hip = '7.0'; import rfops.plugins.vllm as plugin;"
        "plugin.register(); sys.stdout.buffer.write(pickle.dumps(plugin.backend()))"
    )
    read = "import pickle, sys; print(pickle.load(sys.stdin.buffer).name)"
    pickled = subprocess.run([sys.executable, "-c", write], capture_output=True, check=True).stdout
    output = subprocess.run(
        [sys.executable, "-c", read], input=pickled, capture_output=True, check=True
    ).stdout
    assert output.split() == [b"RFOPS_MLA"]
