"""Mutation testing: change one line of rfops at a time and run the tests that name its file.

    python op_tests/mutate.py                        60 mutants of seed 0, two at a time
    python op_tests/mutate.py --seed 7 --count 20
    python op_tests/mutate.py --only 'csrc/moe/*'    mutate these files alone
    python op_tests/mutate.py --list                 print the mutants and their tests, run nothing
    python op_tests/mutate.py --out mutants.jsonl    append each result; resumes from this file

A mutant changes a comparison, a bound, an index or a sign in executable code: never a comment, a
text, an assertion or an error message. A third of the mutants are in kernels (csrc), a third in ops
(rfops/gemm, moe, attention, quantization), a third in the engine (jit, rfops/dispatch,
csrc/launcher). All work is done in copies of the tree.

A mutant is killed by a failing test, by the compiler, or by the time limit (an endless loop). The
tests of a file are those whose text names it; for a kernel also those that name its host module,
for a header those of the kernels that include it, for a module that hardly any test names those of
the modules that import it, for an op's also those of all ops. Tests that name a file most often run
first. The tests that killed are run without a change at the end: a mutant does not count if its
test fails then too. Exit status 1 when fewer than `--bar` percent are killed. Survivors are printed
as diffs: each is to be given a test, or a reason in EQUIVALENT if no test can tell it apart; those
there are listed, and neither run nor counted.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import dataclasses
import fnmatch
import functools
import itertools
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
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "kernels": r"csrc/(?!vgpu|launcher|bench|blaslt|hip_shim|peers)[\w/]+\.(hip|h)",
    "ops": r"rfops/(gemm|moe|attention|quantization)/[\w/]+\.py",
    "engine": r"(jit|rfops/dispatch)/[\w/]+\.py|csrc/launcher/\w+\.(h|cpp)",
}
MAX_TEST_FILES = 12  # those that name a file most often
FEW = 3  # test files: where fewer name a file, others of its kind run too
MAX_STEPS = 200_000_000  # wave-instructions of a launch: a loop of a mutated kernel ends
STUCK = 600  # seconds without work after which tests are taken to wait for ever


@functools.cache
def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


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

    def texts(self) -> tuple[str, str]:
        """The line before and after."""
        line = read(self.file).splitlines()[self.line - 1]
        return line.strip(), self.change(line).strip()

    def same_as(self) -> str | None:
        """Why no call can tell it apart, where EQUIVALENT says so."""
        return EQUIVALENT.get((self.file, *self.texts()))

    def diff(self) -> str:
        previous, after = self.texts()
        return f"{self.file}:{self.line}\n  - {previous}\n  + {after}"


_FIRST = "__device__ bool is_first() const {{ return threshold_ {} 0.0f; }}"
_LEFT = "return self.block_m < 64 {} self.block_n <= BLOCK"
_COS, _SIN = (
    f"{name} = tl.load({at}, mask=(row {{}} m)[:, None], other=0)"
    for name, at in (("cos", "angle_ptr"), ("sin", "angle_ptr + HALF"))
)
_GRID = "if largest {} MAX_GRID and max(self.default(c).grid(m, n)) > MAX_GRID:"
_DEEP = "if tile_k == 64 and (split_k > 1 {} stages < 3 or tile_n < 128 or steps < 8):"
_WAIT = "if constexpr (kPiece % 4 == 0) wait_vmcnt<(kPiece {} 4 ? 6 : kPiece < 8 ? 2 : 1)>();"
_CLEAR = "if (workgroup_id_x() {} 0) {{"
_LAYER = "rfops/attention/mla_layer_decode_triton_kernels.py"
_RUN = (
    "const u32 by_rows = (a.m - 1 - t.m0) / apart, by_items = (items {} 1 - t.next) / a.groups + 1;"
)
_FACTOR = "if extent.size and extent.factor {} 0:"
_ONE = 'return {{**super().kind(c, config, k), "ONE_TURN": int(ceil(k, TILE_K) {} k_step_waves)}}'
_PAIR = (
    "const auto pair = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<i32>(p_[t / 2]), t % 2 {} 1);"
)
_AGE = "if not is_whole and _age(folder) {} _HOUR:"
_AGAIN = "while (item_ {} end_) {{"
_ANY = "there are 8 workgroups, and any may clear"
# File, its line with what is before and after, and why no call can tell them apart.
_SAME = (
    ("csrc/attention/mla_online_softmax.h", _FIRST, "<", "<=", "threshold_ is -inf or positive"),
    (
        "csrc/attention/mla_kv_stage_widen.h",
        _WAIT,
        "<",
        "<=",
        "a cost: the compiler waits, too",
    ),
    (
        "csrc/moe/moe_mx_down_deep.hip",
        _CLEAR,
        "==",
        "!=",
        "there are 8 workgroups, and any may clear",
    ),
    (
        "csrc/moe/moe_mx_down_sums.hip",
        _CLEAR,
        "==",
        "!=",
        "there are 8 workgroups, and any may clear",
    ),
    ("rfops/gemm/kernels/a8w8/triton.py", _LEFT, "and", "or", "either operand may be left: a cost"),
    ("rfops/dispatch/torch_op.py", _FACTOR, ">", ">=", "no factor is 0"),
    ("rfops/gemm/kernels/mxfp4/stream.py", _ONE, "<=", "<", "a cost: the loop does the same"),
    ("csrc/attention/mla_wave_fp8.h", _PAIR, "==", "!=", "the same terms in another order"),
    ("jit/cache/collect.py", _AGE, "<", "<=", "no age is an hour to the last bit"),
    (_LAYER, _COS, "<", "<=", "reads a row's angles, not stored"),
    (_LAYER, _SIN, "<", "<=", "reads a row's angles, not stored"),
    ("rfops/gemm/kernels/mxfp8/mfma.py", _GRID, ">", ">=", "no grid is above `largest`"),
    (
        "csrc/moe/expert_tile_scheduler.h",
        _AGAIN,
        "<",
        "<=",
        "a cost: at end_ the first slice of tile count / 2 is computed again, with the same bits",
    ),
    (
        "rfops/gemm/kernels/a16w8/triton.py",
        _DEEP,
        "or",
        "and",
        "a cost: of variants that all take the call",
    ),
)
EQUIVALENT = {
    (file, line.format(before), line.format(after)): why for file, line, before, after, why in _SAME
}


# ------------------------------------------------------------------------------- places to change

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "+": "-", "-": "+", "+=": "-=", "-=": "+=", "//": "*", "%": "*", "<<": ">>", ">>": "<<",
    "&&": "||", "||": "&&", "and": "or", "or": "and", "min": "max", "max": "min",
}  # fmt: skip
OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Add: "+",
    ast.Sub: "-",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.And: "and",
    ast.Or: "or",
}
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
        if (offset := gap.find(symbol)) >= 0:
            column = left.end_col_offset + offset
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
                offset = node.func.lineno, node.func.col_offset
                yield Mutant(file, *offset, 3, SWAPS[node.func.id])
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
    return [*(python_mutants if file.endswith(".py") else device_mutants)(file, read(file))]


@functools.cache
def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in completed.stdout.splitlines() if (ROOT / name).is_file()]


def draw(seed: int, count: int, only: str) -> list[Mutant]:
    """Of each group as many; within one, files by the number of places that they have."""
    rng = random.Random(seed)
    selected: list[Mutant] = []
    for number, pattern in enumerate(GROUPS.values()):
        files = [f for f in tracked() if re.fullmatch(pattern, f) and fnmatch.fnmatch(f, only)]
        positions = [mutant for file in files for mutant in mutants_of(file)]
        share = count // len(GROUPS) + (number < count % len(GROUPS))
        selected += rng.sample(positions, min(share, len(positions)))
    return selected


# ------------------------------------------------------------------------------- tests of a file


def names_in(file: str) -> collections.Counter[str]:
    """How often a file has each word, and each `package.module`, as `from package import module`
    and texts that name a module have it."""
    text, package = read(file), Path(file).parent.name
    words = collections.Counter(re.findall(r"\w+", text))
    for dotted in re.findall(r"\w+(?:\.\w+)+", text):
        words.update(f"{a}.{b}" for a, b in itertools.pairwise(dotted.split(".")))
    for origin, names in re.findall(r"^ *from (\S+) import (\([^)]*\)|.*)", text, re.M):
        parts = [package, *origin.split(".")] if origin.startswith(".") else origin.split(".")
        parts = [part for part in parts if part]
        words.update(f"{parts[-1]}.{name}" for name in re.findall(r"\w+", names))
        words.update(f"{a}.{b}" for a, b in itertools.pairwise(parts) if origin.startswith("."))
    return words


@functools.cache
def tests() -> dict[str, collections.Counter[str]]:
    match = [f for f in tracked() if re.fullmatch(r"op_tests/(?!package/).*test_\w+\.py", f)]
    return {file: names_in(file) for file in match}


@functools.cache
def modules() -> dict[str, collections.Counter[str]]:
    return {f: names_in(f) for f in tracked() if re.fullmatch(r"(jit|rfops)/[\w/]+\.py", f)}


def stem_of(file: str) -> str:
    """What a test's own name may have of it: mxfp4_triton of kernels/mxfp4/triton_kernels.py."""
    path = Path(file)
    if "kernels" not in path.parts[:-1]:
        return path.stem
    return f"{path.parent.name}_{path.stem}".removesuffix("_kernels")


