"""Random programs on the host and on the virtual GPU, both architectures:

    python op_tests/vgpu/fuzz/programs.py --count 2000               seeds 0 to 1999
    python op_tests/vgpu/fuzz/programs.py --first 2000 --count 500   the next ones
    python op_tests/vgpu/fuzz/programs.py --first 77 --count 1 --levels all

Batches that are done are noted in build/fuzz/programs.jsonl, and a later run goes on behind them
(`--again` forgets them). A mismatch is cut to the statements that it needs and left with its source
in build/fuzz/programs/<seed>.cpp; it makes the exit status 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "op_tests"))

from support.vgpu import differential as diff  # noqa: E402 - found by the path above
from support.vgpu import random_programs as programs  # noqa: E402
from support.vgpu.cases import ARCHS  # noqa: E402

JOURNAL = ROOT / "build" / "fuzz" / "programs.jsonl"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="first seed [0]")
    parser.add_argument("--count", type=int, default=200, help="number of programs [200]")
    parser.add_argument("--levels", default="2", help="levels an architecture, or all [2]")
    parser.add_argument("--data", type=int, default=3, help="inputs of each program [3]")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")
    parser.add_argument("--again", action="store_true", help="forget the batches that are done")
    return parser.parse_args()


def done_before(repeated: bool) -> tuple[set[int], diff.Tally]:
    """First seeds of the batches in the journal, and what they add up to."""
    seeds, tally = set(), diff.Tally()
    if repeated:
        JOURNAL.unlink(missing_ok=True)
    for line in JOURNAL.read_text().splitlines() if JOURNAL.exists() else ():
        entry = json.loads(line)
        seeds.add(entry["first"])
        names = collections.Counter(entry["names"])
        runs = collections.Counter(entry["runs"])
        tally.add(diff.Tally(entry["programs"], runs, names.total(), names))
    return seeds, tally


def note(first: int, tally: diff.Tally) -> None:
    JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    entry = {
        "first": first,
        "programs": tally.programs,
        "runs": tally.by_arch,
        "names": tally.names,
    }
    with JOURNAL.open("a") as journal:
        journal.write(json.dumps(entry) + "\n")


def report(result: diff.Mismatch, folder: Path) -> None:
    print(f"MISMATCH {result}")
    small = diff.minimised(result, folder)
    left = JOURNAL.with_suffix("") / f"{result.program.seed}.cpp"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text(programs.source([small.program]))
    print(
        f"  of {len(result.program.steps)} statements "
        f"{len(small.program.steps)} are left in {left}:"
    )
    print(*(f"    {step.device}" for step in small.program.steps), sep="\n")
    print(f"  {small}", flush=True)


def main() -> int:
    args = arguments()
    seeds, total = done_before(args.again)
    start, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for batch in diff.batches(args.first, args.count):
            first = batch[0].seed
            if first in seeds:
                continue
            if time.monotonic() - start > args.seconds:
                break
            levels = diff.sampled_levels(first, int(args.levels) if args.levels != "all" else 0)
            if args.levels == "all":
                levels = {arch: list(diff.LEVELS) for arch in ARCHS}
            tally = diff.run_batch(batch, levels, folder, args.data)
            total.add(tally)
            once = {result.program.seed: result for result in reversed(tally.mismatches)}
            for result in once.values():
                report(result, folder)
            failed += len(once)
            if not once:
                note(first, tally)
            print(f"{time.monotonic() - start:6.0f} s, seed {first}: {total}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
