"""`rfops submit`: the files that it writes pass the evaluator's checks, and take nothing of
rfops."""

from __future__ import annotations

import ast
import base64
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rfops.challenge import inline, problem
from rfops.challenge.entries import ROWS
from rfops.challenge.evaluate import evaluate, refusal_of
from rfops.challenge.problem import Case, Problem, case_of
from rfops.challenge.record import ArgPlace, _Names, recording, unreal
from rfops.challenge.submit import FORBIDDEN, FORMS, _code_text, _reworded, generate
from rfops.challenge.verdict import Limits
from rfops.cli import main
from rfops.jit import vgpu_library_folder
from rfops.jit.launch import bind

KNOWN = {
    "base64",
    "collections",
    "ctypes",
    "functools",
    "os",
    "pathlib",
    "re",
    "struct",
    "task",
    "torch",
    "typing",
}
# A process in which nobody can import rfops: argument 1 is an entry, 2 a file of inputs; 3 gets the
# results.
ALONE = """
import sys, types
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rfops", "jit"):
            raise ImportError("rfops is not here")
sys.meta_path.insert(0, Nobody())
import torch
task = sys.modules["task"] = types.ModuleType("task")
task.input_t = task.output_t = object
class Any:
    def __init__(self, fields):
        vars(self).update(fields)
module, found = {}, []
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), module)
for data in torch.load(sys.argv[2], weights_only=True):
    data = [Any(part["fields"]) if isinstance(part, dict) and "fields" in part else part
            for part in data]
    result = module["custom_kernel"](tuple(data))
    result = result if isinstance(result, tuple) else (result,)
    found.append([tensor.clone() for tensor in result])
assert not [name for name in sys.modules if name.partition(".")[0] == "rfops"]
torch.save(found, sys.argv[3])
"""


def small(of: Problem) -> Case:
    return of.shrink(of.tests[0])


def entry(folder: Path, of: Problem, form: str, cases: list[Case]) -> Path:
    file = folder / f"{of.name}_{form}.py"
    file.write_text(generate(of, form, cases, "a test"), encoding="utf-8")
    return file


def plain(part: Any) -> Any:
    """Objects of classes of rfops as their fields."""
    if isinstance(part, torch.nn.Module):
        return {"fields": {**dict(part.named_buffers()), "seq_len": part.seq_len}}
    return {"fields": vars(part)} if hasattr(part, "n_heads") else part


