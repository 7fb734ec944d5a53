"""`rfops tune` of the MX-FP8 ops:

python op_tests/tune_mxfp8.py [grouped_gemm_mxfp8] [options, --help among them]
"""

from __future__ import annotations

import sys

from support import op_script


def main(argv: list[str] | None = None) -> int:
    return op_script.main("tune", ("gemm_mxfp8", "grouped_gemm_mxfp8"), argv)


if __name__ == "__main__":
    sys.exit(main())
