"""Order of waves and landing of loads: as hardware has it by default, at random by a seed.

What relies on how waves really run is right by default, and found out by some seed; what waits for
its loads and meets at barriers is right whatever the schedule is.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from support import OP_TESTS
from support.process import python
from support.vgpu import schedule_cases as cases
from support.vgpu.asm import LANES, Module, Snippets, assemble, library
from support.vgpu.hip import ARCHS, INVALID_VALUE, SUCCESS

SEEDS = range(12)


def set_schedule(text: str) -> int:
    return library().rfops_vgpu_schedule(text.encode())


def take_findings() -> bytes:
    take = library().rfops_vgpu_check_take
    take.restype = ctypes.c_char_p
    return take()


@pytest.fixture(autouse=True)
def by_default() -> Iterator[None]:
    yield
    assert set_schedule("") == SUCCESS


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Module]:
    def load(arch: str) -> Module:
        folder = tmp_path_factory.mktemp("schedule")
        return Module(assemble(cases.source(arch), arch, folder), arch)

    return cache(load)


@pytest.fixture(params=ARCHS, name="module")
def module_fixture(request: pytest.FixtureRequest, modules: Callable[[str], Module]) -> Module:
    return modules(request.param)


def run(module: Module, name: str, schedule: str, check: int = 0) -> np.ndarray:
    """[2, 256] dwords. With checks on, what waits for its loads has no findings."""
    given = (np.arange(cases.INPUT_WORDS) % 1024 + 1000).astype(np.uint32)
    given[1024:] += 4000
    out = np.full((2, 256), 0xDEADBEEF, np.uint32)
    assert set_schedule(schedule) == SUCCESS
    arguments = np.array([out.ctypes.data, given.ctypes.data], np.uint64).tobytes()
    previous = library().rfops_vgpu_check(check)
    try:
        module.launch(name, 1, 4 * LANES, arguments)
    finally:
        library().rfops_vgpu_check(previous)
        result = json.loads(take_findings())
    assert name.startswith("relying") or not result, result
    return out


@pytest.mark.parametrize("check", [0, 1])
@pytest.mark.parametrize("name", cases.RELYING)
def test_what_relies_on_hardware_is_right(module: Module, name: str, check: int) -> None:
    out = run(module, f"relying_{name}", "hardware", check)
    np.testing.assert_array_equal(out, cases.RELYING[name].expected)


@pytest.mark.parametrize("name", cases.RELYING)
def test_a_seed_finds_what_relies_on_hardware(module: Module, name: str) -> None:
    outs = {seed: run(module, f"relying_{name}", f"random:{seed}") for seed in SEEDS}
    expected = np.array(cases.RELYING[name].expected)
    assert any(not np.array_equal(out, expected) for out in outs.values())
    for seed, out in outs.items():
        np.testing.assert_array_equal(out, run(module, f"relying_{name}", f"random:{seed}"))


@pytest.mark.parametrize("check", [0, 1])
@pytest.mark.parametrize("name", cases.LAWFUL)
def test_what_waits_is_right_in_every_schedule(module: Module, name: str, check: int) -> None:
    for schedule in ("hardware", *(f"random:{seed}" for seed in range(40))):
        out = run(module, f"lawful_{name}", schedule, check)
        np.testing.assert_array_equal(out, cases.LAWFUL[name].expected, schedule)


TOO_LARGE = "random:99999999999999999999"
WRONG = ["fast", "random", "random:", "random:x", "random:-1", "random:1 ", TOO_LARGE]


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_schedule_is_refused(text: str) -> None:
    assert set_schedule(text) == INVALID_VALUE
    error = library().rfops_vgpu_last_error().decode()
    assert error.startswith(f"RFOPS_VGPU_SCHEDULE={text}: expected hardware or random:SEED")


LAUNCH = """
import numpy as np
from support.vgpu import asm
out = asm.Snippets(["v_mov_b32 v20, 5"]).run(0, np.zeros((64, 1), np.uint64))
print(out[:, 0].sum())
"""


@pytest.mark.parametrize("text", ["fast", "random:3"])
def test_the_variable_of_a_process(text: str) -> None:
    completed = python(LAUNCH, cwd=OP_TESTS, RFOPS_VGPU_SCHEDULE=text)
    if text == "fast":
        assert (
            completed.returncode
            and "RFOPS_VGPU_SCHEDULE=fast: expected hardware" in completed.stderr
        )
    else:
        assert completed.returncode == 0 and completed.stdout == "320\n", completed.stderr


def test_random_workgroups_all_run() -> None:
    """Every workgroup runs once, in some order, whatever their number is."""
    snippets = Snippets(["v_lshl_add_u64 v[20:21], v[8:9], 1, v[8:9]\n"])
    for groups in (1, 2, 3, 12, 97):
        values = np.arange(groups * LANES, dtype=np.uint64).reshape(-1, 1)
        for seed in range(3):
            assert set_schedule(f"random:{seed}") == SUCCESS
            out = snippets.run(0, values)
            np.testing.assert_array_equal(out[:, 0], 3 * values[:, 0].astype(np.uint32))