@pytest.mark.thin(7)
@pytest.mark.parametrize("name", ROWS)
def test_an_entry_passes_where_rfops_is_not(name: str, tmp_path: Path) -> None:
    """Two calls: other values, and scratch memory that the first has left."""
    of = problem(name)
    case = small(of)
    file = entry(tmp_path, of, "module", [case])
    seeds = case["seed"], case["seed"] + 1
    inputs = [[plain(part) for part in of.generate({**case, "seed": seed})] for seed in seeds]
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "alone.py").write_text(ALONE, encoding="utf-8")
    words = [sys.executable, "alone.py", str(file), "inputs.pt", "results.pt"]
    folder = str(vgpu_library_folder())
    env = {**os.environ, "RFOPS_VGPU_ARCH": of.arch, "LD_LIBRARY_PATH": folder}
    completed = subprocess.run(
        words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    for seed, result in zip(seeds, results, strict=True):
        data = of.generate({**case, "seed": seed})
        actual = result[0] if len(result) == 1 else tuple(result)
        expected = of.reference(data)
        assert not of.official(expected, actual) and not of.strict(data, actual, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_plain_python_and_twice_the_same(name: str, form: str) -> None:
    if form != "load_inline" and name != "amd-mixed-mla":
        return  # which differs in its last part alone
    of = problem(name)
    cases = [small(of)]
    text = generate(of, form, cases, "a test")
    assert text == generate(of, form, cases, "a test")
    assert not refusal_of(text) and max(map(len, text.splitlines())) <= 110
    assert text.startswith(f"#!POPCORN leaderboard {name}\n#!POPCORN gpus ")
    assert "of rfops 0." in text[:300] and "Written by `a test`" in text[:400]
    imported = {
        result.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for result in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)]
        )
    }
    assert imported <= KNOWN, imported - KNOWN


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ROWS)
def test_a_load_inline_file_compiles_for_the_host_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels, without torch's headers, which take ten times as long: the engine builds for
    the device alone, where more is allowed (a struct in LDS can be assigned)."""
    of = problem(name)
    file = entry(tmp_path, of, "load_inline", [small(of), *of.benchmarks])
    results: list[tuple[str, list[str]]] = []

    def take(_name: str, texts: tuple[str, str], flags: tuple[list[str], list[str]]) -> Path:
        results.append((texts[1], flags[1]))
        raise inline.CannotBuild("taken")

    monkeypatch.setattr(inline, "_library", take)
    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", inline.load_inline)
    monkeypatch.setitem(sys.modules, "task", SimpleNamespace(input_t=object, output_t=object))
    with pytest.raises(inline.CannotBuild, match="taken"):
        runpy.run_path(str(file))
    ((text, flags),) = results
    text = text.replace("#include <torch/types.h>", "#include <cstdint>\n#define TORCH_CHECK(...)")
    kernels, torchs, _ = text.partition("#include <torch/")
    assert torchs and "__attribute__((global))" in kernels
    source = tmp_path / "kernels.hip"
    source.write_text(f"{kernels}\n#endif\n", encoding="utf-8")
    inline.check_for_host(source, flags, of.arch)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("amd-mixed-mla", "load_inline"),
        ("amd-mixture-of-experts", "module"),
        ("amd-mixture-of-experts", "packets"),
        ("amd-mxfp4-mm", "packets"),
    ],
)
def test_the_evaluator_passes_each_form(name: str, form: str, tmp_path: Path) -> None:
    of = problem(name)
    cases = [small(of), of.shrink(of.benchmarks[-1])]
    file = entry(tmp_path, of, form, cases)
    for verdict in evaluate(of, file, cases, Limits(is_trusted=True)):
        assert verdict.passes and not verdict.strict and not verdict.named, verdict
        assert verdict.us and all(us > 1 for us in verdict.us), verdict


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Official cases and reduced ones have plans, and what --case adds; the head says how."""
    file = tmp_path / "entry.py"
    case = "m: 32; n: 96; k: 256; seed: 1"
    assert main(["submit", "mxfp4-mm", "-o", str(file), "--case", case]) == 0
    text = file.read_text(encoding="utf-8")
    assert f"`rfops submit amd-mxfp4-mm --form load_inline --case '{case}'`" in text
    of = problem("mxfp4-mm")
    expected = [*of.tests, *of.benchmarks, *map(of.shrink, of.benchmarks), case_of(case)]
    for sizes in expected:
        assert f"    ({sizes['m']}, {sizes['n']}, {sizes['k']}): {{" in text
    assert main(["submit", "mxfp4-mm", "-o", str(file), "--official"]) == 0
    official = file.read_text(encoding="utf-8")
    assert "(4, 2880, 512): {" in official and "(4, 192, 512): {" not in official
    for words, says in (
        (["no-such"], "expected one of amd-fp8-mm"),
        (["fp8-mm", "--case", "m: 3"], "without k, n, seed"),
        (["fp8-mm", "--case", "m"], "NAME: NUMBER"),
    ):
        assert main(["submit", *words, "-o", str(file)]) == 1
        assert says in capsys.readouterr().err


# ---------------------------------------------------------------- what an entry refuses


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    """The part of an entry that finds plans."""
    text = generate(problem("fp8-mm"), "load_inline", [small(problem("fp8-mm"))], "a test")
    namespace: dict[str, Any] = {}
    previous = text[: text.index(f"# {'-' * 64} building")]
    exec(previous.replace("from task import input_t, output_t\n", ""), namespace)
    return namespace


