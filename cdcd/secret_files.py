"""Read a file that holds one secret.

In: a path.  Out: the secret, which is struck out of every text from then on (`cdcd.redaction`).
Invariant: an error names the file and never its content; a file costs a limited amount of memory, and a pipe is not
waited for.
Must not: cache a secret, because the next read has to return a rotated one.

The daemon's options (`cdcd.config`) and the readers of its topics (`cdcd.spark`) both read such files, and a reader's
tasks do without `cdcd.config`, whose import takes a second: therefore this module is below both.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdcd.errors import SecretUnreadable
from cdcd.redaction import add_secret

__all__ = ["MAX_SECRET_BYTES", "read_secret_file"]

MAX_SECRET_BYTES = 64 << 10


def read_secret_file(path: Path) -> str:
    """Return the secret in `path` without its last line end. Raises SecretUnreadable, naming the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise SecretUnreadable("a secret file cannot be read", file=path, reason=error.strerror) from error
    except UnicodeDecodeError:
        raise SecretUnreadable("a secret file is not UTF-8 text", file=path) from None
    if len(data) > MAX_SECRET_BYTES:
        raise SecretUnreadable(f"a secret file has more than {MAX_SECRET_BYTES} bytes", file=path)
    secret = text.rstrip("\r\n")
    if not secret:
        raise SecretUnreadable("a secret file is empty", file=path)
    add_secret(secret, renews=str(path))
    return secret
