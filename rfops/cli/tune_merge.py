"""`rfops tune merge A.csv B.csv -o OUT.csv`: merge tuned tables of one op, as of two machines.

Of the rows of one key (arch, cu_num, sizes) that name a kernel one is kept, whole, with its
figures, origin and source: a measured row before an estimated one before a published one; of one
origin the row with the least `us` (none: the slowest), then that of the earlier file. Rows without
a kernel, which hold published figures, are all kept. A file is of the table that its name says,
else of any with its columns and kernels. Without -o the merged table is printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rfops.cli import tuned_file
from rfops.cli.common import with_ops
from rfops.dispatch import tuned_table
from rfops.dispatch.tuned_table import ORIGINS, TABLES, VALUES, Tuned
from rfops.jit import ConfigError
from rfops.jit.cache import lock

if TYPE_CHECKING:
    import pandas as pd


def main(arguments: list[str]) -> int:
    """Run `rfops tune merge`: write the merged table to --out or to stdout."""
    parser = argparse.ArgumentParser(prog="rfops tune merge", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.csv", help="tuned tables")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT.csv", help="write the table there")
    options = parser.parse_args(arguments)
    if len(options.files) < 2:
        parser.error(f"expected two files or more, got {options.files[0]}")
    with_ops()
    tuned = table_of(options.files, options.out)
    if options.out is None:
        merge(options.files, tuned).to_csv(sys.stdout, index=False, lineterminator="\n")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with lock.folder(options.out.parent):
        merged = merge(options.files, tuned)
        tuned_file.write(options.out, merged)
    counts = merged.groupby(level=0).size()
    counts_text = ", ".join(f"{counts.get(str(file), 0)} of {file}" for file in options.files)
    print(f"{options.out}: {len(merged)} rows of {tuned.name}: {counts_text}")
    return 0


def merge(files: Sequence[Path], tuned: Tuned) -> pd.DataFrame:
    """The rows that are kept, indexed by file and row, in the order in which keys first come."""
    import pandas as pd

    rows = pd.concat({str(file): tuned_file.read(file, tuned) for file in files})
    keys = [*tuned.keys]
    order = pd.DataFrame(
        {
            "key": rows.groupby(keys, sort=False).ngroup(),
            "origin": rows["origin"].map(ORIGINS.index),
            "us": pd.to_numeric(rows["us"], errors="coerce").where(lambda us: us > 0),
        }
    ).reset_index(drop=True)
    rows = rows.iloc[order.sort_values([*order.columns]).index]
    decides = rows["kernel"] != ""
    worse = decides & rows[keys].assign(decides=decides).duplicated()
    return rows[~worse & ~rows.duplicated()]


def table_of(files: Sequence[Path], out: Path | None) -> Tuned:
    """The table that all files are of, by a file's name, else by columns and kernels. Raises
    ValueError."""
    for file in files:
        if not file.is_file():
            raise ValueError(f"tune merge: {file} must be a tuned table's CSV file, got no file")
    tables_by_file = {
        path: [path.stem] for path in (*files, out) if path is not None and path.stem in TABLES
    }
    tables_by_file = tables_by_file or {file: tables_of(file) for file in files}
    common = set[str].intersection(*map(set, tables_by_file.values()))
    if not common:
        description = "; ".join(
            f"{path} is of {' or '.join(names)}" for path, names in tables_by_file.items()
        )
        raise ValueError(
            f"tune merge: files must be of one table, got several: {description}. Merge the "
            "files of each table by themselves."
        )
    return TABLES[min(common)]


def tables_of(file: Path) -> list[str]:
    """The tables that a file may be of, every cell checked. Raises ValueError."""
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        header = re.findall(r"\w+", stream.readline(1000))
    tables, errors = [], []
    same_columns = [name for name, tuned in TABLES.items() if {*tuned.columns} == {*header}]
    for name in same_columns or [n for n, tuned in TABLES.items() if tuned.has_header(header)]:
        try:
            list(tuned_table.read(file, name))
            tables.append(name)
        except ConfigError as error:
            errors.append(f"As {name}: {error}")
    if not tables:
        problem = "; ".join(errors) or f"Got {', '.join(header) or 'nothing'}"
        raise ValueError(
            f"tune merge: {file} must be a tuned table with the columns arch, cu_num, "
            f"sizes, {', '.join(VALUES)}. {problem}"
        )
    return tables
