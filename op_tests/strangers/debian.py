"""Unpacks packages of Debian and all that they depend on into a folder.

    python op_tests/strangers/debian.py FOLDER librocblas5-tests librocrand1-tests

Nothing is installed, and this system's package lists stay as they are. FOLDER/root then has the
packages' usr, with a loader and a C library of their own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

SUITES = ("experimental", "unstable")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def apt_words(folder: Path) -> list[str]:
    """Prepare apt's folders there; return the options that make it use them alone."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True, exist_ok=True)
    (folder / "apt/status").touch()
    sources = folder / "apt/sources.list"
    source = "deb [signed-by={}] http://deb.debian.org/debian {} main\n"
    sources.write_text("".join(source.format(_KEYRING, suite) for suite in SUITES))
    places = {
        "Dir::State::lists": folder / "apt/lists",
        "Dir::State::status": folder / "apt/status",
        "Dir::Cache": folder / "apt/cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "APT::Default-Release": SUITES[0],
    }
    return [word for name, value in places.items() for word in ("-o", f"{name}={value}")]


def main() -> int:
    """Download and unpack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", nargs="+")
    options = parser.parse_args()
    folder = options.folder.resolve()
    words = apt_words(folder)
    apt = dict(check=True, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    subprocess.run(["apt-get", *words, "update"], **apt)
    install = ("install", "--download-only", "--yes", *options.packages)
    subprocess.run(["apt-get", *words, *install], **apt)
    for package in sorted((folder / "apt/cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder / "root")], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
