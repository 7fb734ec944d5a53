"""The tutorial (README.md beside this file): its steps compute what they should, and its commands
print what the page shows. Numbers may differ by 3 % or a unit of the last digit, because another
compiler may schedule otherwise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.command import rfops
from support.process import python

FOLDER = Path(__file__).parent
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
CPP = [text for kind, text in FENCE.findall(PAGE) if kind == "cpp"]
CONSOLE = [text for kind, text in FENCE.findall(PAGE) if kind == "console"]
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SHAPE = re.compile(r"^\w+ (.*) on gfx950.*: (\w+), launches: 1$", re.M)
STEPS = {
    "rms_quant": ("naive", "coalesced", "wave", "wide", "one_pass", "two_waves"),
    "gemm_tile": ("naive", "mfma", "lds", "swizzle", "ahead", "tile256", "pipelined"),
}

RUN = """
import json, sys
from pathlib import Path
import torch
from rfops import vgpu
from rfops.cli.common import load_ops
from rfops.dispatch.op import ops
from rfops.dispatch.problem import Problem, call_on

load_ops(Path(sys.argv[1] + ".py"))
op = ops()[sys.argv[1]]
problem = Problem(op, call_on(op, json.loads(sys.argv[2]), torch.device("cpu")))
for name in op.kernels:
    with vgpu.check() as check:
        problem.checked(problem.launch_by(problem.prepare(name)), name)
    assert not check.findings, (name, *map(str, check.findings))
    print(name)
