"""An entry to a problem as one file of Python: an op's kernels with their headers folded in, their
launches for each case's sizes, and what launches them. It takes nothing of rfops.

The text depends on the problem, form, cases, the sources and tuned tables alone: two runs write the
same bytes. The competition refuses files with a certain word, in any case and place (`FORBIDDEN`).
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rfops
from rfops.challenge.entries import ROWS, Row
from rfops.challenge.evaluate import FORBIDDEN_WORD
from rfops.challenge.problem import Case, Problem
from rfops.challenge.record import ArgPlace, Launch, Plan, Variant, recording, unreal
from rfops.jit import paths
from rfops.jit.build.spec import ModuleSpec, load_config
from rfops.jit.texts import define_text

FORMS = ("load_inline", "module", "packets")
_OF_CODE = FORMS[1:]  # these hold code objects
FORBIDDEN, SUBSTITUTE = FORBIDDEN_WORD, "flow"
GPUS = {"gfx942": "MI300", "gfx950": "MI355X"}
_ENTRY = Path(__file__).with_name("entry")
_WIDTH = 100


def generate(problem: Problem, form: str, cases: Iterable[Case], command: str) -> str:
    """The file's text. `command` says in its head how it was made. Raises ValueError where there is
    no HIP kernel for a case."""
    if problem.name not in ROWS:
        raise ValueError(f"{problem.name}: no entry is known yet, only of {', '.join(ROWS)}")
    row = ROWS[problem.name]
    plans = _plans(problem, row, cases)
    kernels = _Kernels(plan for plan, _ in plans.values())
    folded = Folded(kernels.specs)
    sections = [
        _head(problem, form, row, command),
        _functions(row),
        _tables(kernels, plans, form),
        _pasted("plans.py"),
        _pasted(f"{form}.py"),
        _launching(problem, form),
    ]
    original_text = "\n\n".join(
        [*sections, folded.text(), _ENDS[form].format(name=problem.name, arch=problem.arch)]
    )
    text = _reworded(original_text)
    if form in _OF_CODE:
        code = _compiled(problem, kernels, folded)
        text = text.replace("CODE = {}", _code_text(code))
    assert FORBIDDEN not in text.lower(), "a word that the competition refuses"
    return text.rstrip() + "\n"


# ---------------------------------------------------------------- plans


def _plans(
    problem: Problem, row: Row, cases: Iterable[Case]
) -> dict[Any, tuple[Plan, dict[str, Any]]]:
    """By sizes; a plan and its inputs' strides."""
    plans: dict[Any, tuple[Plan, dict[str, Any]]] = {}
    # Of a case only the sizes count.
    cases = {
        tuple(v for name, v in case.items() if name != "seed"): case for case in cases
    }.values()
    with recording(problem.arch) as record:
        for case in cases:
            captured: dict[str, Any] = {}

            def make_inputs(
                case: Case = case, captured: dict[str, Any] = captured
            ) -> dict[str, Any]:
                captured["data"] = problem.generate(case)
                captured["sizes"], tensors = row.arguments(captured["data"])
                return tensors

            tensors = unreal(make_inputs)
            if captured["sizes"] not in plans:
                data = captured["data"]
                plan = record(tensors, row.op, lambda t=tensors, d=data: row.call(t, d))  # type: ignore[misc]
                plans[captured["sizes"]] = plan, _strides(tensors)
    return plans


def _strides(tensors: Mapping[str, Any]) -> dict[str, Any]:
    first_tensors = {n: v[0] if isinstance(v, (tuple, list)) else v for n, v in tensors.items()}
    return {name: tuple(tensor.stride()) for name, tensor in first_tensors.items()}


