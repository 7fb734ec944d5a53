"""`rfops new NAME` writes the files of an op that runs, tests and benches at once: a kernel, its
config, the op, a test. With `--family` they go into this checkout, as an op of rfops.

A line of a template that ends with `//@` or `#@` and words is for the options that these name; `-`
before a word: for calls without that option.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import keyword
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from rfops.cli.common import op_names
from rfops.jit import paths

TEMPLATES = Path(__file__).with_name("template")
FAMILIES = ("attention", "gemm", "moe", "quantization", "rowwise")
PUBLIC = Path(__file__).parents[1] / "public.py"
_MARK = re.compile(r" ?(?://|#)@ ([\w -]+)$")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `rfops new` to the command line."""
    new = commands.add_parser("new", help="write the files of a new op", description=__doc__)
    new.add_argument("op", nargs="?", metavar="NAME", help="of the op, its kernel and function")
    new.add_argument("--results", type=int, choices=(1, 2), default=1, help="[1]")
    new.add_argument("--fp8", action="store_true", help="take an input in FP8 with a scale per row")
    new.add_argument("--leading", action="store_true", help="take any leading dimensions")
    new.add_argument("--out", type=Path, metavar="FOLDER", help="write them there [./NAME]")
    new.add_argument("--family", choices=FAMILIES, help="add the op to this checkout of rfops")
    new.add_argument("--names", action="store_true", help="list the public names of this checkout")
    new.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Write the files of a new op and print the next steps; return the exit status."""
    if options.op is None and not options.names:
        raise ValueError("new: NAME must be given, as in `rfops new my_op`")
    if options.family and options.out:
        raise ValueError("new: --family and --out must not both be given; omit one")
    if options.family or options.names:
        _must_be_checkout()
    if options.op is not None:
        files = files_of(options)
        _write(files)
        for path in files:
            print(f"wrote {path}")
        print(_next_steps(options))
    if options.family or options.names:
        PUBLIC.write_text(public_text(), encoding="utf-8")
        print(f"wrote {PUBLIC}")
    return 0


def files_of(options: argparse.Namespace) -> dict[Path, str]:
    """The files of an op and their text. Raises ValueError."""
    name, family = options.op, options.family
    _check_name(name)
    text = _texts(options)
    if family:
        return {
            paths.CSRC / family / f"{name}.hip": text["op.hip"],
            PUBLIC.parent / family / f"{name}.py": text["op.py"],
            paths.ROOT / "op_tests" / family / f"test_{name}.py": text["test_op.py"],
        }
    folder = options.out or Path(name)
    return {
        folder / f"{name}.hip": text["op.hip"],
        folder / "config.json": json.dumps({name: {"srcs": [f"{name}.hip"]}}) + "\n",
        folder / f"{name}.py": text["op.py"],
        folder / f"test_{name}.py": text["test_op.py"],
    }


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"new: NAME must be lower-case letters, digits and _, got {name!r}")
    if name in op_names():
        raise ValueError(f"new: NAME must be new, got {name}, an op of rfops. Take another.")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(
            f"new: NAME must be new to Python, got {name}, which is a module. Take another."
        )


def _texts(options: argparse.Namespace) -> dict[str, str]:
    conditions = {
        "two": options.results == 2,
        "fp8": options.fp8,
        "lead": options.leading,
        "tree": options.family is not None,
    }
    results = ["out", *["row_max"] * conditions["two"]]
    inputs = ["x", *["x_scale"] * conditions["fp8"], "y"]
    replacements = {
        "SHAPE_OF_ROWS": "[...]" if options.leading else "[M]",
        "SHAPE": "[..., K]" if options.leading else "[M, K]",
        "ROWS": "*M" if options.leading else "M",
        "RETURNS": "tuple[torch.Tensor, torch.Tensor]" if conditions["two"] else "torch.Tensor",
        "SIGNATURE": _signature(options.op, results, inputs),
        "FAMILY": options.family or "",
        "NAME": options.op,
    }
    files = {file.stem: file for file in TEMPLATES.glob("*.txt")}
    return {
        stem: fill(file.read_text(encoding="utf-8"), conditions, replacements)
        for stem, file in files.items()
    }


def _signature(name: str, results: list[str], inputs: list[str]) -> str:
    """The kernel's head, in lines as clang-format makes them."""
    kinds = dict.fromkeys(results, "f32*") | dict.fromkeys(inputs, "const f32*")
    if "x_scale" in inputs:
        kinds["x"] = "const u8*"
    kinds |= {"a": "f32", "k": "u32"}
    head = f'extern "C" __global__ void {name}('
    text = head + ", ".join(f"{kind} {parameter}" for parameter, kind in kinds.items()) + ")"
    # A line ends only after a comma.
    text = text.replace(" ", "\0").replace(",\0", ", ")
    lines = textwrap.wrap(text, 98, subsequent_indent=" " * len(head), break_long_words=False)
    return "\n".join(lines).replace("\0", " ")


