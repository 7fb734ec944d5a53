"""A problem that is a folder in gpu-mode's form: task.yml with cases, and reference.py with
`generate_input`, `ref_kernel` and `check_implementation`. Its own check is the official one; there
is no strict one.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rfops.challenge.problem import Case, Problem, Result

_ROW = re.compile(r"\s*-\s*(\{.*\})\s*(?:#.*)?")
_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")
HARNESS = ("task", "utils", "reference")  # modules, in the order in which they import each other


@dataclass(frozen=True)
class FolderProblem(Problem):
    reference_module: ModuleType | None = None

    def official(self, expected: Result, got: Any, data: Any = None) -> str:
        """What check_implementation says: a text, empty where it agrees; or whether it does, and a
        text."""
        assert self.reference_module is not None
        said = self.reference_module.check_implementation(data, got)
        if isinstance(said, tuple):
            good, text = said[0], said[1] if len(said) > 1 else ""
            return "" if good else str(text or "check_implementation says no")
        return str(said or "")

    def strict(self, data: Any, got: Any, expected: Result) -> str:
        return ""


def problem_of(folder: Path, arch: str) -> FolderProblem:
    """Raises ValueError where something of it is missing."""
    rows = _sections(folder)
    files = {str(row.get("name")): folder / str(row.get("source")) for row in rows["files"]}
    for name in HARNESS:
        file = files.get(f"{name}.py", folder / f"{name}.py")
        if file.is_file():
            _load(name, file)
    reference = sys.modules.get("reference")
    for name in ("generate_input", "ref_kernel", "check_implementation"):
        if reference is None or not hasattr(reference, name):
            raise ValueError(f"{folder}: expected a reference.py with {name}")
    assert reference is not None
    return FolderProblem(
        name=folder.name,
        arch=arch,
        tests=tuple(rows["tests"]),
        benchmarks=tuple(rows["benchmarks"] or rows["tests"]),
        generate=lambda case: reference.generate_input(**case),
        reference=lambda data: reference.ref_kernel(data),
        shrink=_refuse_shrink,
        rtol=0.0,
        atol=0.0,
        truths=lambda _data, _expected: {},
        bound=0.0,
        reference_module=reference,
    )


def _refuse_shrink(case: Case) -> Case:
    raise ValueError(
        "--shrink: of a folder's own problem only you know what may be smaller; --case"
    )


def _sections(folder: Path) -> dict[str, list[Any]]:
    """The lists of task.yml, whose rows are written as {"name": value, ...}."""
    file = folder / "task.yml"
    if not file.is_file():
        raise ValueError(f"{folder}: expected a problem by its name, or a folder with a task.yml")
    found: dict[str, list[Any]] = {"files": [], "tests": [], "benchmarks": []}
    section = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if re.match(r"\w", line):
            section = line.partition(":")[0]
        row = _ROW.fullmatch(line)
        if row is not None and section in found:
            found[section].append(_mapping(file, row[1]))
    if not found["tests"]:
        raise ValueError(f"{file}: expected tests:, a row - {{...}} each")
    return found


def _mapping(file: Path, text: str) -> Any:
    try:
        return json.loads(_KEY.sub(r'\1"\2":', text))
    except ValueError as error:
        raise ValueError(f"{file}: {text}: {error}") from error


def _load(name: str, file: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