class _Kernels:
    """Each kernel of the plans in each of its variants, by a name of its own."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self.names: dict[tuple[Variant, int], str] = {}
        self.code: dict[tuple[str, Any], str] = {}  # module and constants
        for plan in plans:
            for launch in plan.launches:
                key = launch.variant, launch.lds
                if key not in self.names:
                    self.names[key] = f"{launch.variant.op.kernel}_{len(self.names) + 1}"
                built = launch.variant.op.module, launch.variant.defines
                self.code.setdefault(built, f"code_{len(self.code) + 1}")

    @property
    def specs(self) -> list[ModuleSpec]:
        specs_by_module = {variant.op.module: variant.op.spec for variant, _ in self.names}
        return [specs_by_module[name] for name in sorted(specs_by_module)]

    def name_of(self, launch: Launch) -> str:
        return self.names[launch.variant, launch.lds]

    def table(self, form: str) -> dict[str, dict[str, Any]]:
        rows = {}
        for (variant, lds), name in self.names.items():
            module = variant.op.module
            row: dict[str, Any] = {"source": module, "symbol": variant.op.kernel}
            if form in _OF_CODE:
                row["code"] = self.code[module, variant.defines]
            row["defines"] = [f"{n}={define_text(module, n, v)}" for n, v in variant.defines]
            row["arguments"] = _layout(variant)
            rows[name] = {**row, "lds": lds} if lds else row
        return rows


def _layout(variant: Variant) -> str:
    """A struct's code an argument; padding written out, where the compiler puts it."""
    codes, offset = [], 0
    for parameter in variant.op.parameters:
        scalar = parameter.layout
        align = 8 if parameter.count else scalar.size
        if offset % align:
            codes.append(f"{align - offset % align}x")
            offset += align - offset % align
        codes.append(scalar.code)
        offset += scalar.size
    return " ".join(codes)


# ---------------------------------------------------------------- the file's parts


def _head(problem: Problem, form: str, row: Row, command: str) -> str:
    return "\n".join(
        [
            f"#!POPCORN leaderboard {problem.name}",
            f"#!POPCORN gpus {GPUS[problem.arch]}",
            '"""'
            + f"{problem.name} for {problem.arch} by {row.op.name} of rfops {rfops.__version__}.",
            "",
            *textwrap.wrap(f"Written by `{command}`: change rfops and write it again.", _WIDTH),
            "",
            *textwrap.wrap(_EXPLANATIONS[form], _WIDTH),
            '"""',
            "",
            *_imports(form),
        ]
    )


_PLAN_IMPORTS = (
    "import ctypes",
    "import functools",
    "import re",
    "import struct",
    "from collections.abc import Callable, Mapping",
    "from typing import Any",
)
_FORM_IMPORTS = {
    "load_inline": ("import os", "from torch.utils.cpp_extension import load_inline"),
    "module": ("import base64", "from pathlib import Path"),
    "packets": ("import base64",),
}


def _imports(form: str) -> list[str]:
    """Return the import lines of an entry of this form, in the order of isort."""
    task = "import torch", "from task import input_t, output_t"
    lines = {*_PLAN_IMPORTS, *task, *_FORM_IMPORTS[form]}
    torch_lines = {line for line in lines if line in task or "torch" in line}
    return [*_in_order(lines - torch_lines), "", *_in_order(torch_lines)]


def _in_order(lines: Iterable[str]) -> list[str]:
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


_EXPLANATIONS = {
    "load_inline": "PLANS has what is launched for each size, KERNELS the kernels with the "
    "constants that were chosen for them, SOURCES their text; torch's load_inline builds them when "
    "this file is imported.",
    "module": "PLANS has what is launched for each size, KERNELS the kernels with the constants "
    "that were chosen for them, SOURCES their text, from which CODE was compiled: code objects, "
    "which HIP loads.",
    "packets": "PLANS has what is launched for each size, KERNELS the kernels with the constants "
    "that were chosen for them, SOURCES their text, from which CODE was compiled: code objects. "
    "A launch is a dispatch packet (AQL), which this file writes to a queue of the HSA runtime; "
    "a call waits for torch's work, and for its own.",
}


def _functions(row: Row) -> str:
    """`arguments` and `result`, under these names."""
    texts = [_RULE + " data"]
    for helper in row.helpers:
        texts.append(inspect.getsource(helper))
    for name, function in (("arguments", row.arguments), ("result", row.result)):
        text = inspect.getsource(function)
        texts.append(text.replace(f"def {function.__name__}(", f"def {name}(", 1))
    return "\n\n".join(text.replace("  # fmt: skip", "").rstrip() for text in texts)


_RULE = "# " + "-" * 64


