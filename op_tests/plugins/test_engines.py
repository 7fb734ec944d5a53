"""The code of vLLM and SGLang, as their newest wheels have it: the call sites still say what our
wrappers expect, and the plugins register in it.

RFOPS_TEST_WHEELS names a folder with the wheels, as `pip download --no-deps vllm sglang` leaves
them (.ci/run does); nothing of them is kept.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rfops.plugins.callees import AITER, VLLM

WHEELS = Path(os.environ.get("RFOPS_TEST_WHEELS", ""))
ENGINES = ("vllm", "sglang")
TARGETS = {callee.target: callee for callee in (*AITER, *VLLM)}
# Where a name of aiter's comes from when a package gives out what its modules have.
ALIASES = {
    "aiter.topk_gating": "aiter.ops.topk.topk_gating",
    "aiter.ops.gemm_op_a4w4.gemm_a4w4": "aiter.gemm_a4w4",
    "aiter.dynamic_per_token_scaled_quant": "aiter.ops.quant.dynamic_per_token_scaled_quant",
    "aiter.dynamic_per_tensor_quant": "aiter.ops.quant.dynamic_per_tensor_quant",
    "aiter.static_per_tensor_quant": "aiter.ops.quant.static_per_tensor_quant",
}
# By engine, the callees that each calls today: one that is called no more is seen, too.
CALLED = {
    "vllm": {
        "aiter.mla.mla_decode_fwd",
        "aiter.fused_moe.fused_moe",
        "aiter.topk_softmax",
        "aiter.ops.topk.topk_gating",
        "aiter.fused_moe.fused_topk",
        "aiter.biased_grouped_topk",
        "aiter.grouped_topk",
        "aiter.gemm_a8w8_blockscale",
        "aiter.gemm_a8w8_blockscale_bpreshuffle",
        "aiter.gemm_a4w4",
        "aiter.get_hip_quant",
        "aiter.ops.triton.gemm_a8w8_blockscale.gemm_a8w8_blockscale",
        "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4",
        "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle",
        "aiter.ops.triton.quant.dynamic_mxfp4_quant",
        "aiter.rms_norm",
        "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant",
        "aiter.ops.triton.fusions.fused_clamp_act_mul.fused_clamp_act_mul",
        "aiter.ops.quant.dynamic_per_token_scaled_quant",
        "aiter.ops.quant.dynamic_per_tensor_quant",
        "aiter.ops.quant.static_per_tensor_quant",
        "vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd",
        "vllm.model_executor.layers.fused_moe.moe_align_block_size.moe_align_block_size",
    },
    "sglang": {
        "aiter.mla.mla_decode_fwd",
        "aiter.fused_moe.fused_moe",
        "aiter.fused_moe.fused_topk",
        "aiter.biased_grouped_topk",
        "aiter.gemm_a8w8_blockscale",
        "aiter.gemm_a8w8_blockscale_bpreshuffle",
        "aiter.gemm_a4w4",
        "aiter.ops.topk.topk_gating",
        "aiter.get_hip_quant",
        "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4",
        "aiter.ops.triton.quant.dynamic_mxfp4_quant",
        "aiter.rmsnorm2d_fwd",
        "aiter.silu_and_mul",
        "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant",
        "aiter.ops.triton.fusions.fused_clamp_act_mul.fused_clamp_act_mul",
        "aiter.ops.quant.dynamic_per_token_scaled_quant",
        "aiter.ops.quant.dynamic_per_tensor_quant",
        "aiter.ops.quant.static_per_tensor_quant",
        "aiter.per_token_quant_hip",
    },
}


@dataclass(frozen=True)
class Site:
    """A call of a callee: by position so many (None: unpacked), by name these (None likewise)."""

    place: str
    target: str
    by_position: int | None
    names: tuple[str, ...]
    is_open: bool  # a ** among its arguments


def wheel(engine: str) -> zipfile.ZipFile:
    results = sorted(WHEELS.glob(f"{engine}-*.whl")) if WHEELS.name else []
    if not results:
        pytest.skip(f"RFOPS_TEST_WHEELS has no wheel of {engine}: pip download --no-deps {engine}")
    return zipfile.ZipFile(results[-1])


def sites(archive: zipfile.ZipFile) -> Iterator[Site]:
    words = {target.rpartition(".")[2] for target in TARGETS}
    for name in archive.namelist():
        if not name.endswith(".py"):
            continue
        text = archive.read(name).decode(errors="replace")
        if any(word in text for word in words):
            yield from sites_in(name, text)


def sites_in(position: str, text: str) -> Iterator[Site]:
    tree = ast.parse(text)
    known: dict[str, set[str]] = {}  # two functions may mean two things by one name
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None)
            for a in node.names:
                origin = f"{module}.{a.name}" if module else a.name
                known.setdefault(a.asname or a.name, set()).add(origin)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, dot, remaining = ast.unparse(node.func).partition(".")
            is_open = any(isinstance(a, ast.Starred) for a in node.args)
            targets = {origin + dot + remaining for origin in known.get(head, ())}
            for target in {ALIASES.get(name, name) for name in targets} & set(TARGETS):
                yield Site(
                    f"{position}:{node.lineno}",
                    target,
                    None if is_open else len(node.args),
                    tuple(k.arg for k in node.keywords if k.arg),
                    any(k.arg is None for k in node.keywords),
                )


def test_sites_are_found_however_they_are_imported() -> None:
    text = (
        "import aiter\n"
        "from aiter import gemm_a4w4 as _g, topk_gating\n"
        "def f(a):\n"
        "    from aiter.mla import mla_decode_fwd\n"
        "    mla_decode_fwd(a, a, *a, **a)\n"
        "    aiter.topk_softmax(a, a, a, a, True)\n"
        "    _g(a, a, dtype=a)\n"
        "    topk_gating(a)\n"
        "    other.topk_softmax(a)\n"
    )
    results = [(s.target, s.by_position, s.names, s.is_open) for s in sites_in("x.py", text)]
    assert results == [
        ("aiter.mla.mla_decode_fwd", None, (), True),
        ("aiter.topk_softmax", 5, (), False),
        ("aiter.gemm_a4w4", 2, ("dtype",), False),
        ("aiter.ops.topk.topk_gating", 1, (), False),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_call_sites_fit_our_wrappers(engine: str) -> None:
    """Each binds to the drop-in's parameters, in their order; names that it does not have are
    those that it refuses, or ignores, by its **."""
    results = list(sites(wheel(engine)))
    for site in results:
        if site.target == "aiter.get_hip_quant":
            assert (site.by_position, site.names, site.is_open) == (1, (), False), site
            continue
        parameters = inspect.signature(TARGETS[site.target].drop_in).parameters.values()
        names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        least = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        given = names[: site.by_position] if site.by_position is not None else names
        assert site.by_position is None or site.by_position <= len(names), site
        only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        strange = set(site.names) - {*names, *only}
        assert not strange or takes_any, (site, strange)
        assert not set(site.names) & set(given[: site.by_position or 0]), site
        assert site.is_open or set(least) <= {*given, *site.names}, site
    called = {site.target for site in results}
    assert called == CALLED[engine], called ^ CALLED[engine]


# ---------------------------------------------------------------- register() in their code

STUB = """
import sys, types
from importlib.machinery import ModuleSpec
import torch
torch.version.hip = "7.0"  # rfops asks it; theirs does not look for a GPU before a model runs
"""
IN_VLLM = (
    STUB
    + """
