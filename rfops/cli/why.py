"""`rfops why`: which kernel a call takes, by which rule and row, and why not the others; whether
that is cached, and if not, in what the key of the nearest variant differs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rfops.dispatch.declare import DTYPES, TensorArg, ValueArg
from rfops.dispatch.kernel import Call, Kernel
from rfops.dispatch.op import Op, ops
from rfops.dispatch.routing import Decision, config_text
from rfops.jit.arch import ARCH_SPECS, ARCHS
from rfops.jit.build.explain import explain
from rfops.jit.policy import manifest
from rfops.jit.policy.manifest import BuildRequest


def add_call(parser: argparse.ArgumentParser, op: Op) -> None:
    """An option for each size and value of an op's calls, as `--m 4 --dtype bf16`."""
    ones: dict[str, Any] = dict.fromkeys(op.declaration.sizes, 1)
    example = op.call_of(**ones)
    for size in op.asked:
        parser.add_argument(_option(size), dest=size, type=int, required=True, help=f"size {size}")
    for size, meaning in op.more_sizes.items():
        parser.add_argument(_option(size), dest=size, type=int, help=meaning)
    args: tuple[ValueArg | TensorArg, ...] = (*op.declaration.values, *op.declaration.tensors)
    for arg in args:
        if isinstance(arg, ValueArg):
            if not arg.size:
                _add_value(parser, arg.name, arg, example.values[arg.name])
        elif arg.optional:
            parser.add_argument(
                _option(arg.name), dest=arg.name, action="store_true", help="is given"
            )
        elif len(arg.dtypes) > 1 and "u8" not in _names(arg):
            name = f"{arg.name}_dtype"
            usual = f"default: {_names(arg)[0]}, or what the architecture's kernels take"
            parser.add_argument(_option(name), dest=name, choices=_names(arg), help=usual)
    parser.add_argument("--arch", default="gfx950", help="gfx950 (default), gfx942, sm_90, ...")
    parser.add_argument("--cu-num", type=int, help="compute units; default: the arch's own")


def _add_value(parser: argparse.ArgumentParser, name: str, arg: ValueArg, default: object) -> None:
    if arg.kind == "bool":
        parser.add_argument(_option(name), dest=name, action="store_true", help="default: off")
        return
    choices = _names(arg) if arg.kind == "dtype" else arg.words or None
    kind = int if arg.kind == "int" else float if arg.kind == "float" else str
    parser.add_argument(
        _option(name),
        dest=name,
        type=kind,
        choices=choices,
        default=_NAMES.get(default, default),
        help="default: %(default)s",
    )


_NAMES: dict[object, str] = {dtypes[0]: name for name, dtypes in DTYPES.items() if len(dtypes) == 1}


def _names(arg: ValueArg | TensorArg) -> list[str]:
    return [_NAMES[dtype] for dtype in arg.dtypes if dtype in _NAMES]


def _option(name: str) -> str:
    return f"--{name.lower().replace('_', '-')}"


def call_of(op: Op, options: argparse.Namespace, any_size: bool = False) -> Call:
    """The call that the options describe; with `any_size` the op itself says which it takes. Raises
    ValueError."""
    if not re.fullmatch(r"gfx\d\w+|sm_\d+", options.arch):
        raise ValueError(f"--arch {options.arch}: expected gfx950, gfx942, sm_90 or the like")
    specs = ARCH_SPECS
    if options.cu_num is None and options.arch not in specs and options.arch.startswith("gfx"):
        raise ValueError(f"--arch {options.arch}: say --cu-num too; known are {', '.join(ARCHS)}")
    arguments = vars(options)
    sizes = {name: arguments[name] for name in op.asked}
    sizes |= {name: arguments[name] for name in op.more_sizes if arguments[name] is not None}
    for arg in op.declaration.values:
        if not arg.size:
            value = arguments[arg.name]
            sizes[arg.name] = DTYPES[value][0] if arg.kind == "dtype" else value
    for name in arguments:
        if name.endswith("_dtype") and name not in sizes and arguments[name] is not None:
            sizes[name] = DTYPES[arguments[name]][0]
    sizes |= {a.name: arguments[a.name] for a in op.declaration.tensors if a.optional}
    for name, value in {**sizes, "cu_num": options.cu_num}.items():
        if any_size and name in op.asked:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{_option(name)} {value}: expected 1 or more")
    c = op.call_of(options.arch, options.cu_num, **sizes)
    op.check_sizes(c)
    return c


