"""A tuned table that `rfops tune` fills: rows are merged into the file, under a lock."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rfops.dispatch import tuned_table
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.tuned_table import Tuned
from rfops.jit.cache import lock

Key = tuple[str, ...]


class File:
    """A table in a folder. Several processes may add rows to it at a time, and a person may edit it
    in between: what is written is the file as it is then, with the new row. Raises ConfigError."""

    def __init__(self, folder: Path, tuned: Tuned) -> None:
        self.path = folder / f"{tuned.name}.csv"
        self.tuned = tuned
        self.order: Mapping[Key, int] = {}  # of rows that come in another; empty: as they come
        self.rows()

    def rows(self) -> list[Mapping[str, Any]]:
        """As the file has them now."""
        if not self.path.is_file():
            return []
        list(tuned_table.read(self.path, self.tuned.name))  # every cell checked
        with self.path.open(newline="", encoding="utf-8-sig") as stream:
            return list(csv.DictReader(stream))

    def key_of(self, row: Mapping[str, Any]) -> Key:
        cells = [row.get(column, "") for column in self.tuned.keys]
        return tuple("" if cell is None else str(cell) for cell in cells)

    def key_of_call(self, op: Op, c: Call) -> Key:
        cells = {"arch": c.arch, "cu_num": c.cu_num}
        return self.key_of(cells | dict(zip(self.tuned.sizes, op.table_sizes(c), strict=True)))

    def has(self, op: Op, c: Call) -> bool:
        """Whether a row names a kernel for the call, whichever process has written it."""
        key = self.key_of_call(op, c)
        return any(row["kernel"] and self.key_of(row) == key for row in self.rows())

    def add(self, row: Mapping[str, Any]) -> None:
        """Merge a row that names a kernel. It replaces those of its key that name one; rows of
        others' figures stay."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        key = self.key_of(row)
        with lock.folder(self.path.parent):
            rows = self.rows()
            old = [i for i, r in enumerate(rows) if r["kernel"] and self.key_of(r) == key]
            at = old[0] if old else len(rows)
            kept = [r for i, r in enumerate(rows) if i not in old]
            self._write([*kept[:at], row, *kept[at:]])

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Aside, synced, renamed in: a reader sees the old file or the new one."""
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", newline="", encoding="utf-8") as stream:
                columns = self.tuned.columns
                writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(sorted(rows, key=lambda r: self.order.get(self.key_of(r), -1)))
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
