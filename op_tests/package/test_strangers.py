"""The runners of other projects' tests, by programs of ours that write as those do."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from support import OP_TESTS
from support.strangers import BETWEEN_CASES, Result, Tally, draw, reason, watch

# A program of googletest: a case's name says what it does.
PROGRAM = """
import os, sys, time
flags = dict(word.partition("=")[::2] for word in sys.argv[1:])
suites = {"First.": ["passes", "fails", "DISABLED_no"], "Typed/0.": ["skips/0", "skips/1"],
          "Typed/1.": ["skips/0"], "_/last.": ["a-b/quick_1", "crashes/1", "hangs/1", "passes/2"]}
if "--gtest_list_tests" in flags:
    print("A banner of 2.1.")
    for suite, cases in suites.items():
        print(suite + ("  # TypeParam = int" if "Typed" in suite else ""))
        for case in cases:
            print("  " + case + ("  # GetParam() = { a: 1. }" if "/" in case else ""))
    sys.exit()
everything = [suite + case for suite in suites for case in suites[suite] if "DIS" not in case]
if "--gtest_flagfile" in flags:
    with open(flags["--gtest_flagfile"]) as file:
        wanted = file.read().strip().removeprefix("--gtest_filter=").replace("?", "-").split(":")
else:
    assert "--gtest_shuffle" in flags and flags["--gtest_filter"] == "*-_/last.*"
    everything = [name for name in everything if "last" not in name]
    number, total = int(os.environ["GTEST_SHARD_INDEX"]), int(os.environ["GTEST_TOTAL_SHARDS"])
    wanted = everything[number::total]
failed = []
for suite, cases in suites.items():
    for case in cases:
        name = suite + case
        if name not in wanted:
            continue
        print(f"[ RUN      ] {name}", flush=True)
        print("of", name, end="", flush=True)
        if "crashes" in case:
            os.kill(os.getpid(), 11)
        if "hangs" in case:
            time.sleep(60)
        if "fails" in case:
            failed.append(name)
            print(f"[  FAILED  ] {name}, where GetParam() = 1 (3 ms)")
        elif "skips" in case:
            print(f"[  SKIPPED ] {name} (3 ms)")
        else:
            print(f"[       OK ] {name} (3 ms)")
for name in failed:
    print(f"[  FAILED  ] {name}")
