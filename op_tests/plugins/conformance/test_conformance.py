"""Every call site of vLLM's and SGLang's wheels, replayed through its wrapper: engaged and right
against float64, or refused for a reason that the case names.

RFOPS_TEST_WHEELS names a folder with the wheels (see test_engines.py). sites.json is what the
wheels call, by record.py; a site that is new or gone fails by its name.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.conformance.cases import ARCHS, CASES
from support.conformance.engine_code import SIGNATURES, World
from support.conformance.harness import (
    IMPORT,
    NOT_REPLAYED,
    RECORD,
    cases_of,
    engine_of,
    replay,
    world_of,
)
from support.conformance.sites import TARGETS, Engine

ENGINES = ("vllm", "sglang")
HOW = "look at its arguments, write a case, then run op_tests/plugins/conformance/record.py"
WORLDS = [(engine, arch) for engine in ENGINES for arch in ARCHS]
REPLAYS = [
    pytest.param(world, case.name, id=f"{case.name} ({world[1]})")
    for world in WORLDS
    for case in cases_of(*world)
]
Enter = Callable[[tuple[str, str]], World]


@pytest.fixture(scope="module")
def enter() -> Iterator[Enter]:
    """The world of an engine and an architecture, kept until another is entered: calls that an
    engine makes one after the other meet what the wrappers remember of the earlier ones."""
    with contextlib.ExitStack() as stack:
        current: dict[tuple[str, str], World] = {}

        def make(world: tuple[str, str]) -> World:
            if world not in current:
                current.clear()
                stack.close()
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setenv("RFOPS_VGPU_ARCH", world[1])
                patch.delenv("RFOPS_PLUGIN", raising=False)
                current[world] = stack.enter_context(world_of(*world).running())
            return current[world]

        yield make


def recorded(engine: str) -> dict[str, list[str]]:
    sites: dict[str, list[str]] = json.loads(RECORD.read_text())[engine]
    return sites


@pytest.mark.parametrize("engine", ENGINES)
def test_sites_are_those_on_record(engine: str) -> None:
    results, known = {site.key for site in engine_of(engine).sites}, set(recorded(engine))
    assert not results - known, f"new: {sorted(results - known)}; {HOW}"
    assert not known - results, f"gone: {sorted(known - results)}; run record.py"


@pytest.mark.parametrize("engine", ENGINES)
def test_each_site_has_a_replay_or_a_reason(engine: str) -> None:
    """On record, and no reason is left without a site."""
    without = [key for key, cases in recorded(engine).items() if not cases]
    silent = [key for key in without if not any(re.search(p, key) for p in NOT_REPLAYED)]
    assert not silent, f"{silent}: {HOW}, or give a reason in NOT_REPLAYED"
    names = {f"{engine}: {case}" for cases in recorded(engine).values() for case in cases}
    unknown = names - set(CASES) - {f"{engine}: {IMPORT}"}
    assert not unknown, f"{unknown} are no cases; run record.py"


def test_each_reason_has_a_site() -> None:
    keys = [key for engine in ENGINES for key, cases in recorded(engine).items() if not cases]
    for pattern in NOT_REPLAYED:
        assert any(re.search(pattern, key) for key in keys), f"no site is {pattern}"


@pytest.mark.parametrize(("where", "name"), REPLAYS)
def test_replay(
    where: tuple[str, str], name: str, enter: Enter, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    verdict = replay(enter(where), case)
    assert not verdict.fault, verdict.fault
    own = name.removeprefix(f"{case.engine}: ")
    known = {key for key, cases in recorded(case.engine).items() if own in cases}
    assert verdict.sites <= known, f"{sorted(verdict.sites - known)}: run record.py"
    if where[1] == case.archs[0]:
        assert verdict.sites == known, f"passes no more {sorted(known - verdict.sites)}"
    note = request.node.user_properties.append
    note(("refusal", f"{name}: {verdict.why}") if case.refused else ("engaged", name))


@pytest.mark.parametrize("where", WORLDS)
def test_wrappers_have_the_signatures_of_their_callees(
    where: tuple[str, str], enter: Enter
) -> None:
    enter(where)
    import aiter

    space: dict[str, Any] = {"torch": torch}
    for target in TARGETS:
        module, _, name = target.rpartition(".")
        if target.partition(".")[0] not in ("aiter", where[0]) or "get_hip" in target:
            continue
        exec(f"def expected({SIGNATURES[target]}): ...", space)
        wrapped = getattr(importlib.import_module(module), name)
        assert inspect.signature(wrapped) == inspect.signature(space["expected"]), target
    result = aiter.get_hip_quant(aiter.QuantType.per_1x128)
    assert "transpose_scale" in inspect.signature(result).parameters


# ---------------------------------------------------------------- the search itself

CODE = {
    "vllm/ops.py": """
import aiter
from .other import softmax as renamed
def _impl(x):
    from aiter.mla import mla_decode_fwd as own
    own(x, *x, causal=x, **x)
direct_register_custom_op(op_name="op", op_func=_impl)
class rocm_aiter_ops:
    @staticmethod
    def decode(x):
        return torch.ops.vllm.op(x, 1)
class Layer:
    def __init__(self):
        self.quantise = aiter.get_hip_quant(1)
    def apply(self, x):
        renamed(x, x)
        return self.quantise(x, scale=x)
""",
    "vllm/other.py": """
from aiter import topk_softmax as softmax, gemm_a4w4
import inspect
def getter():
    return gemm_a4w4, 1
def use(x):
    gemm, _ = getter()
    inspect.signature(softmax)
    return gemm(x, x), rocm_aiter_ops.decode(x), other.topk_softmax(x)
from vllm.ops import rocm_aiter_ops
""",
}
FOUND = {
    "vllm/ops.py | _impl | aiter.mla.mla_decode_fwd | 1 + *, causal, **",
    "vllm/ops.py | rocm_aiter_ops.decode | -> torch.ops.vllm.op | 2",
    "vllm/ops.py | Layer.__init__ | aiter.get_hip_quant | 1",
    "vllm/ops.py | Layer.apply | aiter.get_hip_quant() | 1 + scale",
    "vllm/ops.py | Layer.apply | aiter.topk_softmax | 2",
    "vllm/other.py | getter | aiter.gemm_a4w4 | use",
    "vllm/other.py | use | aiter.gemm_a4w4 | 2",
    "vllm/other.py | use | aiter.topk_softmax | probe",
    "vllm/other.py | use | -> rocm_aiter_ops.decode | 1",
}


def test_sites_are_found_however_they_are_reached(tmp_path: Path) -> None:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in CODE.items():
            archive.writestr(member, text)
    results = {site.key for site in Engine("vllm", zipfile.ZipFile(path)).sites}
    assert results == FOUND, results ^ FOUND