"""


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("rms_quant", '{"M": 67, "K": 1024, "eps": 1e-6}'),
        ("gemm_tile", '{"M": 256, "N": 512, "K": 128}'),
        pytest.param("rms_quant", '{"M": 130, "K": 7168, "eps": 1.0}', marks=pytest.mark.sweep),
        pytest.param("gemm_tile", '{"M": 512, "N": 256, "K": 640}', marks=pytest.mark.sweep),
    ],
)
def test_each_step_computes_it(op: str, sizes: str) -> None:
    """Against the reference on poisoned results, under all checks."""
    completed = python(RUN, op, sizes, cwd=FOLDER, RFOPS_VGPU_ARCH="gfx950")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split() == list(reversed(STEPS[op]))


@pytest.mark.parametrize(
    ("op", "sizes", "message"),
    [
        ("rms_quant", "--m 4 --k 512 --eps 1", "K is not a multiple of 1024"),
        ("gemm_tile", "--m 128 --n 256 --k 128", "M or N is not a multiple of 256"),
    ],
)
def test_refusals(op: str, sizes: str, message: str) -> None:
    words = [*sizes.split(), "--arch", "gfx950"]
    completed = rfops("--ops", f"{op}.py", "why", op, *words, cwd=FOLDER)
    assert message in completed.stdout + completed.stderr, completed


def sections(text: str) -> dict[tuple[str, str], str]:
    """What is printed of each launch, by its sizes and step."""
    heads = list(SHAPE.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {(h[1], h[2]): text[h.start() : end] for h, end in zip(heads, ends, strict=True)}


def masked(line: str) -> tuple[str, list[str]]:
    """A line without its numbers and folders, and the numbers."""
    line = re.sub(r"/\S*/(?=\w+\.(?:hip|h):)", "", line)
    line = re.sub(r" +", " ", line.rstrip())
    return NUMBER.sub("#", line), NUMBER.findall(line)


def agrees(shown: str, printed: str) -> bool:
    """Whether a line is as shown; one that ends in "..." goes on."""
    is_cut = shown.endswith("...")
    text, numbers = masked(shown.removesuffix("..."))
    got, found = masked(printed)
    if not (got.startswith(text) if is_cut else got.rstrip() == text.rstrip()):
        return False
    return all(is_close(*pair) for pair in zip(numbers, found[: len(numbers)], strict=True))


def is_close(shown: str, printed: str) -> bool:
    unit = 10.0 ** -len(shown.partition(".")[2])
    return abs(float(shown) - float(printed)) <= max(0.03 * float(shown), unit)


def test_what_is_shown_is_compared() -> None:
    assert agrees("  time  25.1 us ...", "  time  25.15 us (18.87 to 31.44)")
    assert agrees("at a.hip:3", "at /x/y/a.hip:3") and agrees("busy 9%", "busy 10%")
    assert not agrees("  time  25.1 us", "  time  25.15 us (18.87 to 31.44)")
    assert not agrees("time 100 us", "time 104 us") and not agrees("a 1 ...", "b 1 c")


def shown_lines(text: str) -> Iterator[str]:
    yield from (line for line in text.splitlines() if line.strip() != "...")


def compare_block(block: str) -> dict[tuple[str, str], str]:
    """Run the commands of a block, compare; return what they print, by sizes and step."""
    printed_sections: dict[tuple[str, str], str] = {}
    for command, shown in re.findall(r"^\$ rfops (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
        completed = rfops(*shlex.split(command), cwd=FOLDER)
        assert completed.returncode == 0, completed.stderr
        lines = iter(completed.stdout.splitlines())
        for line in shown_lines(shown):
            assert any(agrees(line, printed) for printed in lines), (line, completed.stdout)
        printed_sections |= sections(completed.stdout)
    return printed_sections


def figure(text: str, pattern: str) -> float:
    match = re.search(pattern, text, re.M)
    assert match is not None, (pattern, text)
    return float(match[1])


def rules(text: str) -> set[str]:
    return set(re.findall(r"^  advice +([^:\n]+):", text, re.M))


@pytest.mark.parametrize(
    ("op", "first"),
    [
        ("rms_quant", "wave"),
        ("gemm_tile", "lds"),
        pytest.param("rms_quant", "naive", marks=pytest.mark.sweep),
        pytest.param("gemm_tile", "naive", marks=pytest.mark.sweep),
    ],
)
def test_the_page_shows_what_its_commands_print(op: str, first: str) -> None:
    """From a step on: naive kernels take long. Each step is no slower than the one before, advice
    that is shown is gone in the next step, and the last step reaches its bar."""
    steps = STEPS[op][STEPS[op].index(first) :]
    printed: dict[tuple[str, str], str] = {}
    shown: dict[str, set[str]] = {}
    for block in (text for text in CONSOLE if f"profile {op}" in text):
        if not set(re.findall(r"--by (\w+)", block)) <= set(steps):
            continue
        printed |= compare_block(block)
        for (_, step), text in sections(block).items():
            shown[step] = shown.get(step, set()) | rules(text)
    assert {step for _, step in printed} == set(steps)
    for step, after in pairwise(steps):
        both = [sizes for sizes, name in printed if name == step and (sizes, after) in printed]
        assert both, f"{step} and {after} of the same sizes"
        for sizes in both:
            old, new = (figure(printed[sizes, s], r"^  time +(\S+)") for s in (step, after))
            assert new <= old, (sizes, step, old, after, new)
            assert not shown[step] & rules(printed[sizes, after]), (step, after)
    compare_table(op, printed)
    last = [text for (_, step), text in printed.items() if step == steps[-1]][-1]
    unit, bar = {"rms_quant": ("hbm", 85.0), "gemm_tile": ("mfma", 60.0)}[op]
    assert figure(last, rf"^  busy .*{unit} ([\d.]+)%") >= bar


def compare_table(op: str, printed: dict[tuple[str, str], str]) -> None:
    """The rows of a table whose steps were run: the time, and the rate that follows from it."""
    rows = re.findall(rf"^\| `{op} (.*?)` \| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.M)
    assert {(sizes, step) for sizes, step, _, _ in rows} >= printed.keys()
    for sizes, step, us, rate in rows:
        if (sizes, step) not in printed:
            continue
        time = figure(printed[sizes, step], r"^  time +(\S+)")
        assert is_close(us, str(time)), (sizes, step)
        assert is_close(rate, str(floor_rate(op, sizes, time))), (sizes, step)


def floor_rate(op: str, sizes: str, us: float) -> float:
    """TB/s of the bytes that must move, without the 2 us of the launch; TFLOPS."""
    m, *rest = map(int, re.findall(r"=(\d+)", sizes))
    if op == "rms_quant":
        (k,) = rest
        return m * (3 * k + 4 * k // 128) / (us - 2) / 1e6
    n, k = rest
    return 2 * m * n * k / us / 1e6


def test_code_of_the_page_is_that_of_the_kernels() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*/*.hip")))
    assert len(CPP) >= 8
    for block in CPP:
        for part in block.split("...\n"):
            lines = [line.strip() for line in part.splitlines() if line.strip()]
            pattern = r"\s*\n\s*".join(map(re.escape, lines))
            assert re.search(pattern, sources), block


def test_every_step_of_the_ops_is_in_the_page() -> None:
    for op, steps in STEPS.items():
        declared = re.findall(r'^    \w+\("(\w+)",', (FOLDER / f"{op}.py").read_text(), re.M)
        assert declared == list(reversed(steps))
        assert all(f"`{step}`" in PAGE for step in steps)
