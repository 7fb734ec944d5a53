"""Mutation testing: change one line of rfops at a time and run the tests that name its file.

    python op_tests/mutate.py                        60 mutants of seed 0, two at a time
    python op_tests/mutate.py --seed 7 --count 20
    python op_tests/mutate.py --only 'csrc/moe_*'    mutate these files alone
    python op_tests/mutate.py --list                 print the mutants and their tests, run nothing
    python op_tests/mutate.py --out mutants.jsonl    append each result; resumes from this file

A mutant changes a comparison, a bound, an index or a sign in executable code: never a comment, a
text, an assertion or an error message. A third of the mutants are in kernels (csrc), a third in ops
(rfops/gemm, moe, attention, quantization), a third in the engine (jit, rfops/dispatch,
csrc/launcher). All work is done in copies of the tree.

A mutant is killed by a failing test, by the compiler, or by the time limit (an endless loop). The
tests of a file are those whose text names it; for a kernel also those that name its host module,
for a header those of the kernels that include it. Tests that name a file most often run first. They
must pass without a mutant, which is tried first. Exit status 1 when fewer than `--bar` percent are
killed. Survivors are printed as diffs: each is to be explained or given a test.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import dataclasses
import fnmatch
import functools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "kernels": r"csrc/(?!vgpu|launcher|bench|blaslt|hip_shim)[\w/]+\.(hip|h)",
    "ops": r"rfops/(gemm|moe|attention|quantization)/[\w/]+\.py",
    "engine": r"(jit|rfops/dispatch)/[\w/]+\.py|csrc/launcher/\w+\.(h|cpp)",
}
MAX_TEST_FILES = 12  # those that name a file most often
MAX_STEPS = 200_000_000  # wave-instructions of a launch: a loop of a mutated kernel ends


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`length` characters of line `line` of `file` (from 1), from `column` on, become `new`."""

    file: str
    line: int
    column: int
    length: int
    new: str

    def apply(self, tree: Path) -> str:
        """Changes the file in `tree` and returns its text before."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        lines[self.line - 1] = self.change(lines[self.line - 1])
        path.write_text("".join(lines), encoding="utf-8")
        return text

    def change(self, line: str) -> str:
        return line[: self.column] + self.new + line[self.column + self.length :]

    def diff(self) -> str:
        line = (ROOT / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1]
        return f"{self.file}:{self.line}\n  - {line.strip()}\n  + {self.change(line).strip()}"


# ------------------------------------------------------------------------------- places to change

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "+": "-", "-": "+", "+=": "-=", "-=": "+=", "//": "*", "%": "*", "<<": ">>", ">>": "<<",
    "&&": "||", "||": "&&", "and": "or", "or": "and", "min": "max", "max": "min",
}  # fmt: skip
OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "//", ast.Mod: "%", ast.LShift: "<<",
    ast.RShift: ">>", ast.And: "and", ast.Or: "or",
}  # fmt: skip
# Code that reports and computes nothing.
REPORTS = (ast.Raise, ast.Assert, ast.JoinedStr)
REPORTERS = re.compile(r"\b(say|log|warn|fail|info|debug|print|words|hint|format|show)\b")


def python_mutants(file: str, text: str) -> Iterator[Mutant]:
    lines = text.splitlines()

    def between(left: ast.expr, right: ast.expr, symbol: str) -> Iterator[Mutant]:
        """The operator between two operands on one line; columns of ast count bytes, as ASCII."""
        if left.end_lineno != right.lineno or not lines[right.lineno - 1].isascii():
            return
        assert left.end_col_offset is not None
        gap = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if (at := gap.find(symbol)) >= 0:
            column = left.end_col_offset + at
            yield Mutant(file, right.lineno, column, len(symbol), SWAPS[symbol])

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, REPORTS):
            return
        if isinstance(node, ast.Call) and REPORTERS.search(ast.unparse(node.func)):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if symbol := OPERATORS.get(type(node.ops[0])):
                yield from between(node.left, node.comparators[0], symbol)
        elif isinstance(node, ast.BinOp):
            if symbol := OPERATORS.get(type(node.op)):
                yield from between(node.left, node.right, symbol)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], OPERATORS[type(node.op)])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("min", "max"):
                at = node.func.lineno, node.func.col_offset
                yield Mutant(file, *at, 3, SWAPS[node.func.id])
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            index = node.slice
            if type(index.value) is int and lines[index.lineno - 1].isascii():
                length = len(str(index.value))
                new = str(index.value + 1)
                yield Mutant(file, index.lineno, index.col_offset, length, new)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from visit(node)


DEVICE_OPERATOR = re.compile(r"(?<= )(<=|>=|==|!=|<<|>>|&&|\|\||\+=|-=|<|>|\+|-|%)(?= )")
DEVICE_INDEX = re.compile(r"(?<=\w\[)(\d+)(?=\])")
DEVICE_BOUND = re.compile(r"\b(min|max)(?=\()")
NOT_RUN = re.compile(r"^\s*(#|//|/\*|\*)|static_assert|__asm|asm volatile|PyErr|operator|template")


def device_mutants(file: str, text: str) -> Iterator[Mutant]:
    """clang-format has put blanks around binary operators and none around template brackets."""
    for number, line in enumerate(text.splitlines(), 1):
        if NOT_RUN.search(line):
            continue
        code = line.split("//")[0]
        masked = re.sub(r'"(\\.|[^"\\])*"', lambda m: "_" * len(m[0]), code)
        for match in DEVICE_OPERATOR.finditer(masked):
            yield Mutant(file, number, match.start(), len(match[0]), SWAPS[match[0]])
        for match in DEVICE_INDEX.finditer(masked):
            yield Mutant(file, number, match.start(), len(match[0]), str(int(match[0]) ^ 1))
        for match in DEVICE_BOUND.finditer(masked):
            yield Mutant(file, number, match.start(), 3, SWAPS[match[0]])


def mutants_of(file: str) -> list[Mutant]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return [*(python_mutants if file.endswith(".py") else device_mutants)(file, text)]


@functools.cache
def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def draw(seed: int, count: int, only: str) -> list[Mutant]:
    """Of each group as many; within one, files by the number of places that they have."""
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    for number, pattern in enumerate(GROUPS.values()):
        files = [f for f in tracked() if re.fullmatch(pattern, f) and fnmatch.fnmatch(f, only)]
        places = [mutant for file in files for mutant in mutants_of(file)]
        share = count // len(GROUPS) + (number < count % len(GROUPS))
        chosen += rng.sample(places, min(share, len(places)))
    return chosen


# ------------------------------------------------------------------------------- tests of a file


@functools.cache
def test_texts() -> dict[str, str]:
    tests = [f for f in tracked() if re.fullmatch(r"op_tests/(?!package/).*test_\w+\.py", f)]
    return {file: (ROOT / file).read_text(encoding="utf-8") for file in tests}


@functools.cache
def kernels_of(header: str) -> frozenset[str]:
    """Names of the kernels that include a header, at any depth."""
    names: set[str] = set()
    for file in tracked():
        if not re.fullmatch(GROUPS["kernels"], file) or file == header:
            continue
        if f"/{Path(header).name}" in (ROOT / file).read_text(encoding="utf-8"):
            names |= {Path(file).stem} if file.endswith(".hip") else kernels_of(file)
    return frozenset(names)


def import_of(file: str) -> str:
    """A pattern of an import of a Python module."""
    path = Path(file)
    package = path.parent.name
    return rf"\b{package}\.{path.stem}\b|\b{package} import [\w, ]*\b{path.stem}\b"


@functools.cache
def patterns_of(file: str) -> tuple[str, ...]:
    """Patterns by which a test's text names a file."""
    if file.endswith(".py"):
        return (import_of(file),)
    stem = Path(file).stem
    kernels = {stem} if file.endswith(".hip") else kernels_of(file)
    ops = [f for f in tracked() if re.fullmatch(GROUPS["ops"], f)]
    hosts = [
        host
        for host in ops
        if any(f'"{kernel}"' in (ROOT / host).read_text(encoding="utf-8") for kernel in kernels)
    ]
    names = sorted({rf"\b{name}\b" for name in kernels | {stem}})
    return (*names, *(import_of(host) for host in hosts))


