"""Modules that have moved are found by their old names."""

from __future__ import annotations

import importlib

from rfops.moved import MOVED


def test_an_old_name_is_the_module_of_the_new_one() -> None:
    for folder, names in MOVED.items():
        for old, new in names.items():
            if "triton" not in new:  # kernels, which import triton
                package = f"rfops.{folder.partition('.')[0]}"
                module = importlib.import_module(f"rfops.{folder}.{new}")
                assert importlib.import_module(f"{package}.{old}") is module
                assert module.__name__ == module.__spec__.name == f"rfops.{folder}.{new}"


def test_config_classes_are_imported_from_old_modules() -> None:
    from rfops.gemm.mxfp8_mfma import MfmaConfig
    from rfops.moe.fused_moe_mx_hip import MxMoeConfig

    assert MfmaConfig(1, 1, 1, 1, 1).split == 1
    assert MxMoeConfig(1, 4, 1, 4, 1).columns == 0
