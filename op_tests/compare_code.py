"""Hold machine code and kernel descriptors equal through a move or a rename.

    python op_tests/compare_code.py record before.json     in the tree as it was
    python op_tests/compare_code.py check before.json      in the tree as it is: exit status 1 when
                                                           a variant's code differs

Compares every variant that `rfops build` makes, for both architectures; with `--manifest FILE` also
those that a run recorded (RFOPS_RECORD_MANIFEST). Compared are the sections of the object file
(code, descriptors, constants), its relocations, and the kernels' metadata: arguments, registers,
LDS. Names of symbols, files, modules and defines do not count: variants are matched by what they
contain, within their module, or within a module that was renamed (`--renamed old=new`) or removed
(`--removed name`).
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rfops.cli import build
from rfops.jit.build import resources
from rfops.jit.build.device import build_device
from rfops.jit.build.spec import module_spec
from rfops.jit.cache import code_object
from rfops.jit.policy import manifest
from rfops.jit.policy.manifest import BuildRequest

SECTIONS = (".text", ".rodata", ".data", ".bss")


def wanted(file: Path | None) -> list[BuildRequest]:
    """The device variants of `rfops build`, and those of a manifest."""
    options = argparse.Namespace(
        arch="gfx942,gfx950", manifest=None, defines=[], modules=[], config=None
    )
    entries = [*build._requests(options), *(manifest.load(file) if file else ())]
    ours = [e for e in entries if isinstance(e, BuildRequest) and e.arch != "host"]
    return [e for e in dict.fromkeys(ours) if e.config == BuildRequest("", "").config]


def sections(file: Path) -> Iterator[tuple[str, object]]:
    """Contents and relocations of an object file's sections; a relocation's target is a place."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection

    with file.open("rb") as data:
        elf = ELFFile(data)
        symbols = elf.get_section_by_name(".symtab")
        for section in elf.iter_sections():
            if section.name.startswith(SECTIONS):
                yield section.name.split("$")[0], hashlib.sha256(section.data()).hexdigest()
            elif isinstance(section, RelocationSection):
                relocated = elf.get_section(section["sh_info"])
                if not relocated.name.startswith(SECTIONS):
                    continue  # debug lines
                for item in section.iter_relocations():
                    symbol = symbols.get_symbol(item["r_info_sym"])
                    target = symbol["st_shndx"], symbol["st_value"]
                    position = item["r_offset"], item["r_info_type"], item.entry.get("r_addend")
                    yield f"relocation of {relocated.name}", [*position, *target]


def digest(entry: BuildRequest) -> dict[str, Any]:
    """What a variant's code is, names aside, and a few figures for the eye."""
    spec = module_spec(entry.module, entry.config)
    artifact = build_device(spec, entry.arch, dict(entry.defines))
    object_file = artifact.folder / "module.o"
    if not object_file.exists():
        raise SystemExit(f"{entry}: no module.o in {artifact.folder}; use ziglang's clang")
    kernels = code_object.read_metadata(artifact.file.read_bytes()).kernels
    content = [[*sections(object_file)], [*kernels.values()]]
    text = json.dumps(content, sort_keys=True, default=str)
    return {
        "module": entry.module,
        "arch": entry.arch,
        "defines": dict(entry.defines),
        "bytes": object_file.stat().st_size,
        "code": hashlib.sha256(text.encode()).hexdigest(),
    }


def digests(file: Path | None) -> list[dict[str, Any]]:
    entries = wanted(file)
    rows = []
    with ThreadPoolExecutor(resources.jobs(0)) as pool:
        for number, row in enumerate(pool.map(digest, entries), 1):
            rows.append(row)
            if number % 25 == 0 or number == len(entries):
                print(f"{number} of {len(entries)}", file=sys.stderr, flush=True)
    return rows


def differences(
    previous: list[dict[str, Any]],
    after: list[dict[str, Any]],
    renamed: dict[str, str],
    removed: set[str],
) -> list[str]:
    """Variants of which the other side has no equal, a line each."""
    unmatched = collections.Counter(
        (renamed.get(row["module"], row["module"]), row["arch"], row["code"])
        for row in previous
        if row["module"] not in removed
    )
    lines = []
    for row in after:
        key = row["module"], row["arch"], row["code"]
        if unmatched[key]:
            unmatched[key] -= 1
        else:
            lines.append(f"now only: {row['module']} {row['arch']} {row['defines']}")
    for row in previous:
        key = renamed.get(row["module"], row["module"]), row["arch"], row["code"]
        if row["module"] not in removed and unmatched[key]:
            unmatched[key] -= 1
            lines.append(f"before only: {row['module']} {row['arch']} {row['defines']}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path, help="the record: written, or compared with")
    parser.add_argument("--manifest", type=Path, help="variants of a recorded run as well")
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--removed", action="append", default=[], metavar="MODULE")
    options = parser.parse_args()
    rows = digests(options.manifest)
    if options.what == "record":
        options.file.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
        print(f"{len(rows)} variants recorded in {options.file}")
        return 0
    previous = json.loads(options.file.read_text(encoding="utf-8"))
    renamed = dict(text.split("=", 1) for text in options.renamed)
    lines = differences(previous, rows, renamed, set(options.removed))
    print(
        *lines, f"{len(previous)} variants before, {len(rows)} now, {len(lines)} differ", sep="\n"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
