"""`python -m rfops.cli`: the command `rfops`."""

import sys

from rfops.cli import main

if __name__ == "__main__":  # and not in the processes that it starts
    sys.exit(main())
