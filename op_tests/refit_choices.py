"""Fit an op's constants again to the times in op_tests/choices, after a change of sources that
should not have changed times: some are taken again first, and must be as they were within 1 %;
experts' within 2 %, which differ by 1.2 % from run to run, as what is between their launches begins
elsewhere.

    python op_tests/refit_choices.py gemm_mxfp8 gfx950

Where they differ: `rfops tune OP --model --out FOLDER` times all calls anew; its <op>_model.csv
goes to configs/, its <op>_timings.csv here in place of that chip's rows.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

CHOICES = Path(__file__).parent / "choices"
CONFIGS = Path(__file__).parents[1] / "configs"
CALLS, VARIANTS, TOLERANCE = 5, 6, 0.01
EXPERTS = "fused_moe", "fused_moe_tables", "fused_moe_fp8", "fused_moe_mxfp4", "fused_moe_mxfp8"
TOLERANCE_OF = dict.fromkeys(EXPERTS, 0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("op")
    parser.add_argument("arch", choices=("gfx942", "gfx950"))
    parser.add_argument("--calls", type=int, default=CALLS, help="that are timed again")
    options = parser.parse_args()
    os.environ.setdefault("RFOPS_VGPU_ARCH", options.arch)
    os.environ.setdefault("RFOPS_VGPU_THREADS", "1")

    import torch

    from rfops.cli import model_timings, tune_model
    from rfops.dispatch.op import ops
    from rfops.dispatch.problem import on_device
    from rfops.jit.arch import ARCH_SPECS

    op, cus = ops()[options.op], ARCH_SPECS[options.arch].cus
    file = model_timings.path_of(op, CHOICES)
    timed = model_timings.read(op, file, options.arch, cus)
    worst = 0.0
    for one in random.Random(0).sample(timed, min(options.calls, len(timed))):
        known = dict(zip(one.variants, one.us, strict=True))
        variants = sorted(known, key=lambda variant: known[variant])[:VARIANTS]
        c = on_device(one.call, torch.device("cpu"))
        for time in tune_model.times_of(op, c, variants):
            if isinstance(time, str):
                print(time, file=sys.stderr)
                return 1
            ratio = time[2] / known[time[:2]]
            worst = max(worst, abs(ratio - 1))
            print(f"{ratio:.4f}  {c}: {time[0]} {time[1]}", flush=True)
    if worst > TOLERANCE_OF.get(op.name, TOLERANCE):
        print(f"times differ by up to {worst:.1%}: time all anew, see --help", file=sys.stderr)
        return 1
    device = f"virtual GPU {options.arch} {cus} CUs"
    return tune_model.write_model(op, file, CONFIGS, options.arch, cus, "estimated", device)


if __name__ == "__main__":
    sys.exit(main())
