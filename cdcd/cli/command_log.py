"""The log of a command that connects: on stderr, like the daemon's, with the lines that libraries write to stderr.

In: a configuration.  Out: log lines while the command runs; Python's output to `sys.stderr` is not changed.
Must not: be used if a person has to read the unchanged output of a library on the descriptor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cdcd.config import Config
from cdcd.ops.log import configure, flush
from cdcd.ops.stderr_lines import as_log_lines

__all__ = ["logged"]


@contextlib.contextmanager
def logged(config: Config, level: str | None = None) -> Iterator[None]:
    """Log the events inside the block, from `level` on; default: the configuration's level."""
    with as_log_lines() as stream, contextlib.redirect_stderr(stream):
        configure(level or config.log.level, config.log.format, stream)
        try:
            yield
        finally:
            flush()