def _tables(kernels: _Kernels, plans: Mapping[Any, tuple[Plan, dict[str, Any]]], form: str) -> str:
    plans_shown = {}
    for sizes, (plan, strides) in plans.items():
        launches = [
            (
                kernels.name_of(launch),
                launch.grid,
                launch.block,
                [_argument(arg) for arg in launch.args],
            )
            for launch in plan.launches
        ]
        result = {}
        if plan.result is not None:
            shape, dtype = plan.result
            result["result"] = shape, str(dtype).removeprefix("torch.")
        plans_shown[sizes] = {
            **result,
            "strides": strides,
            "scratch": dict(plan.scratch),
            "launches": launches,
        }
    return "\n".join(
        [
            _RULE + " plans",
            "",
            "# A kernel: its source, the constants that are compiled in, and a code of Python's",
            "# struct for each argument.",
            f"KERNELS = {_literal(kernels.table(form))}",
            "",
            "# Of each size: the strides of its inputs, scratch memory in bytes, and the launches",
            "# in their order: kernel, grid, block, arguments.",
            f"PLANS = {_literal(plans_shown)}",
        ]
    )


def _argument(value: Any) -> Any:
    """As entry/plans.py reads it."""
    if isinstance(value, ArgPlace):
        assert value.item is None, "a tensor of a tuple comes in a table"
        return f"{value.name}+{value.offset}" if value.offset else value.name
    if isinstance(value, tuple):
        present = [arg_place for arg_place in value if arg_place is not None]
        expected = tuple(ArgPlace(present[0].name, 0, index) for index in range(len(present)))
        if value != expected + (None,) * (len(value) - len(present)):
            raise ValueError(f"a table of tensors in another order than {present[0].name}'s")
        return f"{present[0].name}[:{len(value)}]"
    return value


