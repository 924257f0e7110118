"""The fault tests run daemons as the integration tests do, and over links with faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.demo.stack.artefacts import Cache
from tests.faults.link import NewLinked, linked_by
from tests.integration.conftest import NewDaemon, new_daemon, reader
from tests.support.secured_kafka import SecuredKafka

__all__ = ["new_daemon", "reader"]


@pytest.fixture
def new_linked(new_daemon: NewDaemon) -> NewLinked:
    """`new_linked(server, database, **configuration)` is a daemon and the link that it reads over."""
    return linked_by(new_daemon)


@pytest.fixture(scope="session")
def secured_kafka(artefacts: Cache, stack_folder: Path) -> Iterator[SecuredKafka]:
    """A broker that asks who comes."""
    with SecuredKafka(stack_folder / "secured-kafka", artefacts) as secured:
        yield secured
