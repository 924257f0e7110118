"""A daemon that reaches PostgreSQL over a link with faults.

In: a server, a database.  Out: the daemon and the link, both closed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.proxy import Proxy

NewLinked = Callable[..., AbstractContextManager[tuple[Daemon, Proxy]]]


def linked_by(new_daemon: NewDaemon) -> NewLinked:
    """Return `new_linked(server, database, **configuration)`, a context manager."""

    @contextmanager
    def linked(server: PostgresServer, database: str, **over: Any) -> Iterator[tuple[Daemon, Proxy]]:
        with Proxy(server.port) as link, new_daemon(server, database, **over) as daemon:
            dsn = daemon.config["source"]["dsn"]
            daemon.config["source"]["dsn"] = dsn.replace(f":{server.port}/", f":{link.port}/")
            yield daemon, link

    return linked