sys.exit(bool(failed))
"""


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, OP_TESTS / "strangers" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="gtest")
def gtest_fixture() -> ModuleType:
    return load("run_gtest")


@pytest.fixture(name="program")
def program_fixture(gtest: ModuleType, tmp_path: Path) -> object:
    file = tmp_path / "fake.py"
    file.write_text(PROGRAM)
    return gtest.Program("fake", (sys.executable, "-S", "-E", str(file)), dict(os.environ))


def options(**changed: object) -> argparse.Namespace:
    values = {"cases": None, "seed": 0, "minutes": 1, "case_seconds": 0.3} | changed
    return argparse.Namespace(**values)


def test_cases_are_run_compared_and_kept(
    gtest: ModuleType, program: object, tmp_path: Path
) -> None:
    suite = gtest.Suite(
        package="fake",
        programs="fake",
        left_out={"fake:Typed/1.*": "too long"},
        expected={"fake:First.*": "known", "fake:*hangs*": "known too"},
    )
    tally = Tally(suite.expected, tmp_path / "results.jsonl")
    gtest.run_suite(suite, [program], tally, options())
    results = {result.case: result for result in tally.results}
    assert len(results) == len(tally.results)
    assert {case: result.how for case, result in results.items()} == {
        "First.passes": "passed",
        "First.fails": "failed",
        "Typed/0.skips/0": "skipped",
        "Typed/0.skips/1": "skipped",
        "_/last.a-b/quick_1": "passed",
        "_/last.crashes/1": "failed",
        "_/last.hangs/1": "failed",
        "_/last.passes/2": "passed",
    }
    assert results["_/last.crashes/1"].why == "of _/last.crashes/1\nthe process ended: signal 11"
    assert "no end within 0.3 s" in results["_/last.hangs/1"].why
    rows = list(tally.table(lambda result: result.program))
    assert rows == ["| `fake` | 3 | 2 | 2 | 1 |"]
    surprises = tally.surprises()
    assert [text.partition(":\n")[0].partition(": ")[0] for text in surprises] == [
        "fake:First.passes passes, expected to fail",
        "fake:_/last.crashes/1 fails",
    ]
    assert tally.close() == 1

    again = Tally(suite.expected, tmp_path / "results.jsonl")
    gtest.run_suite(suite, [program], again, options())
    assert again.results == tally.results, "what has a result does not run again"


def test_a_sample_is_drawn_by_its_seed(gtest: ModuleType, program: object) -> None:
    listed = program.list_cases("*")  # type: ignore[attr-defined]
    assert listed[:2] == ["First.passes", "First.fails"] and len(listed) == 9
    names = {gtest.function_name(case) for case in listed}
    assert names >= {"First.passes", "Typed.skips", "_/last.a-b"}
    samples = [draw(listed, gtest.function_name, 1, seed) for seed in range(20)]
    assert all({gtest.function_name(case) for case in sample} == names for sample in samples)
    assert all(len(sample) == len(names) for sample in samples)
    assert len({tuple(sample) for sample in samples}) > 10
    assert samples[3] == draw(listed, gtest.function_name, 1, 3)


def test_a_shard_is_chosen_by_the_seed(gtest: ModuleType, program: object) -> None:
    left_out = {"fake:_/last.*": "too long", "other:*": "another's"}
    suite = gtest.Suite(package="fake", programs="fake", shards=2, left_out=left_out)
    cases = []
    for seed in (4, 5):
        tally = Tally({})
        gtest.run_suite(suite, [program], tally, options(seed=seed))
        cases.append([result.case for result in tally.results])
    assert cases[0] == ["First.passes", "Typed/0.skips/0", "Typed/1.skips/0"]
    assert cases[1] == ["First.fails", "Typed/0.skips/1"]


def test_a_program_that_does_not_start_has_failed(gtest: ModuleType) -> None:
    program = gtest.Program(
        "p", (sys.executable, "-S", "-E", "-c", "raise SystemExit('no library')"), {}
    )
    tally = Tally({})
    gtest.run_suite(gtest.Suite(package="p", programs="p"), [program], tally, options())
    assert [(result.how, result.why) for result in tally.results] == [("failed", "no library\n")]


def test_the_time_ends_a_run(gtest: ModuleType, program: object) -> None:
    begin = time.monotonic()
    run = program.run  # type: ignore[attr-defined]
    results = list(run(["_/last.hangs/1", "_/last.passes/2"], begin + 0.4, 60))
    assert not results and time.monotonic() - begin < 30


def test_a_process_that_ends_between_cases_has_failed() -> None:
    words = [sys.executable, "-S", "-E", "-c", "print('why', flush=True); import os; os.abort()"]
    (result,) = watch("p", words, dict(os.environ), time.monotonic() + 60, 60)
    why = "why\nthe process ended: signal 6"
    assert result == Result("p", BETWEEN_CASES, "failed", result.seconds, why, was_last=True)


# A program that is none of googletest.
NAMES_PROGRAM = """
import os, sys, time
size, word = sys.argv[1:]
assert size == "--sizes=small"
if word == "--list":
    print("TestPasses\\nTestFails\\nTestCrashes\\nTestHangs")
    sys.exit()
print("Running", word, flush=True)
if word == "TestCrashes":
    os.kill(os.getpid(), 11)
if word == "TestHangs":
    time.sleep(60)
sys.exit(word == "TestFails")
"""


def test_each_case_has_a_process(gtest: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text(NAMES_PROGRAM)
    words = (sys.executable, "-S", "-E", str(file), "--sizes=small")
    program = gtest.Program("names", words, dict(os.environ))
    suite = gtest.Suite(package="p", programs="p", is_googletest=False)
    tally = Tally({}, tmp_path / "results.jsonl")
    gtest.run_suite(suite, [program], tally, options(case_seconds=2))
    results = {result.case: (result.how, result.why) for result in tally.results}
    assert results == {
        "TestPasses": ("passed", ""),
        "TestFails": ("failed", "Running TestFails\nthe process ended: status 1"),
        "TestCrashes": ("failed", "Running TestCrashes\nthe process ended: signal 11"),
        "TestHangs": ("failed", "Running TestHangs\nno end within 2 s"),
    }
    again = Tally({}, tmp_path / "results.jsonl")
    gtest.run_suite(suite, [program], again, options())
    assert again.results == tally.results, "what has a result does not run again"


TRITON_TESTS = """
import os, pytest

