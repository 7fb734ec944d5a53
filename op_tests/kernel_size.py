"""Lines of each kernel file with the headers that it alone includes.

    python op_tests/kernel_size.py        the largest first

A header that one kernel alone includes, itself or through other headers, is a part of that kernel:
it has to be read with it. Headers of several kernels are shared code and do not count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parents[1] / "csrc"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def kernels(csrc: Path = CSRC) -> list[Path]:
    return sorted(csrc.rglob("*.hip"))


def headers_of(file: Path, csrc: Path = CSRC) -> set[Path]:
    """All headers of the tree that `file` includes, directly or not."""
    results: set[Path] = set()
    pending = [file]
    while pending:
        for name in INCLUDE.findall(pending.pop().read_text(encoding="utf-8")):
            homes = (csrc / "include" / name, csrc / name)
            header = next((home for home in homes if home.is_file()), None)
            if header is not None and header not in results:
                results.add(header)
                pending.append(header)
    return results


def lines_of(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def sizes(csrc: Path = CSRC) -> list[tuple[int, Path, list[Path]]]:
    """(lines, kernel, headers that no other kernel includes) of each kernel, the largest first."""
    headers = {kernel: headers_of(kernel, csrc) for kernel in kernels(csrc)}
    rows = []
    for kernel, included in headers.items():
        shared = set().union(*(other for k, other in headers.items() if k != kernel))
        alone = sorted(included - shared)
        rows.append((sum(map(lines_of, (kernel, *alone))), kernel, alone))
    return sorted(rows, reverse=True)


def main() -> int:
    for lines, kernel, alone in sizes():
        names = " ".join(str(header.relative_to(CSRC)) for header in alone)
        print(f"{lines:5} {kernel.relative_to(CSRC)} {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
