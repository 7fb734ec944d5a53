"""What SGLang 0.5.23 needs of a machine without a GPU, by name with the reason.

SGLang's own Engine, scheduler and model runner work with device "cuda" of `rfops run`, and rfops'
importable aiter is AMD's. In their places:
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rfops.compat import aiter
from rfops.jit import settings
from rfops.later import when_imported
from rfops.plugins.targets import is_there

from . import sglang_ops, standins, tally

# Set unless the user has: each with its reason.
_ENVIRONMENT = {
    "SGLANG_USE_AITER": "1",  # rfops computes aiter's functions
    "SGLANG_AITER_FP8_PREFILL_ATTN": "0",  # compiled; the other is torch's in rfops' aiter
    # The other makes tensors for CUDA in C++, where "cuda" is not the host's.
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
}
_MEMORY_MIB = {"gfx942": 192 << 10, "gfx950": 288 << 10}  # MI300X, MI355X
_TELL_S = 5.0  # for processes to write what they counted


def activate() -> None:
    """Put all of it in place, before any of SGLang's code runs."""
    standins.pose_as_rocm(_ENVIRONMENT)
    if aiter.real_aiter() is None:
        _serve_aiter()
    standins.absent(sglang_ops.SGL_KERNEL)  # that of a wheel is built for CUDA
    _without_torchvision()
    tally.count_triton()
    when_imported("sglang.srt.entrypoints.engine", _processes)
    when_imported("sglang.srt.utils.common", _common)
    when_imported("sglang.srt.platforms.rocm", _platform)
    when_imported("sglang.srt.managers.scheduler", _scheduler)
    when_imported("sglang.kernels.ops.attention.clamp_position", _clamp_position)


def _serve_aiter() -> None:
    """aiter, which is in no wheel: rfops', and what SGLang asks for beside."""
    aiter.install()
    standins.absent(sglang_ops.AITER_MODULES)
    vars(importlib.import_module("aiter")).update(sglang_ops.AITER_NAMES)


def _without_torchvision() -> None:
    """It is built for one torch, and configs of models with images import it."""
    if is_there("torchvision"):
        return
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # it remembers that there is none, and asks for nothing of it
    standins.absent({"torchvision": {}})


def _processes(module: Any) -> None:
    """SGLang starts its scheduler and detokenizer as new Pythons, each of which imports all of it
    for a quarter of a minute: forked here."""
    fork = multiprocessing.get_context("fork")

    def process(target: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        return fork.Process(target=_run, args=(target, args))

    module.mp = SimpleNamespace(
        Process=process, Pipe=fork.Pipe, set_start_method=lambda *_, **__: None
    )


def _run(target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    tally.write_when_terminated()
    target(*args)


def _common(module: Any) -> None:
    """The memory that rocminfo says a GPU has, by which SGLang sets what it is not told; and its
    processes, which it kills, write first what they counted."""
    kill, psutil = module.kill_process_tree, module.psutil

    def kill_process_tree(
        parent_pid: int | None,
        include_parent: bool = True,
        skip_pid: int | None = None,
        **options: Any,
    ) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(parent_pid).children(recursive=True)
            children = [child for child in below if child.pid != skip_pid]
            for child in children:
                child.terminate()
            psutil.wait_procs(children, timeout=_TELL_S)
        kill(parent_pid, include_parent, skip_pid, **options)

    module.kill_process_tree = kill_process_tree
    module.get_amdgpu_memory_capacity = lambda: _MEMORY_MIB[settings.text("RFOPS_VGPU_ARCH")]


def _scheduler(module: Any) -> None:
    """Whose steps are timed."""
    tally.count_steps(module.Scheduler, "run_batch", _tokens)


def _tokens(batch: Any) -> int:
    return int(batch.extend_num_tokens) if batch.forward_mode.is_extend() else len(batch.reqs)


def _platform(module: Any) -> None:
    """No NCCL."""
    module.RocmSRTPlatform.get_torch_distributed_backend_str = lambda _platform: "gloo"


def _clamp_position(module: Any) -> None:
    """SGLang's own form in torch: its kernel's launcher wants hipcc and the headers of ROCm."""
    module._CLAMP_POSITION._forward_method = module._CLAMP_POSITION.forward_native