def module_name(file: str) -> str:
    return f"{Path(file).parent.name}.{Path(file).stem}"


@functools.cache
def kernels_of(header: str) -> frozenset[str]:
    """Names of the kernels that include a header, at any depth."""
    names: set[str] = set()
    for file in tracked():
        if not re.fullmatch(GROUPS["kernels"], file) or file == header:
            continue
        if f"/{Path(header).name}" in read(file):
            names |= {Path(file).stem} if file.endswith(".hip") else kernels_of(file)
    return frozenset(names)


@functools.cache
def names_of(file: str) -> tuple[str, ...]:
    """The names by which a test names a file."""
    if file.endswith(".py"):
        return (module_name(file),)
    stem = Path(file).stem
    kernels = {stem} if file.endswith(".hip") else kernels_of(file)
    ops = [f for f in tracked() if re.fullmatch(GROUPS["ops"], f)]
    hosts = [host for host in ops if any(f'{kernel}"' in read(host) for kernel in kernels)]
    return *sorted(kernels | {stem}), *map(module_name, hosts)


HOMES = {"launch": "dispatch", "launcher": "dispatch"}  # tests of a folder stand in ...
# The launcher in C++ has names that say little.
LAUNCHER = ("launch.launcher", "native")
GATHER = ("__init__.py", "later.py", "compat.py")  # name all ops


