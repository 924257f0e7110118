"""A mirror that runs in a thread of the driver, with the methods of Spark's streaming query that callers use.

In: the function that runs until it is asked to stop.  Out: whether it runs, and the error that ended it.
Invariant: a stop ends it after its batch, or while it waits after an error.
Must not: start again what an error has ended; `run` does that with what heals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa


class MirrorQuery:
    """A running mirror. `metrics_port`: the port of its metrics, None if it has none."""

    def __init__(
        self, run: Callable[[threading.Event], None], name: str, metrics_port: int | None = None
    ) -> None:
        self.name = name
        self.metrics_port = metrics_port
        self._run = run
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._until_end, name=name, daemon=True)
        self._thread.start()

    def _until_end(self) -> None:
        try:
            self._run(self._stopping)
        except MemoryError as error:  # Arrow's is an ArrowException
            self._failure = error
        except pa.ArrowException as error:  # its text may have values of rows
            failure = RuntimeError(f"the mirror ended with {type(error).__name__}")
            self._failure = failure.with_traceback(error.__traceback__)
        except Exception as error:  # noqa: BLE001 - `exception` and `awaitTermination` return it
            self._failure = error
        except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is one
            self._failure = RuntimeError(f"the mirror ended with {type(error).__name__}")
            self._failure.__cause__ = error

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the mirror runs."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Return the error that ended the mirror, None if there is none."""
        return None if self.isActive else self._failure

    def stop(self) -> None:
        """End the mirror after its batch."""
        self._stopping.set()
        self._thread.join()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """Wait until the mirror ends, at most `timeout` seconds; return whether it has. Raises its error."""
        self._thread.join(timeout)
        if self.isActive:
            return False
        if self._failure is not None:
            raise self._failure
        return True
