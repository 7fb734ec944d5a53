"""`rfops doctor`: what is there to build and run with. The same record as text and as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import rfops
from rfops.cli.common import declare_tables
from rfops.dispatch import tuned_table
from rfops.jit import ConfigError, settings
from rfops.jit.arch import ARCHS
from rfops.jit.build import resources, toolchain
from rfops.jit.cache import trust
from rfops.jit.cache.files import cache_root, cache_roots
from rfops.plugins import symbols, targets

_KERNEL_DRIVERS = (Path("/dev/kfd"), Path("/dev/dxg"), Path("/dev/nvidiactl"))  # AMD, WSL, NVIDIA


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    doctor = commands.add_parser("doctor", help="versions, compilers, devices, cache, settings")
    doctor.add_argument("--json", action="store_true", help="the record as JSON")
    doctor.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Exit status 0 if ops can run on this machine."""
    record = examine()
    print(json.dumps(record, indent=1) if options.json else _text(record))
    return 0 if record["ready"] else 1


def examine() -> dict[str, Any]:
    """All that decides whether ops can run, and `problems` where they cannot."""
    problems = _settings_errors()
    cache = _cache()
    compilers = {arch: _compilers("device", arch, cache) for arch in ARCHS}
    compilers["c++20"] = _compilers("host", toolchain.HOST_TARGET, cache)
    declare_tables()
    record: dict[str, Any] = {
        "rfops": rfops.__version__,
        "python": platform.python_version(),
        "torch": _torch_version(),
        "compilers": compilers,
        "devices": {**_gpus(), "virtual": settings.raw("RFOPS_VGPU_ARCH")},
        "tables": {name: _table(name) for name in tuned_table.TABLES},
        "engines": _engines(),
        "cache": cache,
        "free_memory": resources.free_memory(),
        "jobs": 0 if problems else resources.jobs(),
        "settings": {
            s.name: settings.raw(s.name) for s in settings.SETTINGS if os.environ.get(s.name)
        },
        "problems": problems,
    }
    without_hip = _without_hip(record)
    by_triton = record["devices"]["nvidia"] and importlib.util.find_spec("triton") is not None
    record["triton_alone"] = without_hip if by_triton else []
    record["problems"] += _problems(record) + ([] if by_triton else without_hip)
    record["ready"] = not record["problems"]
    return record


def _compilers(kind: str, target: str, cache: dict[str, Any]) -> list[dict[str, Any]]:
    """The candidates until one is taken, with the reason for those that are not."""
    compilers: list[dict[str, Any]] = []
    if _untrusted(cache):
        return [{"ok": False, "where": "not asked, as the cache that knows them is not trusted"}]
    for compiler, origin in toolchain.survey(kind, target):
        if compiler is not None:
            path = compiler.argv[0]
            return [
                *compilers,
                {"ok": True, "where": origin, "version": compiler.headline, "path": path},
            ]
        compilers.append({"ok": False, "where": origin})
    return compilers


def _table(name: str) -> dict[str, Any]:
    """What a tuned table holds, and its conflicts; or why it cannot be read."""
    try:
        table = tuned_table.TABLES[name].load()
    except ConfigError as error:
        return {"ok": False, "error": str(error)}
    conflicts = [str(conflict) for conflict in table.conflicts]
    return {"ok": True, "rows": dict(table.origins()), "conflicts": conflicts}


