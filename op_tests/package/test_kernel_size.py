"""A kernel can be read: its file and the headers that it alone includes are bounded in length."""

from __future__ import annotations

from pathlib import Path

import kernel_size

LARGEST = 1500


def test_length_of_kernels() -> None:
    rows = {
        str(kernel.relative_to(kernel_size.CSRC)): lines for lines, kernel, _ in kernel_size.sizes()
    }
    assert len(rows) > 20
    assert not {kernel: lines for kernel, lines in rows.items() if lines > LARGEST}


def test_headers_of_several_kernels_do_not_count(tmp_path: Path) -> None:
    files = {
        "op/a.hip": '#include "op/alone.h"\n#include "op/shared.h"\n',
        "op/b.hip": '#include "op/shared.h"\n',
        "op/alone.h": '#include "op/inner.h"\n\n\n',
        "op/inner.h": "\n" * 10,
        "include/op/shared.h": "\n" * 100,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    sizes = [(lines, kernel.name) for lines, kernel, _ in kernel_size.sizes(tmp_path)]
    assert sizes == [(15, "a.hip"), (1, "b.hip")]
