"""Replays every case and writes sites.json: the wheels' call sites, with the cases that pass each.

    RFOPS_TEST_WHEELS=<folder> python op_tests/plugins/conformance/record.py

Facts alone are kept: file, function, callee, names of arguments.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.conformance.cases import ARCHS
from support.conformance.harness import IMPORT, RECORD, cases_of, engine_of, replay, world_of


def main() -> None:
    record = {}
    for name in ("vllm", "sglang"):
        passed: dict[str, set[str]] = defaultdict(set)
        for arch in ARCHS:
            os.environ["RFOPS_VGPU_ARCH"] = arch
            with world_of(name, arch).running() as world:
                for case in cases_of(name, arch):
                    verdict = replay(world, case)
                    print(f"{case.name} ({arch}): {verdict.fault or verdict.why or 'engaged'}")
                    for key in verdict.sites:
                        passed[key].add(case.name.removeprefix(f"{name}: "))
                    for seen in world.seen:
                        passed |= {s.key: {IMPORT} for s in seen.sites if not s.function}
        record[name] = {site.key: sorted(passed[site.key]) for site in engine_of(name).sites}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
