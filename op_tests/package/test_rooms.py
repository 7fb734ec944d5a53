"""The rooms of the virtual GPU, of Python and of the tests: what each may take from."""

from __future__ import annotations

import ast
import re
import subprocess
from importlib.util import resolve_name
from pathlib import Path

from rfops.jit import paths
from support import OP_TESTS, ROOT

ROOMS = (
    "base",
    "isa",
    "machine",
    "exec",
    "object",
    "watch",
    "debug",
    "timing",
    "run",
    "hip",
    "hsa",
)
VGPU = paths.CSRC / "vgpu"


def test_a_room_includes_only_what_stands_before_it() -> None:
    assert {folder.name for folder in VGPU.iterdir() if folder.is_dir()} == set(ROOMS)
    files = [file for room in ROOMS for file in (VGPU / room).iterdir()]
    files.remove(VGPU / "timing/constants.csv")
    assert len(files) > 100 and all(file.suffix in (".h", ".cpp") for file in files)
    mismatches = []
    for file in files:
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.M):
            match = re.fullmatch(r"vgpu/(\w+)/\w+\.h", name)
            assert match is not None, f"{file.name} includes {name}"
            if ROOMS.index(match[1]) > ROOMS.index(file.parent.name):
                mismatches.append(f"{file.parent.name}/{file.name} includes {name}")
    assert not mismatches


# Rooms of shared device headers, and the families of kernels with the headers that they alone use.
DEVICE_ROOMS = ("chip", "wave", "number", "matrix", "tile", "group", "store")
FAMILIES = ("gemm", "moe", "attention", "quantization", "rowwise")


def device_room(name: str) -> str:
    """`chip` of rfops/chip/types.h, `gemm` of gemm/mxfp4_loader.h."""
    parts = name.split("/")
    return parts[1] if parts[0] == "rfops" else parts[0]


def device_includes() -> dict[str, set[str]]:
    """What each header and kernel includes, all by their names in an #include."""
    files = [f for room in DEVICE_ROOMS for f in (paths.INCLUDE / "rfops" / room).iterdir()]
    names = {f.relative_to(paths.INCLUDE).as_posix(): f for f in files}
    for family in FAMILIES:
        names |= {f"{family}/{f.name}": f for f in (paths.CSRC / family).iterdir()}
    pattern = re.compile(r'^#include "([^"]+)"', re.M)
    return {n: set(pattern.findall(f.read_text(encoding="utf-8"))) for n, f in names.items()}


def test_a_device_header_includes_only_rooms_before_its_own() -> None:
    shared = paths.INCLUDE / "rfops"
    assert {f.name for f in shared.iterdir()} == set(DEVICE_ROOMS)
    includes = device_includes()
    assert len(includes) > 120 and not set().union(*includes.values()) - set(includes)
    mismatches = []
    for name, others in includes.items():
        room = device_room(name)
        allowed = set(DEVICE_ROOMS) | {room}
        if room in DEVICE_ROOMS:
            allowed = set(DEVICE_ROOMS[: DEVICE_ROOMS.index(room) + 1])
        mismatches += [
            f"{name} includes {other}" for other in others if device_room(other) not in allowed
        ]
    assert not mismatches


def test_a_shared_device_header_serves_two_families() -> None:
    """What one family alone uses stands beside its kernels."""
    includes = device_includes()

    def families(name: str) -> set[str]:
        users = [user for user, others in includes.items() if name in others]
        inner = [families(user) for user in users if user.startswith("rfops/")]
        return {device_room(u) for u in users if not u.startswith("rfops/")}.union(*inner)

    shared = [name for name in includes if name.startswith("rfops/")]
    assert {name: families(name) for name in shared if len(families(name)) < 2} == {}


def test_the_index_of_device_headers_names_each() -> None:
    text = (paths.CSRC / "README.md").read_text(encoding="utf-8")
    headers = {name for name in device_includes() if name.endswith(".h")}
    named = set(re.findall(r"`([\w/]+\.h)`", text))
    assert named == headers


# Of rfops, jit/ among them: each imports, before a call, only what stands before it.
PYTHON_ROOMS = (
    "jit.",  # what lies in jit/ itself: settings, errors, ...
    "jit.cache",
    "jit.policy",
    "jit.build",
    "jit.launch",
    "jit",  # jit/__init__.py
    "public",
    "later",
    "moved",
    "vgpu",
    "dispatch",
    "triton",
    "quantization",
    "rowwise",
    "gemm",
    "moe",
    "attention",
    "compat",
    "",  # rfops/__init__.py
    "plugins",
    "engines",
    "challenge",
    "cli",
)


