"""A problem that is a folder in gpu-mode's form: task.yml with cases, and reference.py with
`generate_input`, `ref_kernel` and `check_implementation`. Its own check is the official one; there
is no strict one.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rfops.challenge.problem import Case, Problem, Result

HARNESS = ("task", "utils", "reference")  # modules, in the order in which they import each other


@dataclass(frozen=True)
class FolderProblem(Problem):
    reference_module: ModuleType | None = None

    def official(self, expected: Result, result: Any, data: Any = None) -> str:
        """What check_implementation says: a text, empty where it agrees; or whether it does, and a
        text."""
        assert self.reference_module is not None
        verdict = self.reference_module.check_implementation(data, result)
        if isinstance(verdict, tuple):
            is_correct, text = verdict[0], verdict[1] if len(verdict) > 1 else ""
            return "" if is_correct else str(text or "check_implementation says no")
        return str(verdict or "")

    def strict(self, data: Any, result: Any, expected: Result) -> str:
        """Return "": a problem of a folder has no strict check."""
        return ""


def sources(folder: Path) -> list[Path]:
    """The folder, and files of task.yml beside it."""
    named = [folder / str(row.get("source")) for row in _sections(folder)["files"]]
    return [folder.resolve(), *(file.resolve() for file in named if file.is_file())]


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
        generate=lambda case: _generated(reference, case),
        reference=lambda data: reference.ref_kernel(data),
        shrink=_refuse_shrink,
        rtol=0.0,
        atol=0.0,
        truths=lambda _data, _expected: {},
        bound=0.0,
        reference_module=reference,
    )


def _generated(reference: ModuleType, case: Case) -> Any:
    """The entry's process and the one that judges make the same: numbers that its author draws
    without a generator too."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(case.get("seed", 0) % 2**32)
    return reference.generate_input(**case)


def _refuse_shrink(case: Case) -> Case:
    raise ValueError(
        "--shrink: of a folder's own problem only you know what may be smaller; --case"
    )


def _sections(folder: Path) -> dict[str, list[Any]]:
    """The lists of task.yml."""
    import yaml  # type: ignore[import-untyped]  # 20 ms that no other command needs

    file = folder / "task.yml"
    if not file.is_file():
        raise ValueError(f"{folder}: expected a problem by its name, or a folder with a task.yml")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: {error}") from error
    sections = {name: content.get(name) or [] for name in ("files", "tests", "benchmarks")}
    if not sections["tests"] or not all(
        isinstance(row, dict) for rows in sections.values() for row in rows
    ):
        raise ValueError(f"{file}: expected tests:, a row - {{name: value, ...}} each")
    return sections


def _load(name: str, file: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
