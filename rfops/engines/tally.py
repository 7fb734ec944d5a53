"""Which calls of an engine rfops' kernels computed, which the engine's Triton kernels (simulated
too) and which torch: counted in each process, written when it ends, read by `rfops run`."""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing.util
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rfops.jit import settings

RFOPS, TRITON, TORCH = "rfops", "triton", "torch"
_TITLES = {
    RFOPS: "by rfops",
    TRITON: "by the engine's Triton kernels, launches on the virtual GPU",
    TORCH: "by torch, in the place of compiled ops",
}
_VLLM_MLA = r"triton_decode_attention\._fwd_kernel_stage2"  # SGLang's MHA has one of its name
_BLOCK_FP8 = "block_(scaled_mm|fp8_matmul)"
# Of each family: the callees of rfops' plugins, and the engine's kernel with its launches per call.
FAMILIES: Mapping[str, tuple[tuple[str, ...], str, int]] = {
    "MLA decode": (("RFOPS_MLA", "decode_attention_fwd", "mla_decode"), _VLLM_MLA, 1),
    "experts": (("MoEMethod", "fused_moe.fused_moe"), r"fused_moe_kernel|\._matmul_ogs$", 2),
    "FP8 linears": (("gemm_a8w8_blockscale", "Fp8BlockScaledMM", "fp8_bs_linear"), _BLOCK_FP8, 1),
}

_counts: dict[str, Counter[str]] = {RFOPS: Counter(), TRITON: Counter(), TORCH: Counter()}
_steps: list[tuple[int, float]] = []  # tokens of each, and the model's us at its beginning
_engine = ""


def start(engine: str, release: str) -> None:
    """Count from now on, and write what was counted when this process ends."""
    global _engine
    _engine = f"{engine} {release}"
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_write)
    # A forked child of multiprocessing ends without atexit's functions.
    multiprocessing.util.register_after_fork(
        _write, lambda write: multiprocessing.util.Finalize(None, write, exitpriority=0)
    )


def count_steps(owner: Any, method: str, tokens: Callable[[Any], int]) -> None:
    """Note when this method of a class begins a step, with the tokens of its first argument. What
    was counted is written behind each step: an engine may kill its processes at the end."""
    run = getattr(owner, method)

    @functools.wraps(run)
    def step(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        from rfops.vgpu import modelled_ms

        _steps.append((tokens(batch), 1000 * modelled_ms()))
        try:
            return run(self, batch, *args, **kwargs)
        finally:
            _write()

    setattr(owner, method, step)


def write_when_terminated() -> None:
    """Let SIGTERM write what was counted and end this process, which its engine would kill."""

    def end(_signal: int, _frame: object) -> None:
        _write()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)


def _forget() -> None:
    for counts in _counts.values():
        counts.clear()
    _steps.clear()


def counted(place: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, each of whose calls counts."""
    counts = _counts[place]

    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return function(*args, **kwargs)

    return counting


def count_triton() -> None:
    """Count launches of Triton kernels that are not rfops' own."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def counting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup") and not kernel.fn.__module__.startswith("rfops."):
            _counts[TRITON][f"{kernel.fn.__module__}.{kernel.fn.__name__}"] += 1
        return run(kernel, *args, **kwargs)

    JITFunction.run = counting


# ---------------------------------------------------------------- between processes


def _write() -> None:
    from rfops.plugins.wrapper import CALLEES

    folder = settings.path("RFOPS_VGPU_REPORT")
    if folder is None or not folder.is_dir():
        return
    plugins = {c.target: [c.engaged, dict(c.left)] for c in CALLEES if c.engaged or c.left}
    record = {"engine": _engine, "counts": _counts, "plugins": plugins, "steps": _steps}
    file = folder / f"engine-{os.getpid()}.json"
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(record), encoding="utf-8")
    unfinished.replace(file)


def report(folder: Path) -> str:
    """What all processes of a run counted, as text; "" where no engine ran."""
    records = [json.loads(f.read_text(encoding="utf-8")) for f in folder.glob("engine-*.json")]
    if not records:
        return ""
    total = {place: Counter[str]() for place in _TITLES}
    left: Counter[str] = Counter()
    for record in records:
        for place, counts in record["counts"].items():
            total[place].update(counts)
        for target, (engaged, declined) in record["plugins"].items():
            total[RFOPS].update({target: engaged} if engaged else {})
            left.update({f"{target}: {reason}": count for reason, count in declined.items()})
    lines = [f"engine {records[0]['engine']}: calls"]
    for place, title in _TITLES.items():
        lines += _table(title, total[place])
    lines += _table("left by rfops' plugin to the engine, with the reason", left)
    lines += ["by rfops: " + ", ".join(shares)] if (shares := _shares(total, left)) else []
    return "\n".join(lines)


def _table(title: str, counts: Counter[str]) -> list[str]:
    rows = [f"  {count:8d}  {name}" for name, count in counts.most_common()]
    return [f" {title}:", *rows] if rows else []


def share(
    counts: Mapping[str, Counter[str]], left: Mapping[str, int], family: str
) -> tuple[int, int]:
    """Calls of a family that rfops computed, and all of them: where the plugin left a call of
    aiter's, no kernel of the engine's own is counted."""
    callees, kernel, per_call = FAMILIES[family]
    own = sum(n for name, n in counts[RFOPS].items() if any(c in name for c in callees))
    launches = counts[TRITON].items()
    engines = sum(-(-n // per_call) for name, n in launches if re.search(kernel, name))
    declined = sum(
        n
        for name, n in left.items()
        if name.startswith("aiter.") and any(c in name.partition(":")[0] for c in callees)
    )
    return own, own + engines + declined


def _shares(counts: Mapping[str, Counter[str]], left: Mapping[str, int]) -> list[str]:
    shares = ((family, *share(counts, left, family)) for family in FAMILIES)
    return [f"{family} {own} of {all_} calls" for family, own, all_ in shares if all_]
