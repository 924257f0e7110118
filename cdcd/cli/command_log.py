"""The log of a command that connects: on stderr, as the daemon's, also what libraries write there by themselves.

In: a configuration.  Out: lines while the command works; what Python prints to `sys.stderr` goes out as it is.
Must not: be used where a person has to read what a library writes to the descriptor.
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
    """Log what the block does, from `level` on, the configuration's where none is given."""
    with as_log_lines() as stream, contextlib.redirect_stderr(stream):
        configure(level or config.log.level, config.log.format, stream)
        try:
            yield
        finally:
            flush()