@pytest.mark.parametrize("word", ["a b", "c,d", "e"])
def test_passes(word, device):
    print("[ RUN      ] which pytest captures")

def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("no such GPU")
def test_hours(): assert False
def test_done(): assert False
"""


def test_pytest_runs_a_sample_of_triton_s_tests(tmp_path: Path) -> None:
    unit = tmp_path / "unit/language"
    unit.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef device(): return 'cuda'"
    )
    (unit / "test_x.py").write_text(TRITON_TESTS)
    (unit / "test_y.py").write_text("import no_such_module_of_any")
    told = tmp_path / "told.json"
    about = {
        "files": [str(unit / "test_x.py"), str(unit / "test_y.py")],
        "left_out": {"triton:*::test_hours": "hours"},
        "cases": 2,
        "seed": 0,
        "done": ["language/test_x.py::test_done"],
    }
    told.write_text(json.dumps(about))
    script = str(OP_TESTS / "strangers/run_triton.py")
    words = [sys.executable, script, str(tmp_path), "--inside", str(told)]
    results = {
        result.case.removeprefix("language/"): result
        for result in watch("triton", words, dict(os.environ), time.monotonic() + 60, 60)
    }
    passed = [case for case, result in results.items() if result.how == "passed"]
    names = {"test_x.py::test_passes[" + word for word in ("a~b]", "c~d]", "e]")}
    assert len(passed) == 2 and set(passed) <= names
    others = {case: result for case, result in results.items() if case not in passed}
    assert {case: result.how for case, result in others.items()} == {
        "test_x.py::test_fails": "failed",
        "test_x.py::test_skips": "skipped",
        "test_y.py": "failed",
    }
    assert "assert 1 == 2" in others["test_x.py::test_fails"].why
    assert "no such GPU" in others["test_x.py::test_skips"].why
    assert "no_such_module_of_any" in others["test_y.py"].why

    about["files"], about["left_out"] = about["files"][:1], {"triton:*": "all of it"}
    told.write_text(json.dumps(about))
    assert not list(watch("triton", words, dict(os.environ), time.monotonic() + 60, 60))


def test_lines_of_test_backend_ops() -> None:
    lines = [
        "Backend 2/2: ROCm0",
        "  Device memory: 196608 MB (15975 MB free)",
        "  MUL_MAT(type_a=f16,bs=[1,1]): \x1b[1;32mOK\x1b[0m",
        "  MUL_MAT(type_a=q4_0,bs=[1,1]): [MUL_MAT] ERR = 0.5 > 0.0005 \x1b[1;31mFAIL\x1b[0m",
        "  MUL_MAT(type_a=q2_K,bs=[1,1]): not supported [ROCm0]",
        "  MUL_MAT(type_a=q8_0,bs=[2,1]): ",
        "  1/4 tests passed",
    ]
    found = [(r.case, r.how) for r in load("run_ggml").results("MUL_MAT", lines)]
    assert found == [
        ("type_a=f16,bs=[1,1]", "passed"),
        ("type_a=q4_0,bs=[1,1]", "failed"),
        ("type_a=q2_K,bs=[1,1]", "skipped"),
        ("type_a=q8_0,bs=[2,1]", "failed"),
    ]


def test_a_file_s_cases_keep_their_order() -> None:
    collected = ["a.py::1", "a.py::2", "a.py::3", "b.py::1", "b.py::2"]
    order = load("run_triton").by_file(["b.py::2", "a.py::3", "b.py::1", "a.py::1"], collected)
    assert order == ["b.py::1", "b.py::2", "a.py::1", "a.py::3"]


def test_the_recorded_tables_are_read(gtest: ModuleType) -> None:
    for suite in gtest.suites().values():
        assert suite.package and suite.programs.startswith("usr/")
        assert all({**suite.left_out, **suite.expected}.values())
    triton = load("run_triton")
    for arch in ("gfx942", "gfx950"):
        for kind in ("left_out", "expected"):
            assert all(triton.patterns(kind, arch).values())
    assert reason({"a:b*": "why"}, "a:bc") == "why" and reason({"a:b*": "why"}, "a:c") is None
