"""`rfops eval`: entries that are right pass, and what others do wrong is named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from rfops.challenge import MODULES, formats, problem, sandbox
from rfops.challenge.data import to_device
from rfops.challenge.folder import problem_of
from rfops.challenge.problem import Problem, case_of, error_of, spec_of
from rfops.challenge.verdict import Limits
from rfops.cli import main
from rfops.quantization.mxfp4 import dequant_mxfp4, quant_mxfp4_ref
from support.command import COMMAND, rfops
from support.entries import (
    ATTENTION,
    CASE,
    GOOD,
    KEYS,
    TRITON,
    is_walled,
    judged,
    marked,
    processes_of,
)

# ---------------------------------------------------------------- the definitions


@pytest.mark.parametrize("name", MODULES)
def test_a_reference_passes_its_own_checks(name: str) -> None:
    of = problem(name)
    for case in (of.shrink(of.tests[0]), of.shrink(of.benchmarks[-1])):
        data = of.generate(case)
        result = of.reference(data)
        assert not of.official(result, result) and not of.strict(data, result, result)
        repeated = of.reference(of.generate(case))
        assert not of.official(result, repeated), "inputs of one seed differ"
        for probe in of.probes(case):
            truths = of.truths(probe.data, probe.expected)
            assert min(error_of(probe.expected, t) for t in truths.values()) < 1e-6


@pytest.mark.parametrize("name", MODULES)
def test_checks_find_one_wrong_row(name: str) -> None:
    """A row that is another one's: the strict check finds it, the official one too where it
    forgives nothing."""
    of = problem(name)
    case = of.shrink(of.tests[0])
    data = of.generate(case)
    result = of.reference(data)
    wrong = (result if isinstance(result, torch.Tensor) else result[0]).clone()
    rows = wrong.reshape(-1, wrong.shape[-1])
    rows[0] = rows[1]
    actual = wrong if isinstance(result, torch.Tensor) else (wrong, *result[1:])
    assert of.strict(data, actual, result)
    assert bool(of.official(result, actual)) == (of.forgiven == 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t[:, :-1], "shape"),
        (lambda t: t.clone().fill_(float("nan")), "beyond rtol"),
        (
            lambda t: torch.where(torch.arange(t.shape[1]) == 3, float("inf"), t),
            "the first at (0, 3)",
        ),
        (lambda t: (t, t), "expected 1 tensors, got 2 in tuple"),
        (lambda t: None, "expected 1 tensors, got 0 in NoneType"),
    ],
)
def test_why_the_official_check_refuses(change: object, says: str) -> None:
    of = problem("fp8-mm")
    result = of.reference(of.generate(of.tests[0]))
    assert says in of.official(result, change(result))  # type: ignore[operator]


def test_mxfp4_by_parts_and_tables() -> None:
    """More rows than are taken at once; each scale and each pair of codes, padding left out."""
    x = torch.randn(1100, 512)
    payload, scale = formats.mxfp4(x)
    whole, byte = quant_mxfp4_ref(x)
    assert torch.equal(payload, whole) and torch.equal(scale, byte.view(torch.uint8))
    payload = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8)[:, None].repeat(2, 24)
    expected = dequant_mxfp4(payload, scale[:256, :16])
    assert torch.allclose(formats.from_mxfp4(payload, scale), expected, 0, 0, equal_nan=True)


def test_where_the_first_wrong_element_is() -> None:
    """Results are compared by parts, of 2^22 elements."""
    expected = torch.zeros(3, 3, 1 << 20)
    actual = expected.clone()
    actual[1, 2, 5] = actual[2, 2, 0] = 1.0
    says = problem("fp8-mm").official(expected, actual)
    assert says.startswith("2 of 9437184 ") and "the first at (1, 2, 5): 1, expected 0" in says


def test_cases_are_written_as_they_are_read() -> None:
    for of in map(problem, MODULES):
        for case in (*of.tests, *of.benchmarks):
            assert case_of(spec_of(case)) == case
    with pytest.raises(ValueError, match="NAME: NUMBER"):
        case_of("m: 64; n = 3")
    with pytest.raises(ValueError, match="amd-fp8-mm, amd-mixture"):
        problem("no-such")


# ---------------------------------------------------------------- entries


def test_an_entry_of_torch(tmp_path: Path) -> None:
    record = judged(tmp_path, GOOD)
    assert record.passes and not record.strict and not record.named
    assert not record.us and record.computed["aten.mm.default"] == 1
    assert record.untimed.startswith("torch computed, which has no time here: aten._to_copy 3x")


def test_an_entry_of_triton_on_device_cuda(tmp_path: Path) -> None:
    record = judged(tmp_path, TRITON, case="m: 96; n: 192; k: 256; seed: 3")
    assert record.passes and not record.strict, record
    assert all(1 < us < 100 for us in record.us)


def test_zeros(tmp_path: Path) -> None:
    record = judged(tmp_path, "def custom_kernel(data):\n    return data[4]\n")
    assert record.named == ["returns zeros"] and "beyond rtol" in str(record.official)


def test_half_of_the_keys(tmp_path: Path) -> None:
    """The official check lets it pass; needles say which half is not read."""
    whole = judged(tmp_path, ATTENTION.format(part=""), name="mixed-mla", case=KEYS)
    assert whole.passes and not whole.strict and not whole.named
    case = "batchsize: 1; qseqlen: 1; kvseqlen: 8192; seed: 5"
    code = ATTENTION.format(part="[:, :4096]")
    half = judged(tmp_path, code, name="mixed-mla", case=case)
    named = str(half.named)
    assert half.passes, half.official  # which is what is wrong with that check
    assert "by luck: relative L2 error of a row" in named
    assert "misses a needle among keys 4096 to 8191 of 8192" in named


def test_outputs_kept_between_calls(tmp_path: Path) -> None:
    code = (
        GOOD.replace("def custom_kernel", "kept = {}\ndef compute")
        + """
