"""Replays cases in a world, and what must come of each."""

from __future__ import annotations

import functools
import importlib
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cases import CASES, Case
from .engine_code import ToTheOriginal, World
from .sites import Engine

IMPORT = "import"  # passes the sites at module level
RECORD = Path(__file__).with_name("sites.json")
# Sites that no case passes, by a pattern of their key, and why none does.
NOT_REPLAYED = {
    r"\| probe$": "asks for a signature or a presence, or registers an op: case `signatures`",
    r"(_sparse_indexer_and_attn|DeepseekV32MLAAttention\._fused_attention) \| vllm: RFOPS_MLA": (
        "a backend of sparse attention, which RFOPS_MLA is not"
    ),
    r"fused_topk_router.* \| fused_topk \| .* #1$": (
        "the branch of sigmoid, where the name means another function"
    ),
    r"GroupedTopKRouter\._compute_routing .*\| use$": "compared with, not called",
    r"compilation/passes/fusion/.*(\| use| \| 0)$": "a pattern of the compiler takes the op's name",
    r"rocm_aiter_ops\.get_.*_op \| .*\| use$": "gives out an op, whose own sites are replayed",
    r"RMSNorm\.forward_hip \| aiter.rmsnorm2d_fwd \| 4$": (
        "SGLang's branch without aiter, where the name means vLLM's function"
    ),
}


def wheel(engine: str) -> zipfile.ZipFile:
    folder = os.environ.get("RFOPS_TEST_WHEELS", "")
    results = sorted(Path(folder).glob(f"{engine}-*.whl")) if folder else []
    if not results:
        pytest.skip(f"RFOPS_TEST_WHEELS has no wheel of {engine}: pip download --no-deps {engine}")
    return zipfile.ZipFile(results[-1])


@functools.cache
def engine_of(name: str) -> Engine:
    return Engine(name, wheel(name))


def cases_of(name: str, arch: str) -> list[Case]:
    importlib.import_module(f"{__package__}.cases_{name}")
    return [c for c in CASES.values() if c.engine == name and arch in c.archs]


def world_of(name: str, arch: str) -> World:
    cases = importlib.import_module(f"{__package__}.cases_{name}")
    return World(engine_of(name), wheel(name), arch, cases.prepare)


@dataclass(frozen=True)
class Verdict:
    """Of a replay: the sites that it passed, why the call was left to the original ("" where rfops
    took it), and what is wrong with that ("" for nothing)."""

    sites: frozenset[str]
    why: str
    fault: str


def replay(world: World, case: Case) -> Verdict:
    """A case must engage and be right, or be left to the original for the reason that it names."""
    world.seen.clear()
    world.covered.clear()
    fault = ""
    try:
        case.run(world)
    except ToTheOriginal:
        pass
    except Exception as error:  # a result that is wrong, or a mistake of the case
        fault = f"{type(error).__name__}: {error}"
    passed = {site for note in world.seen for site in note.sites} | world.covered
    sites = {site.key for site in passed if site.function}  # a module is imported once for all
    declined = [note for note in world.seen if not note.engaged]
    reason = "; ".join(dict.fromkeys(note.why for note in declined))
    if not world.seen and not world.covered and not fault:
        fault = "no callee was called"
    if case.refused and not declined:
        fault = f"engages now, or is wrong: strike its refusal ({case.refused}). {fault}"
    elif case.refused and not re.search(case.refused, reason):
        fault = f"refused for another reason than {case.refused}: {reason}"
    elif case.refused:
        fault = ""
    elif declined:
        fault = f"left to {declined[0].target}: {reason}"
    return Verdict(frozenset(sites), reason, fault)