def _literal(value: Any, indent: str = "", used_columns: int = 0) -> str:
    """As formatters write it: on the line where it fits, else an item a line; numbers and names of
    a list are filled into lines. `used_columns`: what stands before it in its line."""
    plain_text = _plain_text(value)
    if len(indent) + used_columns + len(plain_text) < _WIDTH or not isinstance(
        value, (dict, list, tuple)
    ):
        return plain_text
    inner = indent + "    "
    if isinstance(value, dict):
        keys = [f"{_plain_text(key)}: " for key in value]
        rows = [k + _literal(v, inner, len(k)) for k, v in zip(keys, value.values(), strict=True)]
    elif all(isinstance(item, (int, float, str, type(None))) for item in value):
        text = textwrap.fill(", ".join(map(_plain_text, value)), _WIDTH - len(inner) - 1)
        rows = text.rstrip(",").splitlines()
        rows = [row.rstrip(",") for row in rows]
    else:
        rows = [_literal(item, inner) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else "()"
    return begin + "".join(f"\n{inner}{row}," for row in rows) + f"\n{indent}{end}"


def _plain_text(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_plain_text(k)}: {_plain_text(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(_plain_text, value))
        if isinstance(value, list):
            return f"[{text}]"
        return f"({text},)" if len(value) == 1 else f"({text})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _pasted(name: str) -> str:
    """A file of entry/, from its line of dashes on."""
    text = (_ENTRY / name).read_text(encoding="utf-8")
    return text[text.index("# -----") :].rstrip()


def _launching(problem: Problem, form: str) -> str:
    if form == "packets":
        return textwrap.dedent("""\
            def custom_kernel(data: input_t) -> output_t:
                sizes, tensors = arguments(data)
                plan = plan_of(sizes, tensors, PLANS, KERNELS, function_of)
                if plan.device.type != "cpu":
                    torch.cuda.synchronize()  # another queue's packets do not wait for torch
                out = plan.run(tensors)
                QUEUE.finish()
                return result(data, out)""")
    return textwrap.dedent("""\
        def custom_kernel(data: input_t) -> output_t:
            sizes, tensors = arguments(data)
            plan = plan_of(sizes, tensors, PLANS, KERNELS, function_of)
            return result(data, plan.run(tensors))""")


_ENDS = {
    "load_inline": 'function_of = builder("{name}", "{arch}", KERNELS, HEADERS, SOURCES)',
    **dict.fromkeys(_OF_CODE, "CODE = {{}}\n\nfunction_of = loader(KERNELS, CODE)"),
}


# ---------------------------------------------------------------- sources


class Folded:
    """The sources of modules without their includes, and the headers, which each of them names in
    the order in which it includes them. A header that is included behind code, which defines types
    for it, is pasted where it is included."""

    def __init__(self, specs: Iterable[ModuleSpec]) -> None:
        self.headers: dict[str, str] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        for spec in specs:
            (file,) = spec.sources()
            names: list[str] = []
            text = self._fold(file, names)
            self.sources[spec.name] = {
                "flags": list(spec.flags),
                "symbols": _symbols(spec.name),
                "headers": names,
                "text": text,
            }

    def _fold(self, file: Path, names: list[str]) -> str:
        lines: list[str] = []
        is_behind_code = False
        for line in file.read_text(encoding="utf-8").splitlines():
            included = re.fullmatch(r'\s*#include "([\w./]+)".*', line)
            if included is None:
                lines.append(line)
                is_behind_code |= not line.lstrip().startswith(("//", "#")) and bool(line.strip())
            elif included[1] not in names:
                files = (folder / included[1] for folder in (paths.CSRC / "include", paths.CSRC))
                text = self._fold(next(f for f in files if f.is_file()), names)
                if is_behind_code:
                    lines += text.splitlines()
                    continue
                names.append(included[1])
                self.headers[included[1]] = text
        return "\n".join(line for line in lines if line != "#pragma once").strip() + "\n"

    def full_text(self, name: str) -> str:
        """Return the text of a source with the headers that it includes."""
        source = self.sources[name]
        return "\n".join([*(self.headers[header] for header in source["headers"]), source["text"]])

    def text(self) -> str:
        headers = [f'    "{name}": {_raw(text)},' for name, text in self.headers.items()]
        sources = []
        for name, source in self.sources.items():
            fields = "\n".join(
                f'        "{field}": '
                + (_raw(value) if field == "text" else _literal(value, " " * 8, len(field) + 4))
                + ","
                for field, value in source.items()
            )
            sources.append(f'    "{name}": {{\n{fields}\n    }},')
        return "\n".join(
            [_RULE + " sources", "", "HEADERS = {", *headers, "}", "", "SOURCES = {", *sources, "}"]
        )


def _symbols(module: str) -> list[str]:
    """The kernels of a module."""
    return sorted(op.kernel for op in rfops.jit.compiled_ops() if op.module == module)


def _raw(text: str) -> str:
    assert '"""' not in text and not text.endswith("\\"), "no raw string of Python"
    return f'r"""\n{text}"""'


def _reworded(text: str) -> str:
    """Return `text` without the word that the competition refuses. Raises ValueError where a name
    with the substitute exists already."""
    names = set(re.findall(r"\w+", text))
    for name in sorted(n for n in names if FORBIDDEN in n.lower()):
        if _replace_forbidden(name) in names:
            raise ValueError(f"{name} cannot be called {_replace_forbidden(name)}: there is one")
    return _replace_forbidden(text)


def _replace_forbidden(text: str) -> str:
    """Return `text` with the refused word replaced by its substitute, in each of three cases."""
    for phrase, replacement in (
        (FORBIDDEN, SUBSTITUTE),
        (FORBIDDEN.capitalize(), SUBSTITUTE.capitalize()),
        (FORBIDDEN.upper(), SUBSTITUTE.upper()),
    ):
        text = text.replace(phrase, replacement)
    return text


# ---------------------------------------------------------------- code objects


def _compiled(problem: Problem, kernels: _Kernels, folded: Folded) -> dict[str, bytes]:
    """Of the text that stands in the entry."""
    from rfops.jit.build.device import build_device
    from rfops.jit.cache.code_object import unbundle

    code_objects = {}
    with tempfile.TemporaryDirectory(prefix="rfops-submit-") as name:
        folder = Path(name)
        entries = {}
        for module, source in folded.sources.items():
            text = _reworded(folded.full_text(module))
            (folder / f"{module}.hip").write_text(text, encoding="utf-8")
            entries[module] = {"srcs": [f"{module}.hip"], "flags": source["flags"]}
        config = folder / "config.json"
        config.write_text(json.dumps(entries), encoding="utf-8")
        specs = load_config(config)
        for (module, defines), code in kernels.code.items():
            built = build_device(specs[module], problem.arch, dict(defines))
            code_objects[code] = unbundle(built.file.read_bytes(), problem.arch)
    return code_objects


def _code_text(code: Mapping[str, bytes]) -> str:
    rows = []
    for name, data in code.items():
        text = base64.b64encode(data).decode()
        lines = [text[begin : begin + _WIDTH] for begin in range(0, len(text), _WIDTH)]
        # Broken where it would spell the word.
        lines = [
            re.sub(f"(?i)({FORBIDDEN[:3]})({FORBIDDEN[3:]})", r"\1\n\2", line) for line in lines
        ]
        rows.append(f'    "{name}": """\n' + "\n".join(lines) + '""",')
    return "\n".join(["CODE = {", *rows, "}"])
