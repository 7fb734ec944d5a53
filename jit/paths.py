"""Where the package's files lie: in a checkout and in a wheel alike, `jit/`, `csrc/` and
`configs/` are neighbours (top level there, inside `rfops/` here)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
INCLUDE = CSRC / "include"
CONFIGS = ROOT / "configs"
PREBUILT = ROOT / "prebuilt"  # a cache that a wheel can carry; build/prebuilt.py makes it
COMPILER_CONFIG = Path(__file__).resolve().parent / "compiler_config.json"