def test_a_size_without_a_plan(plans: dict[str, Any]) -> None:
    data = problem("fp8-mm").generate({"m": 64, "n": 128, "k": 128, "seed": 1})
    sizes, tensors = plans["arguments"](data)
    with pytest.raises(ValueError, match=r"no plan for the sizes \(64, 128, 128\), only for \(64"):
        plans["plan_of"](sizes, tensors, plans["PLANS"], plans["KERNELS"], None)


def test_tensors_that_lie_otherwise(plans: dict[str, Any]) -> None:
    of = problem("fp8-mm")
    a, *remaining = of.generate(small(of))
    sizes, tensors = plans["arguments"]((a.contiguous(), *remaining))
    with pytest.raises(ValueError, match=r"x: strides \(128, 1\), made for \(1, 64\)"):
        plans["plan_of"](sizes, tensors, plans["PLANS"], plans["KERNELS"], None)


# ---------------------------------------------------------------- words, code, recordings


def test_the_refused_word_is_gone() -> None:
    assert _reworded("kStreamed x_stream STREAM_2") == "kFlowed x_flow FLOW_2"
    with pytest.raises(ValueError, match="x_stream cannot be called x_flow"):
        _reworded("x_stream x_flow")
    spelt = base64.b64decode("abStreAm" * 40)
    text = _code_text({"code_1": spelt})
    assert FORBIDDEN not in text.lower()
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert base64.b64decode(namespace["CODE"]["code_1"]) == spelt
    says = 'the bot refuses the file: line 2 has the word "stream"'
    assert refusal_of("x = 1\n# a hipStream_t") == says


def test_memory_in_common_is_one() -> None:
    """Scratch tensors that overlap; an input's part; what is nobody's."""
    base, x = torch.zeros(64, dtype=torch.uint8), torch.zeros(16)
    parts = base[:32], base[16:48], base[56:]

    class Op:
        parameters = [type("P", (), {"name": n, "count": 0}) for n in ("a", "b", "c", "d")]  # noqa: RUF012

    launch: Any = type("L", (), {"variant": type("V", (), {"op": Op}), "args": (*parts, x[4:])})
    names = _Names({"x": x}, [launch])
    assert names.scratch == {"a": 48, "c": 8}
    results = [names.place_of(tensor) for tensor in launch.args]
    assert results == [ArgPlace("a"), ArgPlace("a", 16), ArgPlace("c"), ArgPlace("x", 16)]


def test_a_plan_that_uses_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file would leave that out in silence."""
    row, of = ROWS["amd-mxfp4-mm"], problem("mxfp4-mm")
    case = small(of)
    kernel = row.op.kernels["stream"]
    run_of = type(kernel).variant

    def variant(self: Any, c: Any, config: Any) -> Any:
        def of_sizes(*sizes: int) -> Any:
            run = run_of(self, c, config)(*sizes)
            return lambda out, *inputs: run(out.add_(1), *inputs)

        return of_sizes

    monkeypatch.setattr(type(kernel), "variant", variant)
    tensors = unreal(lambda: row.arguments(of.generate(case))[1])
    with recording(of.arch) as record, pytest.raises(ValueError, match=r"aten.add_"):
        record(tensors, row.op, lambda: row.call(tensors, None))
    assert getattr(bind._override, "make", None) is None, "the recording goes on"


def test_an_op_without_a_hip_kernel_is_refused() -> None:
    row, of = ROWS["amd-fp8-mm"], problem("fp8-mm")
    tensors = unreal(lambda: row.arguments(of.generate(small(of)))[1])
    tensors["x"] = torch.empty(1 << 16, dtype=tensors["w"].dtype).as_strided((64, 128), (512, 2))
    with recording(of.arch) as record, pytest.raises(ValueError, match="no HIP"):
        record(tensors, row.op, lambda: row.call(tensors, None))


def test_an_entry_that_imports_rfops(tmp_path: Path) -> None:
    file = tmp_path / "entry.py"
    file.write_text("def custom_kernel(data):\n    from rfops.gemm import x\n", encoding="utf-8")
    of = problem("fp8-mm")
    (verdict,) = evaluate(of, file, [small(of)], Limits(is_trusted=True))
    assert "imports rfops, which the competition's machine has not" in verdict.error
