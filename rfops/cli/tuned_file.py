"""Files of tuned tables that `rfops tune` fills and merges: rows as a DataFrame of text."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rfops.dispatch import tuned_table
from rfops.dispatch.kernel import Call
from rfops.dispatch.op import Op
from rfops.dispatch.tuned_table import Tuned
from rfops.jit.cache import lock

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, ...]


def read(path: Path, tuned: Tuned) -> pd.DataFrame:
    """The rows of a file of this table, every cell checked; empty cells, and those of a column that
    the file lacks, are "". Raises ConfigError."""
    import pandas as pd

    list(tuned_table.read(path, tuned.name))
    rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    rows = rows.reindex(columns=[*tuned.columns], fill_value="")
    numbers = ["cu_num", *tuned.sizes]
    rows[numbers] = rows[numbers].replace(r"^0+(?=\d)", "", regex=True)  # 08 is the key 8
    return rows


def write(path: Path, rows: pd.DataFrame) -> None:
    """Aside, synced, renamed in: a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", newline="", encoding="utf-8") as stream:
            rows.to_csv(stream, index=False, lineterminator="\n")
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class File:
    """A table in a folder. Several processes may add rows to it at a time, and a person may edit it
    in between: what is written is the file as it is then, with the new row. Raises ConfigError."""

    def __init__(self, folder: Path, tuned: Tuned) -> None:
        self.path = folder / f"{tuned.name}.csv"
        self.tuned = tuned
        self.order: Mapping[Key, int] = {}  # of rows that come in another; empty: as they come
        self.rows()

    def rows(self) -> pd.DataFrame:
        """As the file has them now."""
        import pandas as pd

        if self.path.is_file():
            return read(self.path, self.tuned)
        return pd.DataFrame(columns=self.tuned.columns, dtype=str)

    def key_of(self, row: Mapping[str, Any]) -> Key:
        """Return a row's key: architecture, CUs and sizes as text, empty for a missing cell."""
        cells = [row.get(column) for column in self.tuned.keys]
        return tuple("" if cell is None else str(cell) for cell in cells)

    def key_of_call(self, op: Op, c: Call) -> Key:
        """Return the key that a call's row has."""
        cells = {"arch": c.arch, "cu_num": c.cu_num}
        return self.key_of(cells | dict(zip(self.tuned.sizes, op.table_sizes(c), strict=True)))

    def _deciding(self, rows: pd.DataFrame, key: Key) -> list[int]:
        """The rows of a key that name a kernel."""
        of_key = (rows[[*self.tuned.keys]] == [*key]).all(axis=1)
        return list(rows.index[of_key & (rows["kernel"] != "")])

    def has(self, op: Op, c: Call) -> bool:
        """Whether a row names a kernel for the call, whichever process has written it."""
        return bool(self._deciding(self.rows(), self.key_of_call(op, c)))

    def add(self, row: Mapping[str, Any]) -> None:
        """Merge a row that names a kernel. It replaces those of its key that name one; rows of
        others' figures stay."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with lock.folder(self.path.parent):
            rows = self.rows()
            row_index, *duplicates = [*self._deciding(rows, self.key_of(row)), len(rows)]
            rows.loc[row_index] = [
                "" if (cell := row.get(column)) is None else str(cell) for column in rows.columns
            ]
            rows = rows.drop(duplicates, errors="ignore")
            order = rows.apply(lambda r: self.order.get(self.key_of(r), -1), axis=1)
            write(self.path, rows.loc[order.sort_values(kind="stable").index])

    def drop(self, row: Mapping[str, Any]) -> None:
        """The rows of this one's key that name a kernel. Others' figures in them stay, in rows
        without a kernel."""
        with lock.folder(self.path.parent):
            rows, key = self.rows(), self.key_of(row)
            deciding = self._deciding(rows, key)
            of_key = (rows[[*self.tuned.keys]] == [*key]).all(axis=1)
            existing = " ".join(rows["figures"][of_key].drop(deciding)).split()
            for index in deciding:
                foreign = self._foreign_figures(rows["figures"][index], existing)
                if not foreign:
                    rows = rows.drop(index)
                    continue
                source = f"beside a row that was dropped: {rows['source'][index]}"
                cells = "", "", "", " ".join(foreign), "published", source
                rows.loc[index, [*tuned_table.VALUES]] = [*cells]
                existing += foreign
            write(self.path, rows)

    def replace(self, row: Mapping[str, Any], cells: Mapping[str, str]) -> None:
        """Write other cells to the row of this one's key that names a kernel; of its figures, those
        that are not of a run of rfops stay."""
        with lock.folder(self.path.parent):
            rows = self.rows()
            for index in self._deciding(rows, self.key_of(row)):
                rows.loc[index, "figures"] = " ".join(self._foreign_figures(row["figures"], ()))
                rows.loc[index, [*cells]] = [*cells.values()]
            write(self.path, rows)

    def _foreign_figures(self, figures: str, existing: Collection[str]) -> list[str]:
        """Of a row's figures, those of no kernel or run of rfops that are not known."""
        op_figures = {"spread", "speedup", *(f"{kernel}_us" for kernel in self.tuned.kernels)}
        return [
            figure
            for figure in figures.split()
            if (name := figure.partition("=")[0]) not in op_figures
            and not name.startswith("torch_")
            and figure not in existing
        ]