import rfops.plugins.vllm as plugin
import vllm.plugins
plugin.register(); plugin.register()
vllm.plugins.load_plugins_by_group("vllm.general_plugins")["rfops"]()
from vllm.v1.attention.backends.registry import AttentionBackendEnum
print(AttentionBackendEnum["RFOPS_MLA"].get_path())
"""
)
BACKEND = (
    STUB
    + """
import rfops.plugins.vllm as plugin
plugin.register()
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.ops import triton_decode_attention
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod as method)
backend = AttentionBackendEnum["RFOPS_MLA"].get_class()
impl = backend.get_impl_cls().__new__(backend.get_impl_cls())
impl.scale, impl.dcp_world_size, impl.kv_lora_rank = 0.04, 1, 512
print(backend.get_name(), triton_decode_attention.decode_attention_fwd.rfops.target)
print(type(method.__new__(method)).__name__)
torch.manual_seed(0)
q, cache = torch.randn(4, 16, 576).bfloat16(), torch.randn(9, 16, 576).bfloat16()
table = torch.tensor([[3, 1, 0], [4, 5, 2]], dtype=torch.int32)
lens = torch.tensor([20, 48], dtype=torch.int32)
decode = types.SimpleNamespace(block_table=table, seq_lens=lens)
meta = types.SimpleNamespace(decode=decode, causal=True, max_seq_len=48)
layer = types.SimpleNamespace(_k_scale=torch.ones(1))
out, lse = impl.forward_mqa((q[..., :512], q[..., 512:]), cache, meta, layer)
import rfops
ref = rfops.mla_decode_ref(q, cache.unsqueeze(2), None, table, 0.04, kv_lens=lens, qo_len=2)
ref = ref[0] if isinstance(ref, tuple) else ref
assert (out.float() - ref.float()).abs().max() < 0.02, (out.float() - ref.float()).abs().max()
assert lse.shape == (4, 16) and lse.isfinite().all()
from rfops.plugins.around import summary
print(summary())
"""
)
IN_SGLANG = (
    STUB
    + """