def custom_kernel(data):
    key = tuple(t.data_ptr() for t in data)
    if key not in kept:
        kept[key] = compute(data).clone()
    return kept[key]
"""
    )
    record = judged(tmp_path, code)
    assert record.named == ["returned the first call's output again: it keeps outputs"]
    assert not record.passes and not record.us


@pytest.mark.thin(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_entry_ends_with_its_evaluator(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the evaluator alone, because an entry has a session of its own."""
    token, entry = marked(monkeypatch), tmp_path / "hang.py"
    entry.write_text("import subprocess\nsubprocess.run(['/bin/sleep', '600'])\n")
    words = ["eval", "amd-fp8-mm", "--submission", str(entry), "--case", CASE, "--trust-entry"]
    with subprocess.Popen(
        [*COMMAND, *words],
        stderr=subprocess.PIPE,
        text=True,
        # pytest itself may have been started with Ctrl-C ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as evaluator:
        while not any("sleep 600" in command for command in processes_of(token)):
            assert evaluator.poll() is None
            time.sleep(0.2)
        evaluator.send_signal(number)
        assert evaluator.stderr is not None
        text = evaluator.stderr.read()
    assert evaluator.returncode == (130 if number == signal.SIGINT else -number), text
    assert "Traceback" not in text
    deadline = time.monotonic() + 60
    while (left := processes_of(token)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_a_hang(tmp_path: Path) -> None:
    code = "import time\ndef custom_kernel(data):\n    time.sleep(1000)\n"
    record = judged(tmp_path, code, limits=Limits(seconds=1))
    assert record.error == "no answer within 1 s: it hangs" and not record.passes


FORKS = """
import os, time
def custom_kernel(data):
    if os.fork() == 0:
        {child}
    {parent}
"""
# Of two that answer at once: one after the other, or parts of both replies in turns; or the slower
# one has not answered when the process ends, and is ended with it.
TWO_AT_ONCE = "two processes answered|a fork of it, wrote over|left [0-9]+ processes"


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("child", "parent", "says"),
    [
        ("time.sleep(60)", "return data[4]", "left 3 processes running"),
        ("os.setsid(); os.fork(); time.sleep(60)", "return data[4]", "left 6 processes"),
        ("return data[4]", "return data[4]", TWO_AT_ONCE),
        (
            "time.sleep(1); return data[4]",
            "import atexit; atexit.register(time.sleep, 3); return data[4]",
            "two processes answered",
        ),
        ("[os.fork() for _ in '12345678']; time.sleep(60)", "time.sleep(60)", "at most 64"),
    ],
)
def test_forks(
    tmp_path: Path, child: str, parent: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first case is three calls."""
    token = marked(monkeypatch)
    record = judged(tmp_path, FORKS.format(child=child, parent=parent))
    assert re.search(says, f"{record.named} {record.error}"), record
    assert not record.passes
    assert not processes_of(token), "something is still there"


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os\ndef custom_kernel(data):\n    os.abort()\n", "ended by SIGABRT"),
        ("import sys\ndef custom_kernel(data):\n    sys.exit(3)\n", "SystemExit: 3"),
        ("import os\ndef custom_kernel(data):\n    os._exit(0)\n", "ended with status 0 before"),
        ("def custom_kernel(data):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("import composable\n", "at import: ModuleNotFoundError: No module named 'composable'"),
        ("x = 1\n", "expected a function custom_kernel(data)"),
        ("def custom_kernel(data:\n", "at import: SyntaxError"),
        ("def custom_kernel(data):\n    return 'seven'\n", "returned no tensor"),
        (
            "from reference import generate_input\ngenerate_input(m=64, seed=1)\n",
            "makes a case's inputs itself",
        ),
        ("import torch\ndef custom_kernel(data):\n    return torch.ones(3)\n", "shape (3,), e"),
        (
            "import os\nos.close(2)\nfor n in range(3, 99):\n    try: os.write(n, b'x\\n')\n"
            "    except OSError: pass\n",
            "wrote over the evaluator's replies",
        ),
    ],
)
def test_entries_that_break(tmp_path: Path, code: str, says: str) -> None:
    record = judged(tmp_path, code)
    assert says in f"{record.error} {record.official}", record
    assert not record.passes


def test_too_much_memory(tmp_path: Path) -> None:
    code = (
        "import torch, time\ndef custom_kernel(data):\n    x = torch.ones(1 << 30); time.sleep(9)\n"
    )
    record = judged(tmp_path, code, limits=Limits(memory=2 << 30))
    assert "MiB of memory, limit 2048 MiB" in str(record.error)


@pytest.mark.sweep  # 6 s
def test_memory_that_forks_share_counts_once(tmp_path: Path) -> None:
    """A GiB in four processes."""
    code = "shared = bytearray(b'x') * (1 << 30)\n" + FORKS.format(
        child="time.sleep(60)", parent="return data[4]"
    )
    record = judged(tmp_path, code, limits=Limits(memory=2 << 30))
    assert "left 3 processes running" in f"{record.named} {record.error}", record


def test_after_a_crash_the_other_cases_run(tmp_path: Path) -> None:
    file = tmp_path / "entry.py"
    crash = "    if data[4].shape[0] == 96:\n        import os; os.abort()\n    a, b,"
    file.write_text(GOOD.replace("    a, b,", crash), encoding="utf-8")
    cases = [f"--case=m: {m}; n: 64; k: 128; seed: {m}" for m in (64, 96, 128)]
    completed = rfops("eval", "amd-fp8-mm", "--submission", str(file), *cases)
    states = [line.split()[0] for line in completed.stdout.splitlines() if "seed:" in line]
    assert states == ["pass", "FAIL", "pass"] and completed.returncode == 112, (
        completed.stdout + completed.stderr
    )
    assert "2 of 3 cases pass the official check, 2 the strict one" in completed.stdout


@pytest.mark.sweep
def test_what_kernels_do_wrong(tmp_path: Path) -> None:
    """--check: right results, and 4 bytes that are read behind b's last row."""
    file = tmp_path / "entry.py"
    mask = "mask=rn[None, :] < N, other=0.0"
    assert mask in TRITON
    cases = ["--case", "m: 64; n: 60; k: 128; seed: 1"]
    for text, count in ((TRITON, "nothing found"), (TRITON.replace(mask, ""), "check: ")):
        file.write_text(text, encoding="utf-8")
        completed = rfops("eval", "fp8-mm", "--check", "--submission", str(file), *cases)
        assert completed.returncode == 0 and count in completed.stderr, (
            completed.stdout + completed.stderr
        )
        assert ("out of bounds: kernel at " in completed.stderr) == (count == "check: ")


@pytest.mark.sweep
def test_on_the_gpu_of_torch(tmp_path: Path) -> None:
    """--gpu, where `rfops run` makes device="cuda" the virtual GPU: data there, times by events."""
    file = tmp_path / "entry.py"
    seen = TRITON.replace("    a, b,", "    assert all(t.is_cuda for t in data), data\n    a, b,")
    file.write_text(seen, encoding="utf-8")
    words = ["eval", "fp8-mm", "--gpu", "--submission", str(file), "--case", CASE]
    completed = rfops("run", "--arch", "gfx942", "--", *COMMAND, *words)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"pass  {CASE}, measured " in completed.stdout and "1 the strict one" in completed.stdout
    assert "measured on " in completed.stdout


@pytest.mark.parametrize(
    ("there", "more", "says"),
    [
        (False, [], "--gpu: torch sees no GPU here"),
        (True, ["--check"], "--check is for the virtual"),
    ],
)
def test_no_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: bool,
    more: list[str],
    says: str,
) -> None:
    file = tmp_path / "entry.py"
    file.write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert main(["eval", "fp8-mm", "--gpu", "--submission", str(file), *more]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", MODULES)
def test_all_of_a_problem_s_data_moves(name: str) -> None:
    """Tensors in tuples, mappings, modules and objects, of a copy."""

    def tensors(part: object) -> list[torch.Tensor]:
        if isinstance(part, torch.Tensor):
            return [part]
        if isinstance(part, torch.nn.Module):
            return list(part.buffers())
        parts = part.values() if isinstance(part, dict) else part
        fields = vars(part).values() if hasattr(part, "__dict__") else ()
        inner = parts if isinstance(parts, (tuple, list)) or isinstance(part, dict) else fields
        return [t for p in inner for t in tensors(p)]  # type: ignore[union-attr]

    of = problem(name)
    data = of.generate(of.shrink(of.tests[0]))
    there = tensors(to_device(data, "meta"))
    assert len(there) == len(tensors(data)) > 2
    assert {t.device.type for t in there} == {"meta"}
    assert {t.device.type for t in tensors(data)} == {"cpu"}


# ---------------------------------------------------------------- the protocol


def test_the_keys_of_the_protocol(tmp_path: Path) -> None:
    file = tmp_path / "entry.py"
    file.write_text(TRITON, encoding="utf-8")
    reading, writing = os.pipe()
    words = [*COMMAND, "eval", "fp8-mm", "--submission", str(file), "--case", CASE]
    env = {**os.environ, "POPCORN_FD": str(writing)}
    completed = subprocess.run(
        [*words, "--mode", "benchmark"],
        env=env,
        pass_fds=(writing,),
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = dict(line.rstrip("\n").split(": ", 1) for line in stream)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert lines["benchmark-count"] == "1" and lines["benchmark.0.spec"] == CASE
    assert lines["benchmark.0.runs"] == "2" and lines["check"] == "pass"
    assert 1e3 < float(lines["benchmark.0.best"]) <= float(lines["benchmark.0.mean"]) < 1e5


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "entry.py"
    file.write_text(GOOD, encoding="utf-8")
    assert main(["eval", "fp8-mm", "--submission", str(file), "--case", "m: 3"]) == 113
    for words, says in (
        (["fp8-mm", "--submission", "/none.py"], "no such file"),
        (["x", "--submission", str(file)], "expected one of amd-fp8-mm"),
    ):
        assert main(["eval", *words]) == 1
        assert says in capsys.readouterr().err


# ---------------------------------------------------------------- a folder's own problem

REFERENCE = """
import random
import torch
from task import input_t
from utils import close

def generate_input(size: int, seed: int, is_odd: bool = False, note: str = "") -> input_t:
    assert is_odd == bool(size % 2) and bool(note) == is_odd
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    offset = torch.rand(1) + random.random()  # as some authors do
    return torch.rand(size, device="cuda", generator=gen) + offset

def ref_kernel(data):
    return 2 * data

def check_implementation(data, output):
    return {result}
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "utils.py", "source": "../common.py"}
tests:
  - {"size": 7, "seed": 3, "is_odd": True,
     "note": "with a: colon"}
  - {size: 64, seed: 4}
benchmarks:
  - {"size": 128, "seed": 5}
"""


@pytest.mark.thin(2)
@pytest.mark.parametrize("result", ["close(2 * data, output)", "(close(2 * data, output) == '', )"])
def test_a_folder_of_its_own(tmp_path: Path, result: str) -> None:
    """As people who set problems write them, with a module beside the folder."""
    folder = tmp_path / "double"
    folder.mkdir()
    close = "def close(a, b):\n    return '' if a.allclose(b) else 'far off'\n"
    (tmp_path / "common.py").write_text(close, encoding="utf-8")
    (folder / "task.yml").write_text(TASK, encoding="utf-8")
    (folder / "task.py").write_text("input_t = object\n", encoding="utf-8")
    (folder / "reference.py").write_text(REFERENCE.replace("{result}", result), encoding="utf-8")
    file = tmp_path / "entry.py"
    code = "from task import input_t\nimport reference\ndef custom_kernel(data):\n    return "
    file.write_text(code + "data + (data if len(data) == 7 else 0)\n", encoding="utf-8")
    completed = rfops("eval", str(folder), "--submission", str(file), "--arch", "gfx942")
    assert completed.returncode == 112, completed.stdout + completed.stderr
    lines = [line for line in completed.stdout.splitlines() if "seed" in line]
    assert lines[0].startswith("pass  size: 7; seed: 3") and lines[1].startswith("FAIL  size: 64")
    assert "1 of 2 cases pass its own check; there is no strict one" in completed.stdout
    assert ("far off" in completed.stdout) == (result[0] == "c")


def test_what_is_no_folder_of_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a folder with a task\.yml"):
        problem_of(tmp_path, "gfx942")
    (tmp_path / "task.yml").write_text("tests:\n", encoding="utf-8")
    with pytest.raises(ValueError, match="expected tests:, a row"):
        problem_of(tmp_path, "gfx942")
    (tmp_path / "task.yml").write_text("tests:\n  - {size: 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"task\.yml: while parsing"):
        problem_of(tmp_path, "gfx942")
    (tmp_path / "task.yml").write_text("tests:\n  - {size: 1}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a reference\.py with generate_input"):
        problem_of(tmp_path, "gfx942")


def test_a_shrunk_layer_has_fewer_heads() -> None:
    of: Problem = problem("mla-decode")
    case = of.shrink(of.benchmarks[0])
    config, x, cache = of.generate(case)
    assert config.n_heads == 16 and x.shape == (2, 1, 256) and cache.seq_len == 128


def test_a_cache_that_was_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first process of an evaluation has built is shown to the second."""
    if not is_walled():
        pytest.skip("no walls can be built here: processes find what their user does")
    monkeypatch.setenv("RFOPS_CACHE_DIR", str(tmp_path / "cache"))

    def found() -> bool:
        words = ["/bin/sh", "-c", f"test -d {tmp_path}/cache/lib/built"]
        return sandbox.Sandbox(words, {}, 1 << 30, walls=True).wait_and_end().status == 0

    assert not found()
    (tmp_path / "cache/lib/built").mkdir(parents=True)
    assert found()
