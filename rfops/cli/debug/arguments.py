"""A kernel's arguments: their values from the launch, their names and types from Triton or from the
kernel's source. HIP's code objects name none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Types as Triton and HIP name them, without the * of a pointer.
_TYPES = {
    "fp16": "f16", "half": "f16", "__half": "f16", "_Float16": "f16", "fp32": "f32",
    "float": "f32", "fp64": "f64", "double": "f64", "__bf16": "bf16", "__hip_bfloat16": "bf16",
    "hip_bfloat16": "bf16", "fp8e4nv": "fp8", "fp8e4b8": "fp8", "fp8e5": "bf8", "fp8e5b16": "bf8",
    "int": "i32", "unsigned": "u32", "unsigned int": "u32", "int32_t": "i32", "uint32_t": "u32",
    "long": "i64", "size_t": "u64", "unsigned long": "u64", "int64_t": "i64", "uint64_t": "u64",
    "char": "i8", "unsigned char": "u8", "int8_t": "i8", "uint8_t": "u8", "short": "i16",
    "unsigned short": "u16", "int16_t": "i16", "uint16_t": "u16", "bool": "u8", "i1": "u8",
}  # fmt: skip
_TYPES |= {name: name for name in ("f16", "bf16", "f32", "f64")}
_TYPES |= {f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_QUALIFIER = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict)\b")


@dataclass(frozen=True)
class Argument:
    """A kernel's argument. `value` is None for one that is larger than eight bytes."""

    index: int
    name: str
    size: int
    is_pointer: bool
    value: int | None
    type: str  # of the value, or of what it points to; empty if unknown


def arguments(event: Mapping[str, Any], kernel: str, files: Sequence[str]) -> list[Argument]:
    """The arguments of an announced launch; one of the files may have the kernel's source."""
    rows, kernarg = event["args"], bytes.fromhex(event["kernarg"])
    declared = [_of_triton(word) for word in event["declared"].split()]
    if declared:
        rows = rows[: len(declared)]  # what Triton adds behind its own arguments is not declared
    else:
        signatures = (_of_source(kernel, file) for file in files)
        declared = next(filter(None, signatures), [])
    if len(declared) != len(rows):
        declared = [(row["name"].removesuffix(".coerce"), "", None) for row in rows]
    args = []
    for index, (row, (name, kind, is_pointer)) in enumerate(zip(rows, declared, strict=True)):
        begin, size = row["offset"], row["size"]
        value = int.from_bytes(kernarg[begin : begin + size], "little") if size <= 8 else None
        if is_pointer is None:
            is_pointer = row["kind"] == "global_buffer"
        args.append(Argument(index, name or f"arg{index}", size, is_pointer, value, kind))
    return args


Declared = tuple[str, str, bool | None]  # name, type, is a pointer


def _of_triton(word: str) -> Declared:
    name, _, kind = word.partition(":")
    return name, _TYPES.get(kind.lstrip("*k"), ""), kind.startswith("*")


def _of_source(kernel: str, file: str) -> list[Declared]:
    """The parameters of a kernel's definition; none if its file cannot be read."""
    try:
        text = _COMMENT.sub(" ", Path(file).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    name = kernel.rpartition("::")[2].partition("<")[0].split(" ")[-1]
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", text):
        parameters, body = _in_parentheses(text[match.end() :])
        if body.lstrip().startswith("{"):
            return [_of_parameter(p) for p in _split(parameters) if p.strip()]
    return []


def _in_parentheses(text: str) -> tuple[str, str]:
    """The text up to the parenthesis that closes, and what follows it."""
    depth = 1
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if not depth:
            return text[:position], text[position + 1 :]
    return text, ""


def _split(parameters: str) -> list[str]:
    """At the commas outside of brackets."""
    fields, depth = [""], 0
    for char in parameters:
        depth += (char in "(<[{") - (char in ")>]}")
        if char == "," and not depth:
            fields.append("")
        else:
            fields[-1] += char
    return fields


def _of_parameter(parameter: str) -> Declared:
    text = _QUALIFIER.sub(" ", parameter.partition("=")[0])
    *words, name = re.findall(r"[\w:<>]+", text) or [""]
    return name, _TYPES.get(" ".join(words), ""), True if "*" in text else None
