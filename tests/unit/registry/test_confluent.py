"""A registry client that two threads use: one plans a table, the other checks the registry."""

from __future__ import annotations

import pytest

from cdcd.errors import RegistryUnavailable
from cdcd.registry.confluent import Registry
from cdcd.registry.settings import RegistrySettings


def test_a_request_whose_client_another_thread_has_closed_may_be_made_again() -> None:
    """The other thread was refused and closes the client, so that its next request reads the password again."""
    registry = Registry(RegistrySettings("http://127.0.0.1:1"))

    def request(_client: object) -> None:
        registry.close()
        raise RuntimeError("the client has been closed")

    with pytest.raises(RegistryUnavailable):
        registry._call("lookup", request)


def test_a_defect_in_a_request_stays_one() -> None:
    registry = Registry(RegistrySettings("http://127.0.0.1:1"))

    def request(_client: object) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        registry._call("lookup", request)
