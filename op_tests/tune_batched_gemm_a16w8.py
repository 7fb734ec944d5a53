"""`rfops tune` of batched_gemm_a16w8_blockscale:

python op_tests/tune_batched_gemm_a16w8.py [options, --help among them]
"""

from __future__ import annotations

import sys

from support import op_script


def main(argv: list[str] | None = None) -> int:
    return op_script.main("tune", ("batched_gemm_a16w8_blockscale",), argv)


if __name__ == "__main__":
    sys.exit(main())
