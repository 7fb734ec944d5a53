"""What has another name now is found by its old name too: modules, because config classes are
imported from the modules of their kernels, and methods that ops outside of rfops have."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# By folder: the old names in its package, each with the new one in the folder.
MOVED = {
    "gemm.kernels.a8w8": {
        "a8w8_launch": "launch",
        "a8w8_layout": "layout",
        "a8w8_pingpong": "pingpong",
        "a8w8_staged": "staged",
        "a8w8_stream": "stream",
        "a8w8_tiles": "tiles",
        "a8w8_triton": "triton",
        "a8w8_triton_kernels": "triton_kernels",
    },
    "gemm.kernels.a16w8": {
        "a16w8_config": "config",
        "a16w8_staged": "staged",
        "a16w8_triton": "triton",
        "a16w8_kernels": "triton_kernels",
    },
    "gemm.kernels.mxfp4": {
        "mxfp4_deep": "deep",
        "mxfp4_launch": "launch",
        "mxfp4_loop": "loop",
        "mxfp4_prepare": "prepare",
        "mxfp4_stream": "stream",
        "mxfp4_tiles": "tiles",
        "mxfp4_triton": "triton",
        "mxfp4_triton_kernels": "triton_kernels",
    },
    "gemm.kernels.mxfp8": {
        "mxfp8_gemv": "gemv",
        "mxfp8_mfma": "mfma",
        "mxfp8_triton": "triton",
    },
    "moe.kernels.bf16": {
        "fused_moe_hip": "hip",
        "fused_moe_triton": "triton",
        "fused_moe_triton_kernels": "triton_kernels",
    },
    "moe.kernels.fp8": {
        "fused_moe_fp8_hip": "hip",
        "fused_moe_fp8_triton": "triton",
        "fused_moe_fp8_triton_kernels": "triton_kernels",
    },
    "moe.kernels.mx": {
        "fused_moe_mx_hip": "hip",
        "fused_moe_mx_triton": "triton",
        "fused_moe_mx_triton_kernels": "triton_kernels",
    },
    "moe.kernels.align": {
        "align_triton": "triton",
        "align_triton_kernels": "triton_kernels",
    },
    "moe.kernels.grouped": {
        "grouped_gemm_mxfp8_hip": "hip",
        "grouped_gemm_mxfp8_triton": "triton",
    },
    "moe.kernels.topk": {
        "choosing": "choosing",
        "topk_kernels": "kernels",
    },
}
# Methods of Kernel and Op.
OLD_METHODS = {
    "refuses": "unsupported_reason",
    "refuses_config": "unsupported_config_reason",
    "refuses_arch": "unsupported_arch_reason",
    "forms": "result_specs",
}
_NEW_NAMES = {
    f"rfops.{folder.partition('.')[0]}.{old}": f"rfops.{folder}.{new}"
    for folder, names in MOVED.items()
    for old, new in names.items()
}


def add_method_aliases(cls: type) -> None:
    """Give a class that has a method by its old or its new name the other one too."""
    for old, new in OLD_METHODS.items():
        for name, alias in ((old, new), (new, old)):
            if name in vars(cls) and alias not in vars(cls):
                setattr(cls, alias, vars(cls)[name])


class _Alias(Loader):
    """Loads an old name as the module of the new one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spec: ModuleSpec | None = None

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has overwritten it with the alias's


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = _NEW_NAMES.get(fullname)
        return None if new is None else ModuleSpec(fullname, _Alias(new))


sys.meta_path.append(_Finder())