def _torch_version() -> str:
    """Asked of what is installed: importing torch takes a second."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # run from where it was built
        import torch

        return str(torch.__version__)


def _gpus() -> dict[str, list[str]]:
    """AMD's by their architecture; NVIDIA's, for which ops have Triton kernels, by their names."""
    none: dict[str, list[str]] = {"gpus": [], "nvidia": []}
    if "torch" not in sys.modules and not any(map(Path.exists, _KERNEL_DRIVERS)):
        return none
    import torch

    if not torch.cuda.is_available():
        return none
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if torch.version.hip:
        return {**none, "gpus": [str(gpu.gcnArchName) for gpu in gpus]}
    return {**none, "nvidia": [f"{one.name} (sm_{one.major}{one.minor})" for one in gpus]}


def _engines() -> dict[str, dict[str, Any]]:
    """vLLM and SGLang: whether each is there, what is wrapped in it, and why nothing is."""
    has_aiter = targets.is_there("aiter")
    engines: dict[str, dict[str, Any]] = {}
    for name in ("vllm", "sglang"):
        version = _version(name)
        wrapped, reason = _wrapped(name, has_aiter) if version else ([], "not installed")
        absent = ((target, symbols.missing(target)) for target in wrapped if "." in target)
        missing = [f"{target}: {text}" for target, text in absent if text]
        engines[name] = {
            "version": version,
            "aiter": has_aiter,
            "wraps": wrapped,
            "why": reason,
            "missing": missing,
        }
    return engines


def _wrapped(engine: str, has_aiter: bool) -> tuple[list[str], str]:
    """The callees that its plugin wraps, and why not all."""
    try:
        groups = targets.selected_groups()
    except ConfigError as error:
        return [], str(error)
    if not groups:
        return [], "RFOPS_PLUGIN=off"
    if "rocm" not in _torch_version():
        return [], "torch is not ROCm's"
    targets_known = (targets.AITER if has_aiter else {}) | (
        targets.VLLM if engine == "vllm" else {}
    )
    reason = "" if has_aiter else "aiter is not installed"
    backends = (
        [targets.VLLM_BACKEND] if engine == "vllm" and not has_aiter and "mla" in groups else []
    )
    return [target for target, group in targets_known.items() if group in groups] + backends, reason


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cache() -> dict[str, Any]:
    roots = cache_roots()
    trusted = [trust.describe(root) for root in roots]
    builders = () if _untrusted({"trust": trusted}) else ("device", "host")
    entries = {
        arch: sum(len(list(root.glob(f"{arch}/*/*/meta.json"))) for root in roots)
        for arch in (*ARCHS, "host")
    }
    vgpu = any(next(root.glob("host/vgpu/*/meta.json"), None) for root in roots)
    return {
        "path": str(cache_root()),
        "writable": _writable(cache_root()),
        "free": resources.free_disk(cache_root()),
        "read": [str(root) for root in roots[1:]],
        "entries": entries,
        "virtual_gpu": vgpu,
        "trust": trusted,
        "launcher": any(next(root.glob("host/launcher/*/meta.json"), None) for root in roots),
        "compilers": [t.headline for kind in builders for t in toolchain.recorded_compilers(kind)],
    }


def _untrusted(cache: dict[str, Any]) -> list[str]:
    return [root["why"] for root in cache["trust"] if root["why"]]


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _settings_errors() -> list[str]:
    errors = []
    for setting in settings.SETTINGS:
        try:
            if setting.kind in ("int", "seconds"):
                settings.number(setting.name)
            else:
                settings.text(setting.name)
        except ConfigError as error:
            errors.append(str(error))
    return errors


def _without_hip(record: dict[str, Any]) -> list[str]:
    """Why HIP kernels can run neither on a GPU nor on the virtual GPU."""
    cache, reasons = record["cache"], []
    can = {target: any(c["ok"] for c in list_) for target, list_ in record["compilers"].items()}
    if not any(can[arch] for arch in ARCHS) and not _is_filled(cache):
        reasons.append("no compiler for AMD GPUs, and nothing is cached")
    if not record["devices"]["gpus"] and not can["c++20"] and not cache["virtual_gpu"]:
        reasons.append("no AMD GPU, and no C++ compiler to build the virtual GPU")
    return reasons


def _is_filled(cache: dict[str, Any]) -> bool:
    return any(cache["entries"][arch] for arch in ARCHS)


def _problems(record: dict[str, Any]) -> list[str]:
    cache, problems = record["cache"], []
    library = settings.path("RFOPS_HIP_LIBRARY")
    if library is not None and not library.is_file():
        problems.append(f"RFOPS_HIP_LIBRARY={library}: no such file")
    problems += _untrusted(cache)
    if not cache["writable"] and not _is_filled(cache):
        problems.append("the cache is not writable, and has nothing")
    for name, table in record["tables"].items():
        if not table["ok"]:
            problems.append(f"tuned table {name}: {table['error']}")
    return problems


def _text(record: dict[str, Any]) -> str:
    versions = f"Python {record['python']}, torch {record['torch']}"
    lines = [f"rfops {record['rfops']}, {versions}"]
    for target, candidates in record["compilers"].items():
        lines.append(f"compiler for {target}:")
        for c in candidates:
            details = f": {c['version']}, {c['path']}" if c["ok"] else ""
            lines.append(f"  {'yes' if c['ok'] else 'no '}  {c['where']}{details}")
    gpus = [f"{i}: {name}" for i, name in enumerate(record["devices"]["gpus"])]
    gpus += [f"{i}: {name}, by Triton" for i, name in enumerate(record["devices"]["nvidia"])]
    virtual = f"virtual GPU {record['devices']['virtual']} (CPU tensors)"
    lines.append("devices: " + "; ".join([*gpus, virtual]))
    for name, table in record["tables"].items():
        lines += _table_text(name, table)
    lines += [_engine_text(name, engine) for name, engine in record["engines"].items()]
    cache = record["cache"]
    state = "writable" if cache["writable"] else "NOT writable"
    counts = ", ".join(f"{count} {arch}" for arch, count in cache["entries"].items())
    lines.append(f"cache: {cache['path']} ({state}, {resources.megabytes(cache['free'])} free)")
    lines += [f"  read only behind it: {path}" for path in cache["read"]]
    for t in filter(lambda t: t["owner"], cache["trust"]):
        lines.append(f"  {t['path']}: of {t['owner']}, mode {t['mode']}, trusted: {t['trusted']}")
    lines.append(f"  entries: {counts}")
    lines.append(f"launches: {'native' if cache['launcher'] else 'ctypes, until it is built'}")
    free = resources.megabytes(record["free_memory"])
    lines.append(f"compilers at once: {record['jobs']} ({free} of memory free)")
    lines.append("settings in force:")
    lines += [f"  {name}={value}" for name, value in record["settings"].items()]
    lines += [f"problem: {problem}" for problem in record["problems"]]
    lines += [f"no HIP kernels: {reason}" for reason in record["triton_alone"]]
    by_triton = "; on this GPU by Triton" if record["devices"]["nvidia"] else ""
    lines.append(f"ops can run{by_triton}" if record["ready"] else "ops can NOT run: see above")
    return "\n".join(lines)


def _engine_text(name: str, engine: dict[str, Any]) -> str:
    if not engine["version"]:
        return f"plugin of {name}: {name} is not installed"
    head, reason = f"plugin of {name} {engine['version']}", engine["why"]
    if not engine["wraps"]:
        return f"{head}: nothing wrapped ({reason})"
    count = f"{len(engine['wraps'])} callees wrapped" + (f" ({reason})" if reason else "")
    lines = [f"{head}: {count}; at exit it says how many engaged"]
    return "\n".join(
        [*lines, *(f"  not found in its source: {target}" for target in engine["missing"])]
    )


def _table_text(name: str, table: dict[str, Any]) -> list[str]:
    if not table["ok"]:
        return [f"tuned table {name}: NOT readable: {table['error']}"]
    origins = ", ".join(f"{count} {origin}" for origin, count in table["rows"].items())
    count = f"{len(table['conflicts'])} conflicts"
    head = f"tuned table {name}: {origins or 'no'} rows, {count}"
    return [head, *(f"  conflict: {conflict}" for conflict in table["conflicts"])]