def main(name: str, arguments: list[str]) -> int:
    """Print which kernel takes a call of the op `name`, and why."""
    op = ops()[name]
    parser = argparse.ArgumentParser(prog=f"rfops why {name}", description=", ".join(op.kernels))
    add_call(parser, op)
    for word, choices in op.route_words.items():
        if choices:
            usual = choices[0]
            words: dict[str, Any] = {"choices": choices, "help": f"default: {usual}"}
            parser.add_argument(_option(word), dest=word, default=usual, **words)
        else:
            parser.add_argument(_option(word), dest=word, action="store_true", help="is given")
    options = parser.parse_args(arguments)
    c = call_of(op, options)
    routed = op.route_of_words(c, {word: vars(options)[word] for word in op.route_words})
    print(text(op, c) if routed is None else _text_of_words(op, c, *routed))
    return 0


def _text_of_words(op: Op, c: Call, decision: Decision, config: object) -> str:
    """The decision of a call whose words leave the op's own routes, as `text` has others."""
    refused = dict(decision.refused)
    lines = [
        ("decision", f"{decision.backend}, no HIP kernel"),
        ("config", "its own" if config is None else f"its default, {config}"),
        ("rule", decision.rule),
        ("because", decision.why),
        *((f"not {name}", reason) for name, reason in refused.items()),
    ]
    if decision.backend != "torch":
        lines.append(("not torch", "comes last"))
    return _aligned(op, c, lines)


def text(op: Op, c: Call) -> str:
    """The decision as aligned lines."""
    decision = op.route(c)
    kernel = op.kernels[decision.backend]
    config = op.parse_config(kernel, decision.config, decision.row)
    if config is None or kernel.unsupported_config_reason(c, config):
        config = kernel.default(c)
    kind = "a HIP kernel" if kernel.is_hip else "no HIP kernel"
    config_text = decision.config or (f"its default, {config}" if config is not None else "its own")
    lines = [
        ("decision", f"{decision.backend}, {kind}"),
        ("config", config_text),
        ("rule", decision.rule),
        ("because", decision.why),
    ]
    if op.table:
        lines.append(("row", str(decision.row) if decision.row else "none for this shape"))
    published = op.published(c)
    if published:
        figures = ", ".join(f"{name} {value:g}" for name, value in published[0].items())
        lines.append(("published", f"{figures}; {published[1]}"))
    lines += _predicted(op, c)
    lines += [(name, words) for name, words in kernel.notes(c, config).items()]
    for name, kernel_ in op.kernels.items():
        if name != decision.backend:
            reason = kernel_.unsupported_reason(c) or decision.refused.get(name, "comes last")
            lines.append((f"not {name}", reason))
    if kernel.is_hip:
        lines += _variant(kernel, c, config)
    return _aligned(op, c, lines)


def _aligned(op: Op, c: Call, lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    head = f"{op.name} {sizes_text(op, c)} on {c.arch} with {c.cu_num} CUs"
    return "\n".join([head, *(f"  {name.ljust(width)}  {value}" for name, value in lines)])


def _predicted(op: Op, c: Call) -> list[tuple[str, str]]:
    """The quickest variants by the op's time model, and the terms of their times."""
    if op.time_model is None:
        return []
    lines = []
    for label, (choice, terms) in zip(
        ("predicted", "next"), op.time_model.explain(c), strict=False
    ):
        factor = terms.pop("correction")
        largest = sorted(terms.items(), key=lambda pair: -pair[1])
        figures = " + ".join(f"{name} {us:.2f}" for name, us in largest if us >= _SHOWN_US)
        corrected = f" x {factor:.2f}" if abs(factor - 1) >= _SHOWN_US else ""
        setting = f"{choice.kernel} {config_text(choice.config)}".rstrip()
        lines.append((label, f"{choice.us:.2f} us by {setting}: ({figures}){corrected}"))
    return lines


_SHOWN_US = 0.005


def sizes_text(op: Op, c: Call) -> str:
    """Return the sizes that decide a call, as "m=16 n=2304": those of the table, else those that
    the op asks for."""
    pairs: Iterable[tuple[str, int]]
    if op.tuned:
        size_texts = zip(op.table, op.tuned.sizes, op.table_sizes(c), strict=True)
        pairs = [(label, c.sizes.get(name, value)) for name, label, value in size_texts]
    else:
        pairs = ((name.lower(), c.sizes[name]) for name in op.asked)
    return " ".join(f"{name}={value}" for name, value in pairs)


def _variant(kernel: Kernel, c: Call, config: object) -> list[tuple[str, str]]:
    """What the cache has of it, for tensors that lie as torch allocates them."""
    defines = kernel.defines(c, config) or {}
    module = kernel.module_of(c.arch)
    request = BuildRequest(module, c.arch, manifest.defines_of(defines), kernel.compiler_config)
    headline, *details = str(explain(request)).splitlines()
    return [("variant", headline), *(("", line.strip()) for line in details)]