def ranked(names: Iterable[str], stems: Iterable[str]) -> list[str]:
    """Tests that have the names, those first that have them most, or a stem in their own; a word of
    a stem that is not that of the folder counts as ten names (test_topk.py of moe_topk.hip)."""
    names, stems = [*names], [stem for stem in stems if len(stem) > 3]
    words_of_stems = {word for stem in stems for word in stem.split("_")}

    def points(test: str, words: collections.Counter[str]) -> int:
        stem, named = Path(test).stem, sum(words[name] for name in names)
        common = words_of_stems & {*stem.split("_")[1:]} - {Path(test).parent.name}
        return named + 100 * any(each in stem for each in stems) + 10 * (named and len(common))

    counted = {test: points(test, words) for test, words in tests().items()}
    return sorted((t for t in counted if counted[t]), key=lambda t: (-counted[t], t))


def tests_by_importers(file: str) -> list[str]:
    """Tests that name a module that imports this one, or one that imports that."""
    seen, near, results = {file}, {file}, list[str]()
    while near and (seen == {file} or len({*results}) < FEW):
        near = {m for n in near for m in modules() if modules()[m][module_name(n)]} - seen
        near = {m for m in near if Path(m).name not in GATHER}
        seen |= near
        results += ranked(map(module_name, near), map(stem_of, near))
    return results


@functools.cache
def tests_of(file: str) -> list[str]:
    """The test files of a file, those that tell most first."""
    is_launcher = "/launcher/" in file
    result = ranked(LAUNCHER, ()) if is_launcher else ranked(names_of(file), [stem_of(file)])
    if file.endswith(".py"):
        result += tests_by_importers(file)
    result = [*dict.fromkeys(result)][:MAX_TEST_FILES]
    if is_launcher or not result:
        folder = file.split("/")[1] if file.startswith("rfops/") else Path(file).parent.name
        home = HOMES.get(folder, "engine" if file.startswith("jit/") else folder)
        result += [t for t in sorted(tests()) if f"/{home}/" in t]
    if re.fullmatch(GROUPS["ops"], file):  # tests that go through all ops
        result += [t for t in sorted(tests()) if "in ops()" in read(t)]
    return [*dict.fromkeys(result)]


# ------------------------------------------------------------------------------- running


def copy_tree(target: Path) -> Path:
    """A copy in which `import rfops` finds jit/, csrc/ and configs/, as in an installed package."""
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    for name in ("jit", "csrc", "configs"):
        (target / "rfops" / name).symlink_to(target / name)
    return target


def cpu_seconds(pid: int) -> float:
    """Of a process and the children that it has waited for; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def wait_for(process: subprocess.Popen[str], limit: float) -> int | None:
    """The exit status; None past `limit` seconds of a core, or where nothing goes on. Wall time
    would count what other programs on the machine take."""
    used, since = 0.0, time.monotonic()
    while True:
        try:
            return process.wait(2)
        except subprocess.TimeoutExpired:
            now = cpu_seconds(process.pid)
        if now > used + 0.1:
            used, since = now, time.monotonic()
        if used > limit or time.monotonic() - since > STUCK:
            return None


def run_tests(tree: Path, names: list[str], limit: float, *more: str) -> tuple[str, list[str]]:
    """(verdict, what was printed): `passed`, `failed` or `limit`."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", *more]
    command = [sys.executable, "-m", "pytest", *options, *names]
    env = {**os.environ, "PYTHONPATH": str(tree), "RFOPS_VGPU_MAX_STEPS": str(MAX_STEPS)}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdout=out, stderr=out, text=True, start_new_session=True
        )
        code = None
        try:
            code = wait_for(process, limit)
        finally:
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        lines = out.read().splitlines()
    return "limit" if code is None else "failed" if code else "passed", lines


