"""Whether a target is in the source of an installed package, without importing the package: aiter
wants a GPU when it is imported, and `rfops doctor` runs where none is."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path


def missing(target: str) -> str:
    """What of a dotted name is not there, or "" where it is or its package has no source."""
    top, *path_parts, name = target.split(".")
    folder = _folder(top)
    if folder is None:
        return ""
    file = _module(folder, tuple(path_parts))
    if file is None:
        return f"there is no module {target.rpartition('.')[0]}"
    return "" if _defines(file, name, folder, ()) else f"{target.rpartition('.')[0]} has no {name}"


def _folder(package: str) -> Path | None:
    """Of its __init__.py."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    origin = None if spec is None else spec.origin
    path = Path(origin) if origin else Path(getattr(sys.modules.get(package), "__file__", "") or "")
    return path.parent if path.name == "__init__.py" and path.is_file() else None


def _module(folder: Path, path_parts: tuple[str, ...]) -> Path | None:
    """The source of a module below a package; a package may have a table of former names."""
    if not path_parts:
        return folder / "__init__.py"
    head, tail = path_parts[0], path_parts[1:]
    if (folder / head / "__init__.py").is_file():
        return _module(folder / head, tail)
    if (folder / f"{head}.py").is_file():
        return folder / f"{head}.py" if not tail else None
    new_name = _renamed(folder / "__init__.py").get(head)
    return None if new_name is None else _module(folder, (*new_name.split("."), *tail))


@functools.lru_cache(maxsize=256)
def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(errors="replace"))
    except (OSError, SyntaxError):
        return ast.Module([], [])


def _renamed(init: Path) -> dict[str, str]:
    """Strings by strings of the dictionaries in it."""
    renamed: dict[str, str] = {}
    for node in ast.walk(_tree(init)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    if isinstance(key.value, str) and isinstance(value.value, str):
                        renamed[key.value] = value.value
    return renamed


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module, those under its ifs, withs and tries among them."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _defines(file: Path, name: str, top: Path, visited: tuple[Path, ...]) -> bool:
    """Whether the module has the name, by its own statement or a star import's."""
    if file in visited:
        return False
    stars = []
    for node in _statements(_tree(file).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in (name, "__getattr__"):  # which may have any name
                return True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.asname or a.name for a in node.names]
            if name in names:
                return True
            if "*" in names and isinstance(node, ast.ImportFrom):
                stars.append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return True
    sources = (_source(node, file, top) for node in stars)
    return any(source and _defines(source, name, top, (*visited, file)) for source in sources)


def _source(node: ast.ImportFrom, file: Path, top: Path) -> Path | None:
    """The module that a star import takes, within the package."""
    path_parts = tuple((node.module or "").split(".")) if node.module else ()
    if node.level == 0:
        return _module(top, path_parts[1:]) if path_parts[:1] == (top.name,) else None
    folder = file.parent
    for _ in range(node.level - 1):
        folder = folder.parent
    return _module(folder, path_parts)
