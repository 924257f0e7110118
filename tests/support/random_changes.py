"""A session that changes tables at random while a test does something else.

In: a server, a database, a function that returns the next statement.  Out: the number of transactions.
Invariant: each statement is a transaction; the same seed gives the same statements. `stop` raises the error that
ended the thread, unless the server had ended its session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer

PACE_S = 0.002


class RandomChanges:
    """Executes statements in a thread, from the construction, which returns after the first one, until `stop`."""

    def __init__(
        self, server: PostgresServer, database: str, seed: int, statement: Callable[[Random], str]
    ) -> None:
        self._server, self._database, self._random = server, database, Random(seed)
        self._statement = statement
        self._is_over = threading.Event()
        self.transactions = 0
        self._failure: BaseException | None = None
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._has_begun.wait()

    def _run(self) -> None:
        try:
            with self._server.session(dbname=self._database) as execute:
                while not self._is_over.is_set():
                    execute(self._statement(self._random))
                    self.transactions += 1
                    self._has_begun.set()
                    self._is_over.wait(PACE_S)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failure = error
        finally:
            self._has_begun.set()

    def stop(self) -> None:
        """End the session after the present statement."""
        self._is_over.set()
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None and not isinstance(failure, psycopg2.OperationalError):
            raise failure