HOMES = {"launch": "dispatch", "launcher": "dispatch"}  # tests of a folder stand in ...


@functools.cache
def tests_of(file: str) -> list[str]:
    """The test files that name a file; where fewer than three do, also those of its folder."""
    stem, texts = Path(file).stem, test_texts()
    points = {
        test: sum(len(re.findall(pattern, text)) for pattern in patterns_of(file))
        + 100 * (len(stem) > 3 and stem in Path(test).stem)
        for test, text in texts.items()
    }
    named = sorted((t for t in texts if points[t]), key=lambda t: (-points[t], t))
    if len(named) < 3:
        folder = Path(file).parent.name
        home = HOMES.get(folder, "engine" if file.startswith("jit/") else folder)
        named += [t for t in sorted(texts) if f"/{home}/" in t and t not in named]
    return named[:MAX_TEST_FILES]


# ------------------------------------------------------------------------------- running


def copy_tree(target: Path) -> Path:
    """A copy in which `import rfops` finds jit/, csrc/ and configs/, as in an installed package."""
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    for name in ("jit", "csrc", "configs"):
        (target / "rfops" / name).symlink_to(target / name)
    return target


def run_tests(tree: Path, tests: list[str], limit: float) -> tuple[str, str]:
    """(verdict, what was printed last): `passed`, `failed` or `limit`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    env = {**os.environ, "PYTHONPATH": str(tree), "RFOPS_VGPU_MAX_STEPS": str(MAX_STEPS)}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdout=out, stderr=out, text=True, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        lines = out.read().splitlines()
    last = next((line for line in reversed(lines) if line.startswith(("FAILED", "ERROR"))), "")
    return "limit" if code is None else "failed" if code else "passed", last or "\n".join(
        lines[-3:]
    )


def judge(mutant: Mutant, trees: queue.Queue[Path], limit: float) -> dict[str, object]:
    tests = tests_of(mutant.file)
    tree = trees.get()
    began = time.monotonic()
    try:
        before = mutant.apply(tree)
        try:
            verdict, last = run_tests(tree, tests, limit)
        finally:
            (tree / mutant.file).write_text(before, encoding="utf-8")
    finally:
        trees.put(tree)
    killed = verdict != "passed"
    seconds = round(time.monotonic() - began, 1)
    return {**dataclasses.asdict(mutant), "killed": killed, "by": last if killed else "",
            "verdict": verdict, "seconds": seconds, "tests": tests}  # fmt: skip


def baseline_fails(mutants: list[Mutant], trees: queue.Queue[Path], limit: float) -> list[str]:
    """The tests must pass without a change, or every mutant is killed."""
    tests = sorted({test for mutant in mutants for test in tests_of(mutant.file)})
    print(f"{len(tests)} test files without a change ...", flush=True)
    tree = trees.get()
    verdict, last = run_tests(tree, tests, limit * 10)
    trees.put(tree)
    return [] if verdict == "passed" else [last]


def results_in(file: Path | None) -> dict[tuple[object, ...], dict[str, object]]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {key_of(row): row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", default="*", help="a pattern of files")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds for a mutant's tests [600]"
    )
    parser.add_argument("--bar", type=float, default=90, help="percent that must be killed [90]")
    parser.add_argument("--out", type=Path, help="file of results, a line each; read first")
    parser.add_argument("--list", action="store_true", help="print the mutants and their tests")
    parser.add_argument("--no-baseline", action="store_true", help="the tests are known to pass")
    args = parser.parse_args()
    mutants = draw(args.seed, args.count, args.only)
    if args.list:
        for mutant in mutants:
            print(mutant.diff(), *tests_of(mutant.file), sep="\n    ")
        return 0
    known = results_in(args.out)
    rows = [known[key] for m in mutants if (key := dataclasses.astuple(m)) in known]
    left = [m for m in mutants if dataclasses.astuple(m) not in known]
    with tempfile.TemporaryDirectory(prefix="rfops_mutants_") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for i in range(args.jobs):
            trees.put(copy_tree(Path(folder) / str(i)))
        if left and not args.no_baseline and (bad := baseline_fails(left, trees, args.limit)):
            print("the tests fail without a change:", *bad, sep="\n  ")
            return 2
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            futures = [pool.submit(judge, mutant, trees, args.limit) for mutant in left]
            for future in concurrent.futures.as_completed(futures):
                row = future.result()
                rows.append(row)
                print_row(row, len(rows), len(mutants))
                if args.out:
                    with args.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
    return summary(mutants, rows, args.bar)


def print_row(row: dict[str, object], done: int, count: int) -> None:
    state = "killed" if row["killed"] else "SURVIVED"
    place = f"{row['file']}:{row['line']}"
    print(f"{done:3}/{count} {state:8} {row['seconds']:6} s  {place}  {row['by']}", flush=True)


def key_of(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[field.name] for field in dataclasses.fields(Mutant))


def summary(mutants: list[Mutant], rows: list[dict[str, object]], bar: float) -> int:
    survivors = {key_of(row) for row in rows if not row["killed"]}
    killed = len(rows) - len(survivors)
    by_limit = sum(row["verdict"] == "limit" for row in rows)
    print(f"\n{killed} of {len(rows)} killed ({by_limit} by the time limit)")
    for mutant in mutants:
        if dataclasses.astuple(mutant) in survivors:
            print(mutant.diff())
    return 0 if rows and 100 * killed >= bar * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
