"""`python -m rfops.cli`: the command `rfops`."""

import sys

from rfops.cli import main

sys.exit(main())
