"""No kernel of ours has a place where the wheel's clang is known to go wrong.

clang 22.1.8 turns `F16x2{x, -0.0}` into `x & 0xffff` at every level: the sign of the constant half
is lost. The machine code does not show it, the optimised LLVM IR does.

`__builtin_bit_cast(u32, v[2])` of a vector's element, `v.z` too, casts element 0 (issue 219531 of
llvm-project); the AST says which operands are elements. A copy in a variable is cast right.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from rfops.cli.build import variants
from rfops.cli.common import declared_ops
from rfops.jit.build import toolchain
from rfops.jit.build.recipe import device_unit
from rfops.jit.build.spec import module_spec
from rfops.jit.policy.manifest import BuildRequest
from support.vgpu.cases import ARCHS

_ELEMENT = "vectorcomponent"  # the AST's word for an lvalue that is one
_CAST_OF_ELEMENT = re.compile(
    rf"^.*BuiltinBitCastExpr .*\n(?:.*ParenExpr .*\n)*.*\b{_ELEMENT}\b.*$", re.M
)
_MINUS_ZERO = re.compile(r"^.*insertelement .*\bhalf 0xH8000\b.*$", re.M)


def _wanted() -> list[BuildRequest]:
    """Variants of each module that together have each architecture and each value of a define: a
    constant is in the source, and no variant has another than one of its defines lets in."""
    results, recorded_calls = [], set()
    for module in dict.fromkeys(op.module for op in declared_ops()):
        for expected in variants(module_spec(module), ARCHS, ()):
            has = {(module, "", expected.arch), *((module, *define) for define in expected.defines)}
            if expected.arch in ARCHS and not has <= recorded_calls:
                results.append(expected)
                recorded_calls |= has
    return results


def _clang(arch: str) -> toolchain.Toolchain:
    results = [t for t in toolchain.usable("device", arch) if t.name != "hipcc"]
    assert results, "the wheel's clang is not installed: pip install ziglang"
    return results[0]


def _compile(argv: Sequence[str], folder: Path, *options: str) -> str:
    """What clang prints."""
    completed = subprocess.run(
        [*argv, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[:4000]
    return completed.stdout


def _ir(argv: Sequence[str], folder: Path) -> str:
    _compile(argv, folder, "-emit-llvm")
    return (folder / "module.s").read_text()


def _ast(argv: Sequence[str], folder: Path) -> str:
    options = "-fsyntax-only", "-Xclang", "-ast-dump", "-fno-color-diagnostics"
    return _compile(argv, folder, *options)


def _name(wanted: list[BuildRequest], number: int) -> str:
    """A name that another module's builds do not change, as quick.jsonl has it."""
    kind = wanted[number].module, wanted[number].arch
    before = sum((w.module, w.arch) == kind for w in wanted[:number])
    return "-".join(kind) + f"-{before}"


WANTED = _wanted()


@pytest.mark.thin(23)
@pytest.mark.parametrize("expected", WANTED, ids=[_name(WANTED, n) for n in range(len(WANTED))])
def test_no_kernel_has_a_known_fault(expected: BuildRequest, tmp_path: Path) -> None:
    spec = module_spec(expected.module)
    unit = device_unit(spec, expected.arch, dict(expected.defines), _clang(expected.arch))
    argv = unit.argv(unit.commands[0])
    result = _MINUS_ZERO.findall(_ir(argv, tmp_path))
    result += _CAST_OF_ELEMENT.findall(_ast(argv, tmp_path))
    assert not result, f"{expected.module}: {result[:4]}"


def _argv(name: str) -> list[str]:
    options = "-x hip --cuda-device-only --offload-arch=gfx950 -nogpuinc -nogpulib -O2 -S"
    return [*_clang("gfx950").argv, *options.split(), name, "-o", "module.s"]


def test_the_search_finds_such_a_pair(tmp_path: Path) -> None:
    (tmp_path / "pair.hip").write_text("""
        typedef _Float16 Pair __attribute__((ext_vector_type(2)));
        extern "C" __attribute__((global)) void pair(Pair* out, const _Float16* in) {
          out[0] = Pair{in[0], (_Float16)-0.0};
        }""")
    assert _MINUS_ZERO.search(_ir(_argv("pair.hip"), tmp_path))


@pytest.mark.parametrize(
    ("operand", "is_element"),
    [("v[2]", True), ("(v.z)", True), ("in->w", True), ("v", False), ("row[2]", False)],
)
def test_the_search_finds_such_a_cast(operand: str, is_element: bool, tmp_path: Path) -> None:
    """In a template too, whose argument alone says that it is a vector."""
    (tmp_path / "cast.hip").write_text(f"""
        typedef unsigned Four __attribute__((ext_vector_type(4)));
        typedef float Floats __attribute__((ext_vector_type(4)));
        template <class To, class Vec>
        __attribute__((device)) void cast(To* out, const Vec* in, const float* row) {{
          const Vec v = *in;
          *out = __builtin_bit_cast(To, {operand});
        }}
        extern "C" __attribute__((global)) void k(unsigned* word, Four* words, const Floats* in) {{
          const float row[4] = {{}};
          cast({"words" if operand == "v" else "word"}, in, row);
        }}""")
    assert bool(_CAST_OF_ELEMENT.search(_ast(_argv("cast.hip"), tmp_path))) == is_element
