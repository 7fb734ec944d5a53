"""The command `rfops`. It lies outside of the package because importing that brings the ops, and
torch with them: a second or more that most of what the command does has no need of."""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """rfops.cli.main, in a package whose ops are imported when they are wanted."""
    spec = importlib.util.find_spec("rfops")
    if "rfops" not in sys.modules and spec is not None and spec.loader is not None:
        package = importlib.util.module_from_spec(spec)
        package.WITHOUT_OPS = True  # type: ignore[attr-defined] # see rfops/__init__.py
        sys.modules["rfops"] = package
        spec.loader.exec_module(package)
    from rfops import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