def fill(template: str, conditions: Mapping[str, bool], replacements: Mapping[str, str]) -> str:
    """A template's lines for these options, with these words in place of their names."""
    lines = []
    for line in template.splitlines():
        mark = _MARK.search(line)
        required = mark[1].split() if mark else []
        if all(
            conditions[replacement.removeprefix("-")] != replacement.startswith("-")
            for replacement in required
        ):
            lines.append(line[: mark.start()] if mark else line)
    text = "\n".join(lines) + "\n"
    for name, replacement in replacements.items():
        text = re.sub(rf"{name}", replacement, text)
    return text


def _write(files: Mapping[Path, str]) -> None:
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise ValueError(f"new: the files must not exist, got {', '.join(existing)}. Move them.")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _next_steps(options: argparse.Namespace) -> str:
    name, family = options.op, options.family
    if family:
        entry = f'"{name}": {{"srcs": ["{family}/{name}.hip"]}}'
        return (
            f"Add its module to {paths.COMPILER_CONFIG}:\n  {entry}\nThen\n"
            f"  pytest op_tests/{family}/test_{name}.py\n  rfops bench {name}"
        )
    folder = options.out or Path(name)
    return f"Then\n  pytest {folder}\n  rfops --ops {folder}/{name}.py bench {name}"


# ---------------------------------------------------------------- public names


def _must_be_checkout() -> None:
    if not (paths.ROOT / "op_tests").is_dir():
        raise ValueError("new: --family and --names must be used in a checkout of rfops")


def public_names() -> dict[str, list[str]]:
    """The `__all__` of each op's module, by the module's name in rfops."""
    names_by_module = {}
    for family in FAMILIES:
        for file in (PUBLIC.parent / family).glob("*.py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    names_by_module[f"{family}.{file.stem}"] = sorted(ast.literal_eval(node.value))
    return dict(sorted(names_by_module.items(), key=lambda pair: _natural(pair[0])))


def public_text() -> str:
    """rfops/public.py as it must be."""
    modules = public_names()
    imports = [_statement(f"    from rfops.{m} import ", names) for m, names in modules.items()]
    type_imports = [
        _statement(f'    "{m}": ', [f'"{n}"' for n in names], "()", ",")
        for m, names in modules.items()
    ]
    names = sorted((n for module_names in modules.values() for n in module_names), key=_natural)
    name_lines = "".join(f'    "{name}",\n' for name in [*names, "vgpu"])
    return _PUBLIC.format("\n".join(imports), "\n".join(type_imports), name_lines)


_PUBLIC = '''"""The public names of rfops: each module's `__all__`. Written by `rfops new --names`.

A module is imported when the first of its names is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rfops import vgpu
{}

MODULES: dict[str, tuple[str, ...]] = {{
    "vgpu": (),
{}
}}

__all__ = [
{}]
'''


def _natural(name: str) -> list[tuple[int, str]]:
    """a8w8 before a16w8."""
    return [
        (int(token), "") if token.isdigit() else (0, token) for token in re.split(r"(\d+)", name)
    ]


def _statement(begin: str, names: list[str], brackets: str = "", end: str = "") -> str:
    """On one line where it fits."""
    trailing_comma = "," if brackets and len(names) == 1 else ""
    opening, closing = brackets[:1], brackets[1:]
    line = f"{begin}{opening}{', '.join(names)}{trailing_comma}{closing}{end}"
    if len(line) <= 100:
        return line
    inner = "".join(f"        {name},\n" for name in names)
    return f"{begin}(\n{inner}    ){end}"
