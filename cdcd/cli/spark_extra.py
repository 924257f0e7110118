"""`--mirror` of a command needs the extra `spark`, which the daemon does not have.

In: imports of `cdcd.spark`.  Out: a ConfigError that names the missing package.
Must not: import PySpark before it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cdcd.errors import ConfigError

__all__ = ["imports_of_spark"]


@contextlib.contextmanager
def imports_of_spark() -> Iterator[None]:
    """Raise ConfigError for a package that is not installed. A missing module of cdcd is an error of cdcd."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cdcd":
            raise
        raise ConfigError(
            f"--mirror needs the package {error.name}", hint="install cdcd with its extra `spark`"
        ) from None