def reports(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("FAILED", "ERROR"))]


def judge(mutant: Mutant, trees: queue.Queue[Path], limit: float) -> dict[str, object]:
    selected = tests_of(mutant.file)
    tree = trees.get()
    began = time.monotonic()
    try:
        previous = mutant.apply(tree)
        try:
            verdict, lines = run_tests(tree, selected, limit, "-x")
        finally:
            (tree / mutant.file).write_text(previous, encoding="utf-8")
    finally:
        trees.put(tree)
    killed = verdict != "passed"
    last = "\n".join(reports(lines)[-1:] or lines[-3:])
    seconds = round(time.monotonic() - began, 1)
    return {
        **dataclasses.asdict(mutant),
        "killed": killed,
        "by": last if killed else "",
        "verdict": verdict,
        "seconds": seconds,
        "tests": selected,
    }


def killers_that_fail(rows: list[dict[str, object]], tree: Path, limit: float) -> set[str]:
    """Those of the tests that killed which fail without a change, too."""
    killers = {test_in(str(row["by"])) for row in rows} - {""}
    if not killers:
        return set()
    print(f"{len(killers)} tests that killed, without a change ...", flush=True)
    # Asked for by name, a thin case may count as a sweep.
    _, lines = run_tests(tree, sorted(killers), limit, "-m", "sweep or not sweep")
    return {test_in(line) for line in reports(lines)} & killers


def test_in(report: str) -> str:
    """The name of a test in a line that reports its failure."""
    match = re.match(r"(?:FAILED|ERROR) (\S+::\w+(?:\[.*?\](?= - |$))?)", report)
    return match[1] if match else ""


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
        "--limit", type=float, default=1200, help="seconds of a core for a mutant's tests [1200]"
    )
    parser.add_argument("--bar", type=float, default=90, help="percent that must be killed [90]")
    parser.add_argument("--out", type=Path, help="file of results, a line each; read first")
    parser.add_argument("--list", action="store_true", help="print the mutants and their tests")
    args = parser.parse_args()
    mutants = draw(args.seed, args.count, args.only)
    if args.list:
        for mutant in mutants:
            print(mutant.diff(), *tests_of(mutant.file), sep="\n    ")
        return 0
    known = results_in(args.out)
    rows = [known[key] for m in mutants if (key := dataclasses.astuple(m)) in known]
    same = [m for m in mutants if m.same_as()]
    left = [m for m in mutants if dataclasses.astuple(m) not in known and m not in same]
    random.Random(args.seed).shuffle(left)  # of a run cut short the share tells, too
    with tempfile.TemporaryDirectory(prefix="rfops_mutants_") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for i in range(args.jobs):
            trees.put(copy_tree(Path(folder) / str(i)))
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            futures = [pool.submit(judge, mutant, trees, args.limit) for mutant in left]
            for future in concurrent.futures.as_completed(futures):
                row = future.result()
                rows.append(row)
                print_row(row, len(rows), len(mutants) - len(same))
                if args.out:
                    with args.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
        bad = killers_that_fail(rows, trees.get(), args.limit)
    return summary(mutants, [row for row in rows if test_in(str(row["by"])) not in bad], args.bar)


def print_row(row: dict[str, object], done: int, count: int) -> None:
    state = "killed" if row["killed"] else "SURVIVED"
    location = f"{row['file']}:{row['line']}"
    print(f"{done:3}/{count} {state:8} {row['seconds']:6} s  {location}  {row['by']}", flush=True)


def key_of(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[field.name] for field in dataclasses.fields(Mutant))


def summary(mutants: list[Mutant], rows: list[dict[str, object]], bar: float) -> int:
    survivors = {key_of(row) for row in rows if not row["killed"]}
    killed = len(rows) - len(survivors)
    by_limit = sum(row["verdict"] == "limit" for row in rows)
    print(f"\n{killed} of {len(rows)} killed ({by_limit} by the time limit)")
    for mutant in mutants:
        if reason := mutant.same_as():
            print(f"equivalent, not counted: {mutant.diff()}\n  {reason}")
    for mutant in mutants:
        if dataclasses.astuple(mutant) in survivors:
            print(mutant.diff())
    return 0 if rows and 100 * killed >= bar * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