def module_name(file: Path) -> str:
    parts = ["rfops", *file.relative_to(paths.ROOT).with_suffix("").parts]
    parts = parts[1:] if parts[1] == "rfops" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(name: str) -> str:
    """`gemm` of rfops.gemm.mxfp8; in jit/ the rooms are one deeper."""
    parts = name.split(".")[1:]
    if parts[:1] == ["jit"] and len(parts) > 1:
        return "jit." + (parts[1] if f"jit.{parts[1]}" in PYTHON_ROOMS else "")
    return parts[0] if parts else ""


def imported(body: list[ast.stmt], package: str, known: set[str]) -> set[str]:
    """Modules of `known` that a file of this package imports when it is imported itself."""
    results: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import):
            results |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            inner = {f"{origin}.{a.name}" for a in node.names}
            results |= (inner & known) or {origin}
        elif isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.dump(node):
            handlers = [h.body for h in getattr(node, "handlers", [])]
            for part in (node.body, node.orelse, *handlers):
                results |= imported(part, package, known)
    return results & known


def test_a_room_of_python_imports_only_what_stands_before_it() -> None:
    files = {
        module_name(f): f for top in ("jit", "rfops") for f in (paths.ROOT / top).rglob("*.py")
    }
    edges = {
        name: imported(
            ast.parse(file.read_text(encoding="utf-8")).body,
            name if file.stem == "__init__" else name.rpartition(".")[0],
            set(files),
        )
        for name, file in files.items()
    }
    assert len(files) > 90 and "rfops.jit.errors" in edges["rfops.jit"]
    for name, file in files.items():  # in jit/ nothing is left to the moment of a call
        if name.startswith("rfops.jit"):
            results = [
                node
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            package = name if file.stem == "__init__" else name.rpartition(".")[0]
            others = imported(list(results), package, set(files))
            edges[name] |= {other for other in others if room(other) != room(name)}
    assert {room(name) for name in files} == set(PYTHON_ROOMS)
    mismatches = [
        f"{name} imports {other}"
        for name, others in edges.items()
        for other in others
        if PYTHON_ROOMS.index(room(other)) > PYTHON_ROOMS.index(room(name))
    ]
    assert not mismatches
    # No ring of imports within a room either: nodes that import nothing left are taken away.
    left = dict(edges)
    while ready := [name for name, others in left.items() if not (others - {name}) & set(left)]:
        for name in ready:
            del left[name]
    assert not left


def test_tests_import_helpers_and_no_other_test() -> None:
    """Folders of op_tests, its path among them, can be imported too; only these are to be."""
    scripts = {file.stem for file in OP_TESTS.glob("*.py")} - {"conftest"}
    ours = {path.stem for path in OP_TESTS.rglob("*") if path.suffix in ("", ".py")} - {"triton"}
    files = sorted(OP_TESTS.rglob("*.py"))
    assert len(files) > 130 and {"test_rooms", "support", "gemm"} <= ours
    mismatches = []
    for file in files:
        allowed = {"support"} if "support" in file.parts else {"support", *scripts}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            tops = {name.partition(".")[0] for name in names}
            mismatches += [f"{file.name} imports {top}" for top in tops & ours - allowed]
    assert not mismatches


def test_a_room_of_tests_hides_no_package() -> None:
    """op_tests is on the path: a folder `triton` that is a package would be taken for Triton."""
    packages = {file.relative_to(OP_TESTS).parts[0] for file in OP_TESTS.rglob("__init__.py")}
    assert packages == {"support"}
    names = [file.name for file in OP_TESTS.rglob("test_*.py")]
    assert len(names) == len(set(names)), "two test modules of one name"


def test_few_tables_are_left_unformatted() -> None:
    """`fmt: skip` is for tables that lose their columns by ruff format; 473 were too many."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    files = {name: (ROOT / name).read_text(encoding="utf-8") for name in listed.stdout.split()}
    counts = {name: len(re.findall(r"# fmt: skip$", text, re.M)) for name, text in files.items()}
    assert sum(counts.values()) <= 60, {name: count for name, count in counts.items() if count}


def test_files_that_sources_name_are_there() -> None:
    """In comments, docstrings and pages, by their path from the root or from csrc/include."""
    pattern = re.compile(
        r"(?<![\w/.{-])(?:rfops|csrc|jit|op_tests|configs)/[\w./*]+\.(?:py|hip|h|cpp|md|csv|json)\b"
    )
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    texts = [f for f in listed.stdout.split() if f.endswith((".py", ".h", ".hip", ".cpp", ".md"))]
    assert len(texts) > 500
    mismatches = []
    for name in texts:
        for path in pattern.findall((ROOT / name).read_text(encoding="utf-8", errors="replace")):
            # In a wheel, jit/, csrc/ and configs/ are packages of rfops.
            positions = [ROOT / path, paths.INCLUDE / path, ROOT / path.removeprefix("rfops/")]
            if "axpy." in path:  # the page's example, which test_write_an_op.py makes in a copy
                continue
            if not any(list(p.parent.glob(p.name)) for p in positions if p.parent.is_dir()):
                mismatches.append(f"{name}: {path}")
    assert not mismatches
