"""Logging through the standard tree `rfops.*`. Quiet: one line when something is built, one when
CPU tensors first go to the virtual GPU. An application that configures logging keeps control."""

from __future__ import annotations

import functools
import logging
import sys

from . import settings


@functools.cache
def get() -> logging.Logger:
    """The logger `rfops`; prints on stderr unless the application has set up handlers itself."""
    logger = logging.getLogger("rfops")
    level = settings.text("RFOPS_LOG").upper()
    if level == "DISPATCH":
        level = "INFO"
        logging.getLogger("rfops.dispatch").setLevel(logging.DEBUG)
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("rfops: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger


@functools.cache
def dispatch() -> logging.Logger:
    """The logger `rfops.dispatch`, of routes; RFOPS_LOG=dispatch and =debug print it."""
    get()
    return logging.getLogger("rfops.dispatch")
