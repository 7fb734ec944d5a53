"""What vLLM 0.33 needs of a machine without a GPU, by name with the reason.

vLLM's own GPU worker and model runner work with device "cuda" of `rfops run`. In their places:
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from rfops.jit import settings
from rfops.later import when_imported

from . import standins, tally

# Set unless the user has: each with its reason.
_ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # its kernels prepare inputs on streams of their own
    "VLLM_ROCM_USE_SKINNY_GEMM": "0",  # compiled for ROCm: vllm._rocm_C, in no wheel
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1",  # a second stream computes nothing sooner here
    "VLLM_NO_USAGE_STATS": "1",
}
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts"
_DEVICE_IDS = {"gfx942": "0x74a1", "gfx950": "0x75a0"}  # MI300X, MI355X


def activate() -> None:
    """Put all of it in place. None of vLLM's code has run."""
    standins.pose_as_rocm(_ENVIRONMENT)
    sys.modules["amdsmi"] = _amdsmi()
    # Of a wheel it wants libcuda, and is asked for at each shutdown: as where it is not compiled.
    sys.modules["vllm.cumem_allocator"] = None  # type: ignore[assignment]
    tally.count_triton()
    when_imported("vllm.platforms.rocm", _platform)
    when_imported("vllm.model_executor.models.registry", _registry)
    when_imported("vllm.v1.worker.gpu_model_runner", _runner)
    when_imported("vllm.model_executor.warmup.kernel_warmup", _warmup)
    when_imported(f"{_EXPERTS}.ocp_mx_emulation_moe", _quark)


def _amdsmi() -> ModuleType:
    """AMD's library of devices, by which vLLM finds its platform, architecture and memory."""
    module = ModuleType("amdsmi")
    module.__spec__ = importlib.machinery.ModuleSpec("amdsmi", None)
    arch = settings.text("RFOPS_VGPU_ARCH")
    info = {
        "target_graphics_version": arch,
        "device_id": _DEVICE_IDS[arch],
        "market_name": "virtual GPU",
    }
    values = {
        "AmdSmiException": type("AmdSmiException", (Exception,), {}),
        "AmdSmiMemoryType": SimpleNamespace(VRAM=0),
        "amdsmi_init": lambda *_: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: [0],
        "amdsmi_get_gpu_asic_info": lambda _handle: info,
        "amdsmi_get_gpu_device_uuid": lambda _handle: "0",
        "amdsmi_get_gpu_memory_total": lambda *_: torch.cuda.mem_get_info()[1],
        "amdsmi_topo_get_link_type": lambda *_: {"hops": 1, "type": 2},
        "amdsmi_topo_get_numa_node_number": lambda _handle: 0,
    }
    vars(module).update(values)
    return module


def _platform(module: Any) -> None:
    """vLLM's ROCm platform, but for what is compiled."""

    class VirtualPlatform(module.RocmPlatform):  # type: ignore[misc]
        dist_backend = "gloo"  # no NCCL

        @classmethod
        def import_kernels(cls) -> None:
            """Of compiled extensions what vllm_ops.py has."""
            from . import vllm_ops

            standins.define(vllm_ops.OPS)

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            """All memory is the host's."""
            return False

        @classmethod
        def device_count(cls) -> int:
            """CUDA_VISIBLE_DEVICES, which vLLM counts, is empty in `rfops run`."""
            return 1

        @classmethod
        def get_valid_backends(cls, *args: Any, **options: Any) -> Any:
            """Without ROCM_ATTN, whose paged attention and cache write are compiled."""
            valid, reasons = super().get_valid_backends(*args, **options)
            return [entry for entry in valid if entry[0].name != "ROCM_ATTN"], reasons

        @classmethod
        def get_mla_prefill_backend_cls(cls, mla_selector_config: Any) -> Any:
            """vLLM's own of torch: those for ROCm are compiled (flash-attn, aiter)."""
            from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

            return MLAPrefillBackendEnum.CPU.get_class()

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            """Of one process: CudaCommunicator wants NCCL."""
            return (
                "vllm.distributed.device_communicators.base_device_communicator."
                "DeviceCommunicatorBase"
            )

        @classmethod
        def use_custom_allreduce(cls) -> bool:
            """It is compiled."""
            return False

    module.RocmPlatform = VirtualPlatform


def _registry(module: Any) -> None:
    """vLLM looks at a model's class in another process, lest CUDA is initialised in this one:
    nothing is initialised here, and the process takes twenty seconds."""
    module._run_in_subprocess = lambda function: function()


def _runner(module: Any) -> None:
    """Whose steps are timed."""
    tally.count_steps(
        module.GPUModelRunner, "execute_model", lambda output: output.total_num_scheduled_tokens
    )


def _warmup(module: Any) -> None:
    """It compiles kernels ahead by running them: simulated, that costs more than it saves, and it
    imports models that want torchvision."""
    module.kernel_warmup = lambda _worker: None


def _quark(module: Any) -> None:
    """vLLM takes MXFP4 experts without aiter only where amd-quark is installed, to dequantise them
    if nobody computes them: rfops' plugin does, and where it does not, the import fails."""
    module.has_quark = lambda: True
