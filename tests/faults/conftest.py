"""The fault tests run daemons as the integration tests do, and over links with faults."""

from __future__ import annotations

import pytest

from tests.faults.link import NewLinked, linked_by
from tests.integration.conftest import NewDaemon, new_daemon, reader

__all__ = ["new_daemon", "reader"]


@pytest.fixture
def new_linked(new_daemon: NewDaemon) -> NewLinked:
    """`new_linked(server, database, **configuration)` is a daemon and the link that it reads over."""
    return linked_by(new_daemon)
