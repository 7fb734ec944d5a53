"""`rfops tune` of the tiles that the Triton kernels of MX-FP8 take without a tuned row:

python op_tests/tune_triton_mxfp8.py [grouped_gemm_mxfp8] [options, --help among them]
"""

from __future__ import annotations

import sys

from support import op_script


def main(argv: list[str] | None = None) -> int:
    return op_script.main(
        "tune", ("gemm_mxfp8", "grouped_gemm_mxfp8"), argv, "--defaults", "triton"
    )


if __name__ == "__main__":
    sys.exit(main())
