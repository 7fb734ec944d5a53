"""What the parts of the command share; the ops among it: it begins without."""

from __future__ import annotations

import argparse
import gc
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rfops.dispatch import tuned_table
from rfops.jit import paths, settings
from rfops.jit.arch import ARCHS
from rfops.later import import_ops

if TYPE_CHECKING:
    from rfops.jit import CompiledOp


def with_ops() -> None:
    """Import every op, torch with it."""
    if "torch" not in sys.modules:
        # Of torch's 170,000 objects none is garbage: looking at them again and again takes a third
        # of a command's time.
        gc.disable()
        importlib.import_module("torch")
        gc.freeze()
        gc.enable()
    import_ops()


_loaded: dict[Path, None] = {}


def load_ops(file: Path) -> None:
    """Import a file; what it imports may lie beside it. Raises ValueError."""
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"--ops {file}: expected a file of Python that declares ops")
    with_ops()
    _loaded.setdefault(file.absolute())
    sys.path.insert(0, str(file.parent.absolute()))
    importlib.import_module(file.stem)


def loaded() -> list[Path]:
    """The files of --ops, for workers of other processes."""
    return list(_loaded)


def declared_ops(config: Path = paths.COMPILER_CONFIG) -> tuple[CompiledOp, ...]:
    """Every kernel that rfops' ops, or those of another config file, have declared."""
    with_ops()
    from rfops.jit import compiled_ops

    return compiled_ops(config)


def elsewhere() -> dict[str, Path]:
    """The modules of ops that this process has declared outside of rfops: their config files."""
    if "rfops.dispatch.op" not in sys.modules:
        return {}
    from rfops.dispatch.op import modules

    return {name: file for name, file in modules().items() if file != paths.COMPILER_CONFIG}


# An op and its kernels, as their files declare them: the command names them without torch.
_OP = re.compile(r'^(?:\w+_)?OP = \w+\(\s*"(\w+)"', re.MULTILINE)
_KERNEL = re.compile(r'compile_ops\(\s*"(\w+)"(?:,\s*kernel="(\w+)"|(?:.*\n)*?def (\w+))')
# A kernel of its module's name, compiled by what several share.
_NAMESAKE = re.compile(
    r'^    module = "(\w+)"\n(?:.*\n)*?    compiled = \w+\(module,', re.MULTILINE
)
_HIP_IMPORT = re.compile(r"^from \.(\w+) import (?:\([^)]*\bHip\b|[^(\n]*\bHip\b)", re.MULTILINE)
_SIBLING_IMPORT = re.compile(r"^from \.(\w[\w.]*) import", re.MULTILINE)
_QUOTED_NAME = re.compile(r'"(\w+)"')
# A kernel's modules, whose signatures may stand in a file of their own.
_MODULES = (
    re.compile(r"^    (?:name, )?module = (.*)$", re.MULTILINE),
    re.compile(r"^    more_modules\b.*? = \(([^)]*)\)", re.MULTILINE),  # of its other launches
)


def _siblings(file: Path, text: str) -> list[Path]:
    """The files that it imports from its own folder and those below."""
    names = dict.fromkeys(_SIBLING_IMPORT.findall(text))
    return [file.parent / f"{name.replace('.', '/')}.py" for name in names]


def declared() -> dict[str, dict[str, list[str]]]:
    """Module and kernels of each op. What an op runs by Triton or torch alone has none."""
    folder = Path(__file__).parents[1]
    ops_found: dict[str, dict[str, list[str]]] = {}
    files = {file: file.read_text(encoding="utf-8") for file in folder.glob("*/**/*.py")}
    kernels: dict[str, list[str]] = {}
    for text in files.values():
        for module, given_name, defined in _KERNEL.findall(text):
            kernels.setdefault(module, []).append(given_name or defined)
        for module in _NAMESAKE.findall(text):
            kernels.setdefault(module, [module])
    for file, text in files.items():
        for op in _OP.findall(text):
            modules = ops_found.setdefault(op, {})
            siblings = _siblings(file, text)
            # Kernels that several ops list in one file stand a file farther.
            shared = [module for module in siblings if module.name == "op.py"]
            siblings += [far for one in shared for far in _siblings(one, files[one])]
            texts = {sibling: sibling.read_text(encoding="utf-8") for sibling in siblings}
            lenders = _HIP_IMPORT.findall(text)  # other ops, whose HIP kernel this one has too
            for source_text in (
                text,
                *(t for s, t in texts.items() if not _OP.search(t) or s.stem in lenders),
            ):
                own_modules = [module for module, *_ in _KERNEL.findall(source_text)]
                texts_of = (names for pattern in _MODULES for names in pattern.findall(source_text))
                named_modules = [name for names in texts_of for name in _QUOTED_NAME.findall(names)]
                modules |= {m: kernels[m] for m in (*own_modules, *named_modules) if m in kernels}
    for file in {*elsewhere().values()}:
        from rfops.dispatch.op import ops

        for kernel in declared_ops(file):
            names = [n for n, op in ops().items() if kernel.module in op.modules]
            for name in names:
                ops_found.setdefault(name, {}).setdefault(kernel.module, []).append(kernel.kernel)
    return dict(sorted(ops_found.items()))


# What ops and kernels say of their tables.
_TABLES = (
    re.compile(r'^OP = \w+\(\s*"(\w+)"(?:.*\n)*?    table="([^"]*)"', re.MULTILINE),
    re.compile(r'tuned_table\.declare\(\s*"(\w+)", "([^"]*)"'),
)


def declare_tables() -> None:
    """The tuned tables, of rfops' ops without torch."""
    for file in Path(__file__).parents[1].glob("*/**/*.py"):
        for pattern in _TABLES:
            for name, key in pattern.findall(file.read_text(encoding="utf-8")):
                if name not in tuned_table.TABLES:
                    tuned_table.declare(name, key, ())


def op_names(with_table: bool = False) -> list[str]:
    """The ops that are declared, those of elsewhere among them; of them those with a table."""
    texts = [
        file.read_text(encoding="utf-8") for file in Path(__file__).parents[1].glob("*/**/*.py")
    ]
    own_texts = [t for t in texts if not with_table or '\n    table="' in t]
    names = sorted(name for text in own_texts for name in _OP.findall(text))
    if "rfops.dispatch.op" in sys.modules:
        from rfops.dispatch.op import ops

        loaded_names = [name for name, op in ops().items() if op.table or not with_table]
        names = list(dict.fromkeys([*names, *loaded_names]))
    return names


def add_op(parser: argparse.ArgumentParser, *extra: str) -> None:
    """The argument that names an op, and what its own parser is to read."""
    parser.add_argument("op", nargs="?", choices=[*op_names(), *extra], help="--help after it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the op")


def help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """What a command does that wants another word."""

    def show(_options: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return show


def virtual_arch(arch: str | None, gpu_model: str | None) -> str:
    """The virtual GPU's by --arch and --part. Raises ValueError."""
    if gpu_model is not None and gpu_model not in settings.PARTS:
        raise ValueError(f"--part {gpu_model}: expected one of {', '.join(settings.PARTS)}")
    arch = arch or settings.PARTS.get(gpu_model or "") or settings.text("RFOPS_VGPU_ARCH")
    if arch not in ARCHS:
        raise ValueError(f"--arch {arch}: the virtual GPU is {' or '.join(ARCHS)}")
    if gpu_model is not None and settings.PARTS[gpu_model] != arch:
        raise ValueError(
            f"--part {gpu_model} is {settings.PARTS[gpu_model]}, got --arch {arch}; omit it"
        )
    return arch
