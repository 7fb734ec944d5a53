"""`rfops bench` of the MX-FP8 ops, HIP beside Triton:

python op_tests/bench_mxfp8.py [grouped_gemm_mxfp8] [options, --help among them]
"""

from __future__ import annotations

import sys

from support import op_script


def main(argv: list[str] | None = None) -> int:
    return op_script.main("bench", ("gemm_mxfp8", "grouped_gemm_mxfp8"), argv, "--kernel", "triton")


if __name__ == "__main__":
    sys.exit(main())