aiter = types.ModuleType("aiter")
aiter.__spec__ = ModuleSpec("aiter", None)
aiter.biased_grouped_topk = lambda *args, **kwargs: "original"
sys.modules["aiter"] = aiter
copy = types.ModuleType("copy_of_it")
sys.modules["copy_of_it"] = copy
copy.aiter_biased_grouped_topk = aiter.biased_grouped_topk
import rfops.plugins.sglang as plugin
plugin.register(); plugin.register()
from sglang.srt.plugins import load_plugins
load_plugins()
ids, weights = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 2)
for _ in range(2):
    copy.aiter_biased_grouped_topk(
        torch.randn(2, 8), torch.randn(8), weights, ids, 1, 1, True, 1.0)
from rfops.plugins.around import summary
mine = [line for line in summary() if "biased_grouped_topk" in line]
others = [line for line in summary() if "biased_grouped_topk" not in line]
print(mine, bool(weights.sum() > 1.9))
print(bool(others), [line for line in others if " is not wrapped: " not in line])
"""
)


def wants_more(error: str, files: Collection[str]) -> bool:
    """Whether the last line of a traceback names a module that this environment cannot have: a
    compiled one of the engine whose wheel has these files, or one of a package that is not
    installed. vllm._C and vllm._rocm_C are compiled ones of other builds than the wheel's."""
    match = re.fullmatch(r"ModuleNotFoundError: No module named '([\w.]+)'", error)
    if match is None:
        return False
    package, _, name = match[1].partition(".")
    if package in {file.partition("/")[0] for file in files}:
        compiled = re.compile(rf"{match[1].replace('.', '/')}(\.[\w-]+)?\.so")
        is_extension = re.fullmatch(r"_(\w+_)?C(_\w+)?", name) is not None
        return is_extension or any(map(compiled.fullmatch, files))
    return importlib.util.find_spec(package) is None


@pytest.mark.parametrize(
    ("error", "skips"),
    [
        ("No module named 'vllm._C'", True),
        ("No module named 'vllm._rocm_C'", True),
        ("No module named 'vllm._moe_C_stable_libtorch'", True),
        ("No module named 'vllm.cumem_allocator'", True),
        ("No module named 'vllm.third_party.kernel'", True),
        ("No module named 'a_package_that_nobody_has'", True),
        ("No module named 'a_package_that_nobody_has.module'", True),
        ("No module named 'vllm.moved'", False),
        ("No module named 'vllm._C.moved'", False),
        ("No module named 'vllm._Custom'", False),
        ("No module named 'rfops.moved'", False),
        ("No module named 'torch.moved'", False),
        ("No module named 'aiter.ops'; 'aiter' is not a package", False),
        ("", False),
    ],
)
def test_what_skips(error: str, skips: bool) -> None:
    """A Python module that the engine has moved is a failure, as one of ours."""
    compiled = ("cumem_allocator.abi3.so", "third_party/kernel.cpython-311-x86_64-linux-gnu.so")
    files = ["vllm/__init__.py", *(f"vllm/{name}" for name in compiled)]
    assert wants_more(f"ModuleNotFoundError: {error}", files) is skips


def run_in(engine: str, code: str, tmp_path: Path) -> str:
    """In a process with the wheel's Python files unpacked; skips where `wants_more`."""
    archive = wheel(engine)
    files = archive.namelist()
    archive.extractall(tmp_path, [n for n in files if n.endswith((".py", ".txt", "METADATA"))])
    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "RFOPS_VGPU_ARCH": "gfx950"},
    )
    last = completed.stderr.strip().splitlines()[-1] if completed.stderr.strip() else ""
    if completed.returncode and wants_more(last, files):
        pytest.skip(f"{engine} wants more than this environment has: {last}")
    assert completed.returncode == 0, completed.stderr[-4000:]
    return completed.stdout


def test_register_in_vllm(tmp_path: Path) -> None:
    out = run_in("vllm", IN_VLLM, tmp_path)
    assert out.splitlines()[-1] == "rfops.plugins.vllm_mla.RfopsMLABackend"


def test_vllms_backend_and_experts(tmp_path: Path) -> None:
    named, method, said = run_in("vllm", BACKEND, tmp_path).splitlines()[-3:]
    assert named == ("RFOPS_MLA vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd")
    assert method == "RfopsUnquantizedFusedMoEMethod"
    assert said == "['vllm: RFOPS_MLA: 1 calls by rfops']"


def test_register_in_sglang(tmp_path: Path) -> None:
    out = run_in("sglang", IN_SGLANG, tmp_path)
    called, unreached = out.splitlines()[-2:]
    assert called == "['aiter.biased_grouped_topk: 2 calls by rfops'] True"
    # The others of the module are not there, and are named.
    assert unreached == "True []"
